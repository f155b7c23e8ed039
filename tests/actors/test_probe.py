"""Probes that nobody hears, and that somebody does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from actors import probe
from actors.probe import always, buggify, heard_by, reachable, sometimes

CALLS: dict[str, Callable[[], object]] = {
    "always": lambda: always("it holds", False),
    "sometimes": lambda: sometimes("it holds now and then", True),
    "reachable": lambda: reachable("here"),
    "buggify": lambda: buggify("slow-disk"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_probe_that_is_off_enters_no_function_of_ours(name: str) -> None:
    """Nor does it after somebody has listened."""
    for _ in range(2):
        entered: list[str] = []
        sys.setprofile(
            lambda frame, event, _, seen=entered: (
                seen.append(frame.f_code.co_name) if event == "call" else None
            )
        )
        try:
            CALLS[name]()
        finally:
            sys.setprofile(None)
        assert entered == ["<lambda>"]
        with heard_by(Heard()):
            CALLS[name]()


def test_nothing_is_true_when_nobody_listens() -> None:
    assert not buggify("slow-disk")
    always("nothing comes of it", False)
    sometimes("whatever it is", [])


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def always(self, name: str, holds: object, /) -> None:
        self.told.append(("always", name, holds))

    def sometimes(self, name: str, holds: object, /) -> None:
        self.told.append(("sometimes", name, holds))

    def reachable(self, name: str, /) -> None:
        self.told.append(("reachable", name))

    def buggify(self, name: str, /) -> bool:
        self.told.append(("buggify", name))
        return True


def test_a_listener_hears_names_that_were_imported_before() -> None:
    heard = Heard()
    with heard_by(heard):
        for call in CALLS.values():
            call()
        assert probe.buggify("slow-disk")
    always("nobody hears it", False)
    assert heard.told == [
        ("always", "it holds", False),
        ("sometimes", "it holds now and then", True),
        ("reachable", "here"),
        ("buggify", "slow-disk"),
        ("buggify", "slow-disk"),
    ]


def test_the_module_loads_nothing_that_actors_does_not() -> None:
    program = "import actors, sys; had = {*sys.modules}; import actors.probe; print(*{*sys.modules} - had)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert {*done.stdout.split()} <= {"actors.probe"}
