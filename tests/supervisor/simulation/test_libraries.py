"""Programs that are not ours: what a sweep finds in them, and that it finds nothing
where there is nothing.

Each is left out where the library, in that very version, is not installed. With
``TRIO_SUPERVISOR_LIBRARIES`` set it fails instead: so nothing is left out in silence
where all of them are (``pip install -e '.[libraries,test]'``).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.simulation import Deadlock, Sim, cancel_everywhere, simulate

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.libraries


def library(name: str, version: str, *, distribution: str | None = None) -> Any:
    try:
        found = importlib.metadata.version(distribution or name)
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    if found != version:
        text = f"{name} is {found}, and this is about {version}"
        if os.environ.get("TRIO_SUPERVISOR_LIBRARIES"):
            pytest.fail(text)
        pytest.skip(text)
    return importlib.import_module(name)


def example(name: str) -> Any:
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_httpcore_loses_a_connection_when_a_waiting_request_is_cancelled() -> None:
    """httpcore#1093: under round robin alone, without any seed. The cancelled request
    is given the connection before it can say that it is gone."""
    program = partial(example("pool").program, library=library("httpcore", "1.0.9"))
    report = cancel_everywhere(program, schedules=1, check=False)
    assert report.rows
    for row in report.rows:
        assert row.arrival == "late"
        assert row.site.startswith("httpcore/_synchronization.py:")
        assert row.site.endswith(" wait")
        assert row.tape.deviations == ()
        assert row.error.startswith("Deadlock: ")
        run = simulate(program, tape=row.tape)
        assert isinstance(run.error, Deadlock)
        assert simulate(program, tape=row.tape).digest == run.digest


def test_the_fork_in_which_that_is_mended_is_clean() -> None:
    program = partial(example("pool").program, library=library("httpcore2", "2.16.2"))
    report = cancel_everywhere(program, schedules=2)
    assert report.points > 150
    assert report.never_fired == []


def test_memory_streams_of_anyio_are_clean() -> None:
    anyio = library("anyio", "4.16.0")

    async def program(sim: Sim) -> None:
        send, receive = anyio.create_memory_object_stream(1)
        got: list[int] = []

        async def produce(first: int) -> None:
            async with send.clone() as mine:
                for number in range(first, first + 2):
                    await mine.send(number)

        async def consume() -> None:
            async with receive.clone() as mine:
                async for number in mine:
                    got.append(number)  # noqa: PERF401 (each by itself)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, 0)
            nursery.start_soon(produce, 10)
            nursery.start_soon(consume)
            nursery.start_soon(consume)
            # A task that takes over where all consumers are gone.
            async with receive, send:
                with trio.move_on_after(5):
                    while len(got) < 4:
                        await trio.sleep(1)
                        try:
                            got.append(receive.receive_nowait())
                        except anyio.WouldBlock:
                            pass
        assert len(got) == len(set(got))

    assert cancel_everywhere(program, schedules=2).points > 100


def test_trio_websocket_leaves_a_reader_when_its_handshake_is_cancelled() -> None:
    """`wrap_client_stream` starts a task in the nursery that it is given, and waits for
    the handshake without a clean-up. The nursery stays open until the stream ends."""
    websocket = library("trio_websocket", "0.12.2", distribution="trio-websocket")

    async def serve(stream: Any) -> None:
        try:
            async with trio.open_nursery() as nursery:
                request = await websocket.wrap_server_stream(nursery, stream)
                connection = await request.accept()
                while True:
                    await connection.send_message(await connection.get_message())
        except* (websocket.ConnectionClosed, trio.BrokenResourceError):
            pass

    async def talk(nursery: trio.Nursery, stream: Any) -> None:
        connection = await websocket.wrap_client_stream(nursery, stream, "here", "/")
        async with connection:
            await connection.send_message("hi")
            assert await connection.get_message() == "hi"

    async def program(sim: Sim) -> None:
        network = sim.network()
        network.delay = 0.01
        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve_tcp, serve, 80, "here")
            async with await network.open_tcp_stream("here", 80) as stream:
                async with trio.open_nursery() as inner:
                    inner.start_soon(talk, inner, stream)
                    await trio.sleep(20)
                    inner.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    report = cancel_everywhere(program, schedules=1, check=False)
    assert report.rows
    for row in report.rows:
        assert row.error.startswith("left: talk has ended and left _reader_task")
        assert "wrap_client_stream" in row.site
