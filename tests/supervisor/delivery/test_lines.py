"""What a monitor tells of the output of a command: pure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from supervisor._delivery.lines import LINE_SHOWN, LINES, NOTE_LIMIT, LineReader, Lines

ANY = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("<>&\x1b\0ab"))
LINE = ANY.map(lambda text: text.replace("\n", "")) | st.sampled_from(
    ["</lines>", "<more>and 7 more</more>", "]]>", "&lt;", "a" * 600, "&" * 5000, ""]
)
PATTERNS = st.sampled_from([None, "a", "<", re.compile("^a"), re.compile("[0-9&]")])


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """Pieces of whole characters, as a file is read."""
    text = data.decode()
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b].encode() for a, b in pairwise(bounds)]


def wanted(line: str, pattern: str | re.Pattern[str] | None) -> bool:
    if isinstance(pattern, str):
        return pattern in line[:4096]
    return pattern is None or pattern.search(line[:4096]) is not None


def told(lines: Lines) -> ET.Element:
    return ET.fromstring(lines.words("m1", "s1", "d").text)


@given(st.lists(LINE), LINE, st.lists(st.integers(0, 10_000)), PATTERNS)
def test_how_output_is_cut_changes_nothing_in_its_lines(
    lines: list[str],
    rest: str,
    places: list[int],
    pattern: str | re.Pattern[str] | None,
) -> None:
    """Against a model that has all of it at once."""
    data = "".join(f"{line}\n" for line in lines) + rest
    reader, got, offset = LineReader(pattern), Lines(), 7
    reader.leap(offset)
    changes = 0
    for piece in cut_at(data.encode(), places):
        before = len(got)
        changed = reader.feed(piece.decode(), offset, got)
        assert changed == (len(got) > before)
        changes += changed
        offset += len(piece)
    reader.finish(got)
    expected, at = Lines(), 7
    for line in [*lines, *([rest] if rest else [])]:
        if wanted(line, pattern):
            expected.add(line, at)
        at += len(line.encode()) + 1
    assert len(got) == len(expected)
    assert got.words("m", "s", "d") == expected.words("m", "s", "d")


@given(st.lists(LINE, max_size=260), ANY, st.integers(0, 10**12))
def test_no_line_forges_anything_and_all_is_bounded(
    lines: list[str], description: str, unread: int
) -> None:
    """P5: each line is one line, in its place, and the note has its elements alone."""
    got = Lines()
    for line in lines:
        got.add(line, 10**15)
    got.unread = unread
    got.why = "10 notes in a row woke nobody"
    words = got.words("m" + "f" * 8, "s" + "f" * 8, description)
    assert len(words.text) <= NOTE_LIMIT
    root = ET.fromstring(words.text)
    names = [element.tag for element in root]
    assert names == [
        it
        for it in "monitor-id task-id summary lines more ended note".split()
        if it in names
    ]
    assert all(len(element) == 0 for element in root)
    shown = (root.findtext("lines") or "\n\n").split("\n")[1:-1] if lines else []
    if root.find("lines") is None:
        shown = []
    assert len(shown) <= LINES and all(len(line) <= LINE_SHOWN for line in shown)
    left = len(lines) - len(shown)
    more = root.findtext("more") or ""
    assert left == 0 or more.startswith(f"and {left:,} more, from byte ")
    assert "\n" not in words.summary


def test_the_first_lines_are_told_and_the_others_counted() -> None:
    got = Lines()
    for number in range(1000):
        got.add(f"{number:03}", 4 * number)
    root = told(got)
    shown = (root.findtext("lines") or "").split()
    assert shown == [f"{number:03}" for number in range(LINES)]
    assert root.findtext("more") == "and 800 more, from byte 800 of the output on"
    assert root.findtext("summary") == 'Command "d" has printed 1,000 lines'


def test_a_line_for_which_there_is_no_room_ends_what_is_shown() -> None:
    """Or a shorter one after it would seem to follow the one before it."""
    got = Lines()
    for at, line in enumerate(["x" * 400] * 20 + ["y"]):
        got.add(line, at)
    lines = (told(got).findtext("lines") or "").split()
    assert 2 < len(lines) < 10 and "y" not in lines
    assert got.more == 21 - len(lines) and got.more_from == len(lines)


def test_a_long_line_is_cut_before_it_is_escaped() -> None:
    """N11 of envelopes, for lines: no entity is cut."""
    got = Lines()
    got.add("<" * 10_000, 0)
    assert told(got).findtext("lines") == "\n" + "<" * (LINE_SHOWN - 1) + "…\n"


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    reader, got = LineReader(None), Lines()
    for number in range(1000):
        assert not reader.feed("z" * 65_536, number * 65_536, got)
    assert len(reader._line) < 5_000  # pyright: ignore[reportPrivateUsage]
    assert reader.finish(got) and len(got) == 1


def test_what_a_leap_leaves_out_is_no_part_of_a_line() -> None:
    reader, got = LineReader(None), Lines()
    reader.feed("begin", 0, got)
    reader.leap(100)
    assert reader.feed("end\n", 100, got)
    assert (told(got).findtext("lines") or "").split() == ["end"]
