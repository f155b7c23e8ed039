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

from supervisor.simulation import (
    Deadlock,
    ProgramFailed,
    Row,
    Sim,
    cancel_everywhere,
    fault_everywhere,
    simulate,
)

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


# ---- httpcore2 over HTTP/2 ---------------------------------------------------------------


async def serve_http2(stream: Any) -> None:
    """Answer each request with two letters."""
    h2 = importlib.import_module("h2.connection")
    connection = h2.H2Connection(h2.H2Configuration(client_side=False))
    connection.initiate_connection()
    try:
        await stream.send_all(connection.data_to_send())
        async for data in stream:
            for event in connection.receive_data(data):
                if type(event).__name__ == "RequestReceived":
                    connection.send_headers(event.stream_id, [(":status", "200")])
                    connection.send_data(event.stream_id, b"ok", end_stream=True)
            if out := connection.data_to_send():
                await trio.sleep(0.05)
                await stream.send_all(out)
    except trio.BrokenResourceError:
        pass  # Who has asked is gone.


async def ask(pool: Any, host: str) -> None:
    response = await pool.request("GET", f"http://{host}/")
    assert response.content == b"ok"


async def http2(sim: Sim, *, library: Any, afterwards: str) -> None:
    """One request is cancelled, and another one is made with the same pool."""
    network = sim.network()
    network.delay = 0.01
    options = {"http1": False, "http2": True, "max_connections": 1}
    async with trio.open_nursery() as nursery:
        for host in ("a", "b"):
            await nursery.start(partial(network.serve_tcp, serve_http2, 80, host))
        async with library.AsyncConnectionPool(
            network_backend=network, **options
        ) as pool:
            async with trio.open_nursery() as clients:
                clients.start_soon(sim.target(ask), pool, "a")
            with sim.within(60):
                await ask(pool, afterwards)
        nursery.cancel_scope.cancel()


def http2_rows(afterwards: str) -> list[Row]:
    library("h2", "4.4.1")
    found = library("httpcore2", "2.16.2")
    program = partial(http2, library=found, afterwards=afterwards)
    arrivals = ("blocked", "elsewhere")
    report = cancel_everywhere(program, schedules=1, arrivals=arrivals, check=False)
    return [*report.rows]


def test_httpcore2_keeps_a_connection_busy_whose_request_was_cancelled_early() -> None:
    """`handle_async_request` sets ACTIVE, and then waits for a lock and a permit before
    the block that would set IDLE again. Another host waits for the place for ever."""
    rows = http2_rows("b")
    sites = {row.site.partition(":")[2].partition(" ")[2] for row in rows}
    assert sites == {"__aenter__", "acquire"}
    assert all("it took more than 60 virtual seconds" in row.error for row in rows)


def test_httpcore2_gives_back_permits_that_it_has_not_taken() -> None:
    """A new connection takes 99 permits one by one, with a checkpoint in each. Where it
    is cancelled there, the settings of the server give back all of them."""
    found = {row.error.partition("\n")[0]: row for row in http2_rows("a")}
    row = found.pop("ValueError: semaphore released too many times")
    assert row.site.endswith(" acquire")
    assert row.count > 90
    assert found  # Those of the next test.


def test_httpcore2_loses_bytes_that_it_has_counted_as_sent() -> None:
    """`_write_outgoing_data` takes the bytes out of h2, and a cancel drops them. No
    error is kept (it is no Exception), so the next request is sent by the same
    connection, with header tables that the server has never seen."""
    rows = [row for row in http2_rows("a") if "ProtocolError" in row.error]
    assert rows
    for row in rows:
        assert "Invalid table index" in row.error
        assert row.site.endswith((" __aenter__", " _write_outgoing_data"))


# ---- coredis -----------------------------------------------------------------------------


async def serve_redis(stream: Any) -> None:
    """Answer each command of one array, of which each comes whole."""
    answers = {
        b"HELLO": b"%3\r\n+proto\r\n:3\r\n+version\r\n+6.0.0\r\n+id\r\n:1\r\n",
        b"BLPOP": b"*2\r\n$1\r\nk\r\n$1\r\nv\r\n",
    }
    try:
        async for data in stream:
            await trio.sleep(0.05)
            await stream.send_all(answers.get(data.split(b"\r\n")[2], b"+PONG\r\n"))
    except trio.BrokenResourceError:
        pass


async def redis(sim: Sim, *, library: Any, command: str) -> None:
    """One command is struck, and the client still works."""
    lost = library.exceptions.ConnectionError
    network = sim.network(patch=True)
    network.delay = 0.01

    async def ping(client: Any) -> None:
        await client.ping()

    async def pop(client: Any) -> None:
        await client.blpop(["k"], timeout=5)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, serve_redis, 6379, host="here"))
        async with library.Redis(
            host="here", port=6379, max_connections=1, decode_responses=True
        ) as client:
            async with trio.open_nursery() as users:

                async def user() -> None:
                    try:
                        await sim.target(ping if command == "ping" else pop)(client)
                    except lost:
                        pass

                users.start_soon(user)
            with sim.within(60):
                try:
                    await client.ping()
                except lost:
                    await client.ping()
        nursery.cancel_scope.cancel()


# It leaves its memory streams open besides, as their collector tells.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_coredis_loses_a_place_when_it_is_cancelled_while_it_connects() -> None:
    """`get_connection` takes the place, and gives it back for an error that `start`
    returns, not for a cancel, nor for its own timeout."""
    program = partial(redis, library=library("coredis", "6.9.0"), command="ping")
    report = cancel_everywhere(program, schedules=1, check=False)
    (error,) = {row.error.partition("\n")[0] for row in report.rows}
    assert error == "AssertionError: it took more than 60 virtual seconds"
    assert "late" in {row.arrival for row in report.rows}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_coredis_loses_a_place_when_a_connection_breaks_in_use() -> None:
    """Neither `release` gives the place of one back that is not usable any more, nor
    the end of its task, which looks among those that are free."""
    program = partial(redis, library=library("coredis", "6.9.0"), command="pop")
    report = fault_everywhere(
        program, seams="network.receive", schedules=1, check=False
    )
    rows = [row for row in report.rows if row.arrival in ("reset", "end")]
    assert any(row.site.endswith(" receive") for row in rows)
    assert all(row.error.startswith("Deadlock") for row in rows)


# ---- websockets --------------------------------------------------------------------------


async def websocket(sim: Sim, *, message: Any) -> None:
    """Two tasks send on one connection; one is cancelled, and the other is not."""
    serve = importlib.import_module("websockets.trio.server").serve
    connect = importlib.import_module("websockets.trio.client").connect
    closed = importlib.import_module("websockets.exceptions").ConnectionClosed
    network = sim.network(patch=True)
    network.delay = 0.01
    got: list[object] = []

    async def keep(server: Any) -> None:
        try:
            async for received in server:
                got.append(received)  # noqa: PERF401 (each by itself)
        except closed:
            pass

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, keep, 80, host="here"))
        async with connect("ws://here:80/", proxy=None) as client:
            async with trio.open_nursery() as senders:
                senders.start_soon(sim.target(client.send), message)
                senders.start_soon(client.send, "other")
            await client.send("last")
            await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert "other" in got, "what a task has sent that nobody has cancelled is lost"
    assert "last" in got


def test_websockets_loses_the_message_of_a_task_that_nobody_cancelled() -> None:
    """`send_data` takes what all tasks have written out of the protocol, and a cancel
    of the one that sends it drops that. The other's `send` returns as if all were
    well."""
    library("websockets", "17.4")
    report = cancel_everywhere(
        partial(websocket, message="mine"), schedules=1, check=False
    )
    assert report.rows
    for row in report.rows:
        assert row.error.startswith("AssertionError: what a task has sent")
        assert row.site.endswith(" send_data")


def test_websockets_goes_on_after_half_a_message_was_cancelled() -> None:
    """`except Exception` ends the connection there; a cancel is none."""
    library("websockets", "17.4")
    report = cancel_everywhere(
        partial(websocket, message=["in", "parts"]), schedules=1, check=False
    )
    found = " ".join(row.error for row in report.rows)
    assert "expected a continuation frame" in found


# ---- hypercorn ---------------------------------------------------------------------------


async def hypercorn(sim: Sim, *, size: int) -> None:
    """A server is told to end while a client reads nothing of its answer."""
    server: Any = importlib.import_module("hypercorn.trio.tcp_server").TCPServer
    worker: Any = importlib.import_module("hypercorn.trio.worker_context").WorkerContext
    wrapper: Any = importlib.import_module("hypercorn.app_wrappers").ASGIWrapper
    config: Any = importlib.import_module("hypercorn.config").Config()
    config.errorlog = None
    sim.network(patch=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def serve(stream: Any) -> None:
        await server(wrapper(app), config, worker(None), {}, stream)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, sim.target(serve), 80, host="here"))
        async with await trio.open_tcp_stream("here", 80) as client:
            await client.send_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                while nursery.child_tasks:
                    await trio.sleep(1)


def test_hypercorn_never_ends_while_a_client_reads_nothing() -> None:
    """It sends under a shield without a deadline. A small answer fits on its way."""
    library("hypercorn", "0.18.0")
    cancel_everywhere(partial(hypercorn, size=2), schedules=1)
    with pytest.raises(
        ProgramFailed, match=r"Hang[^@]*tcp_server\.py:\d+ protocol_send"
    ):
        cancel_everywhere(partial(hypercorn, size=100_000), schedules=1)


def test_hypercorn_leaves_a_connection_open_after_a_stream_of_starlette() -> None:
    """It tells the app of the end before it closes the connection. starlette hears that
    and cancels the very task in which hypercorn is about to close it."""
    library("hypercorn", "0.18.0")
    library("starlette", "1.10.0")
    server: Any = importlib.import_module("hypercorn.trio.tcp_server").TCPServer
    worker: Any = importlib.import_module("hypercorn.trio.worker_context").WorkerContext
    wrapper: Any = importlib.import_module("hypercorn.app_wrappers").ASGIWrapper
    config: Any = importlib.import_module("hypercorn.config").Config()
    responses: Any = importlib.import_module("starlette.responses")

    async def program(sim: Sim, *, streams: bool) -> None:
        sim.network(patch=True)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def parts() -> Any:
                yield b"one"
                yield b"two"

            response = responses.PlainTextResponse("onetwo")
            if streams:
                response = responses.StreamingResponse(parts())
            await response(scope, receive, send)

        async def serve(stream: Any) -> None:
            await server(wrapper(app), config, worker(None), {}, stream).run()

        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(trio.serve_tcp, sim.target(serve), 80, host="here")
            )
            async with await trio.open_tcp_stream("here", 80) as client:
                head = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
                await client.send_all(head)
                got = b"".join([data async for data in client])
                assert b"two" in got
            nursery.cancel_scope.cancel()

    assert simulate(partial(program, streams=False)).error is None
    stuck = simulate(partial(program, streams=True)).error
    assert isinstance(stuck, Deadlock)
    assert "tcp_server.py:104 _read_data" in stuck.tree


# ---- mcp ---------------------------------------------------------------------------------


def test_mcp_turns_a_cancel_of_its_beginning_into_an_error() -> None:
    """The server in the process ends first, so what the client waits for is "closed",
    and that is raised in place of the cancel."""
    mcp = library("mcp", "2.3.0")
    server: Any = importlib.import_module("mcp.server.mcpserver").MCPServer

    async def program(sim: Sim) -> None:
        made = server("one")

        @made.tool()
        async def add(number: int) -> int:
            await trio.sleep(0.1)
            return number + 1

        async def call() -> None:
            async with mcp.Client(made) as client:
                await client.call_tool("add", {"number": 1})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
        with sim.within(60):
            await call()

    report = cancel_everywhere(program, schedules=1, check=False)
    told = {row.error.splitlines()[0] for row in report.rows}
    assert told == {"MCPError: Connection closed"}


# ---- What is clean -----------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["anyio", "trio"])
def test_a_connection_is_closed_that_is_cancelled_while_it_opens(name: str) -> None:
    """Several attempts may be under way, and one of them may just have won."""
    anyio = library("anyio", "4.16.0")

    async def sink(stream: Any) -> None:
        async for _ in stream:
            pass

    async def talk() -> None:
        if name == "anyio":
            async with await anyio.connect_tcp("here", 80) as stream:
                await stream.send(b"x")
        else:
            async with await trio.open_tcp_stream("here", 80) as one:
                await one.send_all(b"x")

    async def program(sim: Sim) -> None:
        sim.network(patch=True).delay = 0.01
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, sink, 80, host="here"))
            async with trio.open_nursery() as talkers:
                talkers.start_soon(sim.target(talk))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    assert cancel_everywhere(program).points > 80


def test_trio_asyncio_is_clean() -> None:
    """Futures, locks and tasks of asyncio that are cancelled from trio's side."""
    trio_asyncio = library("trio_asyncio", "0.16.0", distribution="trio-asyncio")
    asyncio = importlib.import_module("asyncio")

    async def program(sim: Sim) -> None:
        async with trio_asyncio.open_loop():
            lock = asyncio.Lock()

            async def hold() -> None:
                async with lock:
                    await asyncio.sleep(1)

            async def use() -> None:
                await trio_asyncio.aio_as_trio(hold)()

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(use)
            with sim.within(10):
                await use()

    assert cancel_everywhere(program, schedules=1).points > 50


def test_tricycle_is_clean() -> None:
    tricycle = library("tricycle", "0.4.1")

    async def program(sim: Sim) -> None:
        lock = tricycle.RWLock()

        async def hold(how: Any) -> None:
            async with how():
                await trio.sleep(1)

        async with tricycle.open_service_nursery() as nursery:
            for how in (lock.read_locked, lock.write_locked, lock.read_locked):
                nursery.start_soon(sim.target(hold), how)
        with sim.within(10):
            await hold(lock.write_locked)
            await hold(lock.read_locked)

    assert cancel_everywhere(program, schedules=2).points > 50


def test_trio_util_is_clean() -> None:
    util = library("trio_util", "0.8.0", distribution="trio-util")

    async def program(sim: Sim) -> None:
        value = util.AsyncValue(0)

        async def wait() -> None:
            async with util.move_on_when(value.wait_value, 3):
                await trio.sleep(100)

        async def count() -> None:
            for number in range(1, 4):
                await trio.sleep(1)
                value.value = number

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await count()
            await util.wait_any(partial(trio.sleep, 1), trio.sleep_forever)

    assert cancel_everywhere(program, schedules=2).points > 30


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
