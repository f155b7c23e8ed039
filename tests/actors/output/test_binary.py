"""Binary output: found early, told in one line, and not kept."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import TaskStatus
from actors.env import real_env
from actors.output import BINARY_NOTE, SNIFF, OutputLog, QuotaExceeded
from actors.shell import Shell
from actors.text import Cleaner
from supervisor.runtime import Warned, open_runtime

NOTE = BINARY_NOTE


async def kept(
    directory: Path,
    *pieces: bytes,
    raw: bool = False,
    quota: int = 2**30,
    warnings: list[str] | None = None,
) -> bytes:
    """Return what is in the file after the log has got ``pieces``."""
    path = directory / "task.output"
    path.unlink(missing_ok=True)
    log = OutputLog(
        real_env().files.create_output(path),
        quota=quota,
        raw=raw,
        on_warning=None if warnings is None else warnings.append,
    )
    for piece in pieces:
        await log.write(piece)
    await log.aclose()
    written = path.read_bytes()
    assert log.bytes_written == len(written)
    tail, truncated = log.tail()
    assert truncated or raw or tail == written
    return written


def expected(data: bytes) -> bytes:
    nul = data.find(b"\0", 0, SNIFF)
    cleaner = Cleaner()
    text = cleaner.feed(data if nul < 0 else data[:nul]) + cleaner.finish()
    if nul < 0:
        return text
    return text + b"\n" * (text[-1:] not in (b"", b"\n")) + NOTE


@settings(max_examples=400, deadline=None)
@given(
    before=st.integers(SNIFF - 40, SNIFF + 40) | st.integers(0, 40),
    data=st.lists(
        st.sampled_from(
            [b"\0", b"a", b"\n", b"\r", "語".encode(), b"\x1b[1m", b"\x1b]", b"\xff"]
        ),
        max_size=30,
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 10_000), max_size=6),
)
def test_where_the_input_is_cut_never_matters_for_what_is_binary(
    tmp_path_factory: pytest.TempPathFactory, before: int, data: bytes, cuts: list[int]
) -> None:
    """SH8, SH12: the bytes are counted over all pieces."""
    directory = tmp_path_factory.getbasetemp()
    data = (b"text\n" * (before // 5 + 1))[:before] + data
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]

    async def check() -> None:
        assert await kept(directory, *pieces) == expected(data)

    trio.run(check)


@pytest.mark.parametrize("last", [SNIFF - 1, SNIFF])
async def test_a_nul_counts_up_to_the_end_of_the_sniff(
    tmp_path: Path, last: int
) -> None:
    """SH8"""
    data = b"x" * last + b"\0rest"
    whole = await kept(tmp_path, data)
    in_bytes = await kept(tmp_path, *[bytes([byte]) for byte in data])
    assert whole == in_bytes
    assert (NOTE in whole) is (last < SNIFF)
    assert (b"rest" in whole) is (last >= SNIFF)


async def test_what_follows_is_dropped_without_an_error(tmp_path: Path) -> None:
    """SH8: it counts for no quota either, so that the command goes on."""
    warnings: list[str] = []
    written = await kept(
        tmp_path,
        b"PK\x03\x04",
        b"\0",
        *[b"x" * 1000] * 100,
        quota=1000,
        warnings=warnings,
    )
    assert written == b"PK\n" + NOTE
    (warning,) = warnings
    assert "binary" in warning
    assert "task.output" in warning


async def test_raw_output_may_be_binary(tmp_path: Path) -> None:
    """SH8"""
    assert await kept(tmp_path, b"a\0b", b"\0", raw=True) == b"a\0b\0"


async def test_the_line_that_tells_of_binary_output_keeps_to_the_quota(
    tmp_path: Path,
) -> None:
    """P7, SH8"""
    with pytest.raises(QuotaExceeded):
        await kept(tmp_path, b"a\0", quota=10)
    assert (tmp_path / "task.output").stat().st_size == 10


@pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")
async def test_a_command_that_prints_binary_is_read_to_its_end(tmp_path: Path) -> None:
    """SH8, P7: far more than a pipe holds; its end is its own."""
    warnings: list[str] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_runtime(tmp_path) as runtime:

            async def listen() -> None:
                # Its end comes with that of the runtime.
                warnings.extend(
                    [
                        event.text
                        async for event in runtime.events
                        if isinstance(event, Warned)
                    ]
                )

            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            task = await runtime.launch(
                Shell("echo before; head -c 3000000 /dev/zero; exit 7")
            )
            done = await task.wait()
    assert (done.status, done.exit_code) == (TaskStatus.FAILED, 7)
    assert done.result == "before\n" + NOTE.decode()
    assert done.output_file is not None
    assert done.output_file.read_bytes() == b"before\n" + NOTE
    assert any("binary" in text for text in warnings)
