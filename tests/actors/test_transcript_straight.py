"""The short way to read a transcript, held to the way that reads every file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import _transcript_reading as reading

ID = "00000000-0000-0000-0000-{:012x}"
MESSAGES: dict[str, Any] = {
    "user": {"role": "user", "content": [{"type": "text", "text": "t"}]},
    "assistant": {"role": "assistant", "content": "hi"},
    "system": {"role": "system", "content": "s"},
}


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(
        lambda n: st.sampled_from(others) if n == 0 else st.just(usual)
    )


@st.composite
def files(draw: st.DrawFn) -> list[bytes]:
    """Lines of a transcript, now and then with something wrong in them."""
    lines: list[bytes] = []
    before: str | None = None
    for number in range(draw(st.integers(0, 6))):
        own_id = draw(mostly(ID.format(number), ID.format(0), ID.format(3)))
        kind = draw(st.sampled_from(["user", "assistant", "user", "system"]))
        record = {
            "parentUuid": draw(mostly(before, None, ID.format(1), ID.format(5))),
            "uuid": own_id,
            "agentId": draw(mostly("me", "you")),
            "isSidechain": True,
            "timestamp": draw(
                mostly(f"2026-11-22T10:00:{number:02}.000000Z", "x", 7, "")
                | st.integers(0, 50).map(lambda s: f"2026-11-22T10:00:{s:02}.000000Z")
            ),
            "type": kind,
        }
        if kind == "system":
            record["subtype"] = draw(mostly("compact_boundary", "gap", "other"))
            record["missing"] = 2
        record["message"] = MESSAGES[kind]
        line = json.dumps(record, separators=(",", ":")).encode()
        wrong = (line[:-3], b"", b" ", line + b"x", b"{}", b"[]", b"7")
        lines.append(draw(mostly(line, *wrong)))
        before = own_id
    return lines


def chain(lines: list[bytes]) -> object:
    try:
        return reading._read_chain(lines, "me", strict=False)
    except reading._Unreadable:
        return reading._read_chain(lines, "me", strict=True)


@settings(max_examples=500, deadline=None)
@given(files())
def test_the_short_way_reads_what_the_long_way_reads(lines: list[bytes]) -> None:
    """TR3: also where the short way does not know what to make of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_straight", lambda *_: None)
        expected = chain(lines)
    assert chain(lines) == expected


def test_the_short_way_is_the_usual_one() -> None:
    lines = [
        json.dumps(
            {
                "parentUuid": None if number == 0 else ID.format(number - 1),
                "uuid": ID.format(number),
                "agentId": "me",
                "isSidechain": True,
                "timestamp": f"2026-11-22T10:00:{number:02}.000000Z",
                "type": kind,
                "message": MESSAGES[kind],
            },
            separators=(",", ":"),
        ).encode()
        for number, kind in enumerate(["user", "assistant", "user"])
    ]
    assert reading.read_straight(lines, "me") is not None
