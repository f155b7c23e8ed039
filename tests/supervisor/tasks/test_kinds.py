"""The table of kinds, against those who cannot import it."""

from __future__ import annotations

from actors import envelope
from supervisor._tasks.kinds import KINDS


def test_the_prefix_of_an_id_tells_its_kind() -> None:
    """Those of agents have none, so no other prefix may begin a hexadecimal number."""
    prefixes = {kind.id_prefix: name for name, kind in KINDS.items() if kind.id_prefix}
    assert len(prefixes) == len(KINDS) - 1
    assert all(len(it) == 1 and it not in "0123456789abcdef" for it in prefixes)
    # A minimal envelope has only the id to go by.
    for prefix, name in prefixes.items():
        id = f"{prefix}00000001"
        xml = envelope.render_minimal("n1", id, f"{id}-000001", "failed")
        assert f"<task-type>{name}</task-type>" in xml
