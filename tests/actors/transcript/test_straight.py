"""The short way to read a transcript, held to the way that reads every file."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.transcript import _reading as reading

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


@st.composite
def mutated(draw: st.DrawFn) -> list[bytes]:
    """Lines of a transcript, of which some are torn, glued together, or hold what
    stands elsewhere in them. None says twice what its record is: that a line can be
    read in two ways is seen only by looking for it, in each of 100,000."""
    lines = draw(files())
    for _ in range(draw(st.integers(0, 3)) if lines else 0):
        number = draw(st.integers(0, len(lines) - 1))
        line = lines[number]
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(line))] * 2)))
        lines[number] = draw(
            st.sampled_from(
                [
                    line[:start] + line[end:],
                    line[:end] + line[start:],
                    line[:start] + lines[number - 1],
                    line[:start] + b"}",
                    line[:-1] + b',"type":"assistant"}',
                    line.replace(b'"t"', b"7"),
                    line.replace(b'"content"', b'"said"'),
                ]
            )
        )
    return lines


def long_way(lines: list[bytes]) -> reading.Transcript | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_straight", lambda *_: None)
        return reading._read_chain(lines, "me")


@settings(max_examples=300, deadline=None)
@given(files() | mutated())
def test_the_short_way_reads_what_the_long_way_reads(lines: list[bytes]) -> None:
    """TR3: also where the short way does not know what to make of a file."""
    assert reading._read_chain(lines, "me") == long_way(lines)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_line_that_is_broken_takes_no_other_one_with_it(data: st.DataObject) -> None:
    """TR3: whether or not its head can still be read, and whatever is glued to it."""
    texts = [f"t{number}" for number in range(8)]
    lines = straight(texts)
    number = data.draw(st.integers(1, len(lines) - 3))
    whole = lines[number]
    # In its message, so that the line begins as it did.
    cut = data.draw(st.integers(whole.index(b'"message"'), len(whole) - 2))
    glued = data.draw(st.sampled_from(["", "}", "next"]))
    broken = whole[:cut]
    lost = {texts[number]}
    if glued == "next":
        broken += lines.pop(number + 1)
        lost.add(texts[number + 1])
    lines[number] = broken + (b"}" if glued == "}" else b"")
    found = reading._read_chain(lines, "me")
    assert found is not None
    said = [getattr(message, "text", "") for message in found.messages]
    assert [text for text in said if text in texts] == [
        text for text in texts if text not in lost
    ]
    assert found.skipped == 1
    assert 1 <= found.missing <= len(lost)
    assert any("missing here" in text for text in said)


def test_many_lines_with_nothing_but_a_head_cost_no_more_than_others() -> None:
    """TR3: whoever can write to the directory could hold up who reads it."""
    lines = straight([str(number) for number in range(20_000)])
    kept, broken = lines[0], [line[:-3] + b"}" for line in lines[1:]]
    began = time.process_time()
    found = reading._read_chain([kept, *broken], "me")
    assert found is not None
    assert (len(found.messages), found.skipped) == (1, len(broken))
    assert time.process_time() - began < 5
    every_other = [*lines]
    every_other[1:-1:2] = broken[:-1:2]
    found = reading._read_chain(every_other, "me")
    assert found is not None
    assert found.skipped == found.missing == len(broken[:-1:2])
    assert time.process_time() - began < 10


def straight(texts: list[str]) -> list[bytes]:
    """Return the lines of a conversation, as they are written."""
    return [
        json.dumps(
            {
                "parentUuid": None if number == 0 else ID.format(number - 1),
                "uuid": ID.format(number),
                "agentId": "me",
                "isSidechain": True,
                "timestamp": f"2026-11-22T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000000Z",
                "type": "user",
                "message": {
                    "role": "user",
                    "content": [{"type": "text", "text": text}],
                },
            },
            separators=(",", ":"),
        ).encode()
        for number, text in enumerate(texts)
    ]


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
    assert reading.read_straight(lines, "me", lambda: None) is not None
