"""Output made clean, chunk by chunk, and kept up to a quota.

What the cleaner should give is worked out here from the whole input at once,
one character after the other.
"""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.env import real_env
from actors.output import OutputLog, QuotaExceeded
from actors.text import LINE_LIMIT, Cleaner, whole_characters

# ---- The reference -----------------------------------------------------------


def without_sequences(text: str) -> str:
    kept = ""
    while text:
        first, text = text[0], text[1:]
        if first != "\x1b":
            kept += first
            continue
        kind = text[:1]
        if kind == "[":
            text = text[1:].lstrip("0123456789:;<=>?").lstrip(" !\"#$%&'()*+,-./")
            if text and "@" <= text[0] <= "~":
                text = text[1:]
        elif kind and kind in "]PX^_":
            text = text[1:]
            ends = "\n\x1b\a" if kind == "]" else "\n\x1b"
            while text and text[0] not in ends:
                text = text[1:]
            if text.startswith("\x1b\\"):
                text = text[2:]
            elif text.startswith("\a") and kind == "]":
                text = text[1:]
        elif kind and kind in "()*+":
            text = text[1:]
            if text and "0" <= text[0] <= "~":
                text = text[1:]
        elif kind and (kind in "\\78=>" or "@" <= kind <= "Z"):
            text = text[1:]
    return kept


def last_frame(line: str, limit: int) -> str:
    shown: list[str] = []
    replaceable = ""
    for frame in line.split("\r"):
        if len(frame.encode()) >= limit:
            shown.append(frame)
            replaceable = ""
        elif frame:
            replaceable = frame
    return "\n".join([*shown, replaceable] if replaceable else shown)


def reference(data: bytes, limit: int = LINE_LIMIT) -> bytes:
    text = without_sequences(data.decode("utf-8", "replace"))
    text = "".join(c for c in text if c in "\t\n\r" or c.isprintable() or ord(c) >= 160)
    lines = [last_frame(line, limit) for line in text.split("\n")]
    return "\n".join(lines).encode()


def cleaned(*pieces: bytes, limit: int = LINE_LIMIT) -> bytes:
    cleaner = Cleaner(line_limit=limit)
    return b"".join([*map(cleaner.feed, pieces), cleaner.finish()])


# ---- The cleaner -------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\r\r\n",
        b"10%\r20%\r",
        b"a",
        b"line\n",
        b"x" * 7,
        b"x" * 9,
        b"\x1b",
        b"\x1b[",
        b"\x1b[1;31m",
        b"\x1b[?25l",
        b"\x1b[38:2::1:2:3m",
        b"\x1b[0 q",
        b"\x1b[0 ",
        b"\x1b[3\n",
        b"\x1b]0;title\a",
        b"\x1b]0;title\x1b\\",
        b"\x1b]8;;http://a/\x1b\\link\x1b]8;;\x1b\\",
        b"\x1b]no end",
        b"\x1bPq\a1\x1b\\",
        b"\x1b_apc",
        b"\x1b^pm\n",
        b"\x1bXsos\x1b\\",
        b"\x1b\\",
        b"\x1b(B",
        b"\x1b(",
        b"\x1b7",
        b"\x1bM",
        b"\x1bq",
        b"\a",
        b"\b",
        b"\0\x01\x7f",
        b"\t",
        b"\xc2\x85",
        b"\xc2\x9b31m",
        b"\xc2\xa0",
        "é語😀".encode(),
        b"\xf0\x9f",
        b"\x98\x80",
        b"\xe2\x82",
        b"\xff\xfe",
        b"\xc3",
        b"\xed\xa0\x80",
        "\ufffd\u202e\ufeff".encode(),
        b";0m\\]P[(B",
    ]
)
STREAMS = st.lists(PIECES | st.binary(max_size=6), max_size=14).map(b"".join)


def cut_up(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=1500, deadline=None)
@given(
    STREAMS,
    st.lists(st.integers(0, 10_000), max_size=8),
    st.sampled_from([1, 2, 8, LINE_LIMIT]),
)
def test_where_the_input_is_cut_never_matters(
    data: bytes, cuts: list[int], limit: int
) -> None:
    """SH6, SH7, SH12"""
    expected = reference(data, limit)
    assert cleaned(data, limit=limit) == expected
    assert cleaned(*cut_up(data, cuts), limit=limit) == expected
    assert (
        cleaned(*[data[i : i + 1] for i in range(len(data))], limit=limit) == expected
    )


@pytest.mark.parametrize(
    "data",
    [
        b"a\x1b[0 1q",
        b"a\x1b[12;3Hb\x1b[1\nc",
        b"a\x1b]0;b\x07c\x1b]0;d\x1b\\e\x1b]0;\x1b[1mf",
        b"a\x1bPb\x07c\x1b\\d\x1bXe\nf",
        b"a\x1b(Bb\x1b(\nc\x1b7d\x1b\x1b\x1b[mq",
        b"a\rb\x1b[K\r\n\r\rc\rd",
        "é\u0085語\U0001f600".encode() + b"\xe8\xaa\xf0\x9f",
    ],
)
def test_every_cut_of_every_kind_of_sequence_gives_the_same(data: bytes) -> None:
    """SH6, SH7, SH12"""
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            pieces = data[:first], data[first:second], data[second:]
            assert cleaned(*pieces) == reference(data)


@settings(max_examples=500, deadline=None)
@given(STREAMS, STREAMS, st.sampled_from([1, 8, LINE_LIMIT]))
def test_what_is_unfinished_is_what_finishing_gives(
    first: bytes, second: bytes, limit: int
) -> None:
    """And a cleaner that was finished is as new."""
    cleaner = Cleaner(line_limit=limit)
    # A character belongs to the line only when it is whole.
    cleaner.feed(first.decode("utf-8", "replace").encode())
    unfinished = cleaner.unfinished
    assert cleaner.finish() == unfinished
    cleaner.feed(first)
    cleaner.finish()
    assert cleaner.feed(second) + cleaner.finish() == reference(second, limit)


@settings(max_examples=500, deadline=None)
@given(STREAMS, st.sampled_from([1, 8, LINE_LIMIT]))
def test_a_cleaner_that_says_it_is_empty_finishes_with_nothing(
    data: bytes, limit: int
) -> None:
    cleaner = Cleaner(line_limit=limit)
    assert cleaner.is_empty
    cleaner.feed(data)
    is_empty = cleaner.is_empty
    assert not is_empty or cleaner.finish() == b""
    # Whole lines are the usual output.
    cleaner.finish()
    cleaner.feed(b"a line\n")
    assert cleaner.is_empty


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        # SH6
        (b"\x1b[1;31mred\x1b[0m", b"red"),
        (b"\x1b]0;title\atext", b"text"),
        (b"\x1b]0;title\x1b\\text", b"text"),
        (b"\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", b"link"),
        (b"\x1bPq#0\x1b\\text", b"text"),
        (b"\x1b]unterminated\nnext line\n", b"\nnext line\n"),
        (b"\x1b]unterminated", b""),
        (b"a\x1bb", b"ab"),
        (b"a\x1b\nb", b"a\nb"),
        (b"tput sgr0\x1b(B\x1b[m", b"tput sgr0"),
        # SH7
        (b"10%\r50%\r100%\n", b"100%\n"),
        (b"10%\r50%\r100%\r\n", b"100%\n"),
        (b"10%\r50%\r\r\n", b"50%\n"),
        (b"10%\r\x1b[K20%\r\x1b[K\r\n", b"20%\n"),
        (b"a\r\nb\r\n\r\nc", b"a\nb\n\nc"),
        (b"only\r", b"only"),
        (b"\r\r\r", b""),
        # SH12 and what UTF-8 is not
        ("日本語".encode(), "日本語".encode()),
        (b"a\xffb", "a\ufffdb".encode()),
        (b"cut\xe6\x97", "cut\ufffd".encode()),
        # The rest of the controls
        (b"bell\a tab\t nul\0 del\x7f", b"bell tab\t nul del"),
        (b"\xc2\x9bC1\xc2\x85", b"C1"),
    ],
)
def test_what_is_kept_of_terminal_output(data: bytes, kept: bytes) -> None:
    """SH6, SH7, SH12"""
    assert cleaned(data) == kept


def test_a_line_is_given_out_as_soon_as_it_is_complete() -> None:
    """SH5"""
    cleaner = Cleaner()
    assert cleaner.feed(b"one\ntw") == b"one\n"
    assert cleaner.feed(b"o\n") == b"two\n"
    assert cleaner.feed(b"$ ") == b""
    assert cleaner.unfinished == b"$ "
    assert cleaner.finish() == b"$ "


def test_a_line_too_long_to_hold_is_given_out_and_later_frames_follow_it() -> None:
    """SH7: giving up on a redraw loses nothing of it."""
    cleaner = Cleaner(line_limit=8)
    assert cleaner.feed(b"1234567") == b""
    assert cleaner.feed(b"8") == b"12345678"
    assert cleaner.feed(b"9") == b"9"
    assert cleaner.feed(b"\rab\rcd") == b""
    assert cleaner.unfinished == b"\ncd"
    assert cleaner.feed(b"\r\nef\n") == b"\ncd\nef\n"


@pytest.mark.parametrize(
    ("endless", "megabytes"),
    [
        (b"a", 50),
        ("語".encode(), 50),
        (b"\x1b]" + b"a" * 998, 50),
        (b"\x1b[" + b"1" * 998, 50),
        (b"a" * 998 + b"\r", 50),
        # What takes more time for each byte shows it with fewer of them.
        (b"\0", 10),
        (b"\xff", 5),
        (b"\x1bP", 5),
        (b"\r1%", 5),
    ],
)
def test_megabytes_without_a_newline_are_not_held(
    endless: bytes, megabytes: int
) -> None:
    """P7, SH5"""
    chunk = (endless * (65_536 // len(endless) + 1))[:65_536]
    cleaner = Cleaner()
    for _ in range((megabytes - 1) * 16):
        cleaner.feed(chunk)
    tracemalloc.start()
    try:
        for _ in range(16):
            cleaner.feed(chunk)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cleaner.unfinished) <= LINE_LIMIT
    assert now < 200_000
    assert peak < 8_000_000


@settings(max_examples=500, deadline=None)
@given(st.text(), st.integers(0, 40))
def test_a_cut_text_is_whole_again_without_its_first_continuation_bytes(
    text: str, cut: int
) -> None:
    """OF6"""
    data = text.encode()
    kept = whole_characters(data[cut:])
    assert text.endswith(kept.decode())
    assert len(data[cut:]) - len(kept) <= 3


# ---- The log -----------------------------------------------------------------


@attrs.define(eq=False)
class MemoryFile:
    """An `OutputFile` that is not one, for what needs no disk."""

    path: Path = Path("/nowhere/task.output")
    data: bytearray = attrs.field(factory=bytearray)
    closed: int = 0

    async def append(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        assert data
        self.data += data

    def size(self) -> int:
        return len(self.data)

    def rotate(self, older: Path) -> int:
        raise NotImplementedError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1


async def test_the_file_holds_the_clean_output_and_the_log_its_end(
    tmp_path: Path,
) -> None:
    """SH5, SH6, OF6"""
    file = real_env().files.create_output(tmp_path / "task.output")
    log = OutputLog(file, quota=1000, tail_bytes=10)
    await log.write(b"\x1b[1mone\x1b[0m\ntwo\nthr")
    assert file.path.read_bytes() == b"one\ntwo\n"
    assert log.bytes_written == 8
    assert log.tail() == (b"ne\ntwo\nthr", True)
    await log.aclose()
    await log.aclose()
    assert file.path.read_bytes() == b"one\ntwo\nthr"
    assert log.bytes_written == 11
    assert log.tail() == (b"ne\ntwo\nthr", True)


@pytest.mark.parametrize("data", [b"", b"a\n", b"a\nb", b"a\n\xc3"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("quick", [False, True])
async def test_a_log_is_finished_whole_where_its_task_is_cancelled(
    tmp_path: Path, data: bytes, raw: bool, quick: bool
) -> None:
    """P2: whether it waits or not, no cancellation comes out of it."""
    seen: list[int] = []
    path, memory = tmp_path / "task.output", MemoryFile()
    file = real_env().files.create_output(path) if quick else memory
    log = OutputLog(file, quota=99, raw=raw, on_output=lambda: seen.append(1))
    await log.write(data)
    assert log.is_quick == quick
    with trio.CancelScope() as scope:
        scope.cancel()
        await log.finish()
        assert len(seen) == 2
    assert not scope.cancelled_caught
    kept = path.read_bytes() if quick else bytes(memory.data)
    assert kept == (data if raw else cleaned(data))
    if quick:
        with pytest.raises(trio.ClosedResourceError):
            file.size()
    else:
        assert memory.closed == 1


async def test_raw_output_is_kept_as_it_comes_but_its_tail_is_clean() -> None:
    file = MemoryFile()
    log = OutputLog(file, quota=1000, raw=True)
    await log.write(b"\x1b[1ma\r\n\xff")
    await log.aclose()
    assert bytes(file.data) == b"\x1b[1ma\r\n\xff"
    assert log.tail() == ("a\n\ufffd".encode(), False)


@pytest.mark.parametrize("raw", [False, True])
@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(
            [b"a\n", b"bc", "é".encode(), "😀\n".encode(), b"\r", b"\x1b[1m"]
        ),
        max_size=30,
    ),
    size=st.integers(1, 12),
)
def test_the_tail_is_the_end_of_the_file_and_says_what_is_missing(
    raw: bool, pieces: list[bytes], size: int
) -> None:
    """OF6"""

    async def check() -> None:
        file = MemoryFile()
        log = OutputLog(file, quota=10_000, tail_bytes=size, raw=raw)
        for piece in pieces:
            await log.write(piece)
        before = log.tail()
        await log.aclose()
        tail, truncated = log.tail()
        everything = bytes(file.data)
        assert truncated is (len(everything) > size)
        if not raw:
            assert before == (tail, truncated)
            assert everything.endswith(tail)
            assert len(tail) > size - 4 or not truncated
        assert len(tail) <= size
        assert "\ufffd" not in tail.decode()

    trio.run(check)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
@pytest.mark.parametrize("quota", [0, 1, 64, 999])
async def test_the_file_ends_exactly_at_the_quota(
    quota: int, size: int, raw: bool
) -> None:
    """P7"""
    file = MemoryFile()
    log = OutputLog(file, quota=quota, raw=raw)
    with pytest.raises(QuotaExceeded) as caught:
        for _ in range(2000):
            await log.write(b"x" * size)
            assert len(file.data) <= quota
    assert len(file.data) == quota == log.bytes_written
    assert (caught.value.path, caught.value.quota) == (file.path, quota)
    assert f"{quota:,}" in str(caught.value)
    assert str(file.path) in str(caught.value)
    for more in (b"more", b"", b"\x1b[1m"):
        with pytest.raises(QuotaExceeded):
            await log.write(more)
    await log.aclose()
    assert len(file.data) == quota
    assert file.closed == 1


async def test_output_of_exactly_the_quota_is_within_it() -> None:
    """P7: also when the last line is unfinished."""
    file = MemoryFile()
    log = OutputLog(file, quota=10)
    await log.write(b"12345\n")
    await log.write(b"789\x1b[0m0")
    await log.aclose()
    assert bytes(file.data) == b"12345\n7890"


async def test_an_unfinished_line_counts_for_the_quota() -> None:
    """P7: so closing never has to drop any of it."""
    file = MemoryFile()
    log = OutputLog(file, quota=10)
    with pytest.raises(QuotaExceeded):
        await log.write(b"unfinished line")
    assert bytes(file.data) == b"unfinished"


async def test_a_character_cut_by_the_end_does_not_break_the_quota() -> None:
    """P7, SH12"""
    file = MemoryFile()
    log = OutputLog(file, quota=6)
    await log.write(b"12345\xf0\x9f")
    await log.aclose()
    assert bytes(file.data) == b"12345"


async def test_there_is_one_warning_before_the_quota() -> None:
    """P7: at four fifths."""
    warnings: list[str] = []
    log = OutputLog(MemoryFile(), quota=100, raw=True, on_warning=warnings.append)
    assert log.warn_at == 80
    await log.write(b"x" * 79)
    assert warnings == []
    await log.write(b"x")
    assert len(warnings) == 1
    assert "80" in warnings[0]
    assert "100" in warnings[0]
    assert "/nowhere/task.output" in warnings[0]
    await log.write(b"x" * 20)
    with pytest.raises(QuotaExceeded):
        await log.write(b"x")
    assert len(warnings) == 1


async def test_one_huge_write_warns_before_it_raises() -> None:
    """P7"""
    warnings: list[str] = []
    log = OutputLog(MemoryFile(), quota=100, on_warning=warnings.append)
    with pytest.raises(QuotaExceeded):
        await log.write(b"x" * 1000)
    assert len(warnings) == 1


async def test_closing_in_a_cancelled_scope_closes_the_file() -> None:
    """P1"""
    file = MemoryFile()
    log = OutputLog(file, quota=1000)
    await log.write(b"rest")
    with trio.CancelScope() as scope:
        scope.cancel()
        await log.aclose()
    assert scope.cancelled_caught
    assert file.closed == 1


async def test_the_memory_of_a_log_does_not_grow_with_its_output() -> None:
    """P7, SH5: neither for large chunks nor for tiny ones."""

    @attrs.define(eq=False)
    class Nowhere(MemoryFile):
        async def append(self, data: bytes) -> None:
            await trio.lowlevel.checkpoint()

    log = OutputLog(Nowhere(), quota=2**40)
    lines = b"a line of output like any other\n" * 2048
    tracemalloc.start()
    try:
        for _ in range(300):
            await log.write(lines)
        for _ in range(20_000):
            await log.write(b"a\n")
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.bytes_written == 300 * len(lines) + 40_000
    assert now < 300_000
    assert peak < 2_000_000


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.randbytes(rng.randint(1, 70_000)),
        lambda rng: b"".join(
            rng.choices(
                [b"ok\n", b"\x1b[32mgreen\x1b[0m\r\n", "é\n".encode(), b"1%\r2%\r"],
                k=9000,
            )
        ),
    ],
)
def test_chunks_as_large_as_a_pipes_give_the_same_as_the_whole(
    make: Callable[[random.Random], bytes],
) -> None:
    """SH6, SH7, SH12"""
    rng = random.Random(7)
    data = b"".join(make(rng) for _ in range(4))
    whole = cleaned(data)
    for _ in range(3):
        assert cleaned(*cut_up(data, [rng.randrange(10**9) for _ in range(9)])) == whole
