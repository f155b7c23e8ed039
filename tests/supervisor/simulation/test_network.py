"""The network in memory: trio's meaning, in virtual time."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from supervisor.simulation import Sim, simulate
from supervisor.simulation.network import WINDOW, Network, Stream


async def pair(network: Network) -> tuple[Stream, Stream]:
    (listener,) = await network.open_tcp_listeners(0)
    one = await network.open_tcp_stream("localhost", listener.port)
    other = await listener.accept()
    await listener.aclose()
    return one, other


async def clogged(network: Network) -> tuple[Stream, Stream]:
    one, other = await pair(network)
    await one.send_all(b"x" * WINDOW)
    await other.send_all(b"x" * WINDOW)
    return one, other


@pytest.mark.parametrize("clog", [False, True], ids=["open", "clogged"])
async def test_streams_pass_trios_own_checks(clog: bool) -> None:
    network = Network()
    await trio.testing.check_half_closeable_stream(
        partial(pair, network), partial(clogged, network) if clog else None
    )
    assert network.open == {}


def run(program: Any) -> Any:
    finished = simulate(program)
    assert finished.findings == []
    if finished.error is not None:
        raise finished.error
    return finished


async def echo(stream: Any) -> None:
    async for data in stream:
        await stream.send_all(data)


def test_a_server_is_started_when_it_takes_connections() -> None:
    async def program(sim: Sim) -> bytes:
        network = sim.network()
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(network.serve_tcp, echo, 0)
            async with await network.open_tcp_stream(
                listener.host, listener.port
            ) as one:
                await one.send_all(b"hello")
                await one.send_eof()
                got = b"".join([data async for data in one])
            nursery.cancel_scope.cancel()
        return got

    assert run(program).value == b"hello"


def test_a_host_that_nobody_serves_refuses() -> None:
    async def program(sim: Sim) -> None:
        network = sim.network()
        assert sim.network() is network
        with pytest.raises(ConnectionRefusedError, match="nobody serves far:80"):
            await network.open_tcp_stream("far", 80)
        (listener,) = await network.open_tcp_listeners(80, "far")
        with pytest.raises(OSError, match="far:80 is served already"):
            await network.open_tcp_listeners(80, "far")
        await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await network.open_tcp_stream("far", 80)

    run(program)


def test_a_delay_is_virtual() -> None:
    async def program(sim: Sim) -> float:
        network = sim.network()
        network.delay = 100
        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve_tcp, echo, 7)
            async with await network.open_tcp_stream("localhost", 7) as stream:
                await stream.send_all(b"x")
            nursery.cancel_scope.cancel()
        return trio.current_time()

    assert run(program).value == 200


def test_what_a_closed_end_does_is_told_apart() -> None:
    async def program(sim: Sim) -> None:
        one, other = await pair(sim.network())
        await one.send_all(b"left")
        await one.aclose()
        assert await other.receive_some() == b"left"
        assert await other.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await other.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await one.receive_some()
        await other.aclose()

    run(program)


def test_a_connection_that_nobody_accepts_is_closed_with_its_listener() -> None:
    async def program(sim: Sim) -> bytes:
        (listener,) = await sim.network().open_tcp_listeners(80)
        async with await sim.network().open_tcp_stream("localhost", 80) as stream:
            await listener.aclose()
            return await stream.receive_some()

    assert run(program).value == b""


def test_an_address_of_this_machine_is_localhost() -> None:
    """Served by one name and reached, refused, cut off and healed by the others."""

    async def program(sim: Sim) -> None:
        network = sim.network()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(network.serve_tcp, echo, 7))
            await nursery.start(partial(network.serve_tcp, echo, 8, host="0.0.0.0"))
            with pytest.raises(OSError, match="served already"):
                await network.open_tcp_listeners(7, "127.0.0.1")
            for host in ("127.0.0.1", "localhost"):
                for port in (7, 8):
                    async with await network.open_tcp_stream(host, port) as stream:
                        network.partition("127.0.0.1")
                        sim.at(3, partial(network.heal, "0.0.0.0"))
                        await stream.send_all(b"x")
                        with trio.move_on_after(2) as apart:
                            await stream.receive_some()
                        assert apart.cancelled_caught
                        assert await stream.receive_some() == b"x"
            nursery.cancel_scope.cancel()

    run = simulate(program)
    assert run.error is None and not run.findings


# ---- What goes wrong -------------------------------------------------------------------


def test_a_partition_holds_everything_back_until_it_heals() -> None:
    """Bytes, ends and connections; and nobody is told."""

    async def program(sim: Sim) -> list[object]:
        network = sim.network()
        seen: list[object] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(network.serve_tcp, echo, 7, host="far"))
            await nursery.start(partial(network.serve_tcp, echo, 7, host="near"))
            far = await network.open_tcp_stream("far", 7)
            near = await network.open_tcp_stream("near", 7)
            network.partition("far")
            sim.at(10, network.heal)
            for stream in (far, near):
                await stream.send_all(b"x")
                await stream.send_eof()
            for stream in (near, far):
                with trio.move_on_after(3) as tried:
                    await stream.receive_some()
                seen.append(tried.cancelled_caught)
            async with await network.open_tcp_stream("far", 7) as late:
                seen.append(trio.current_time())
                await late.send_all(b"y")
                seen.append(await late.receive_some())
            seen.append(await far.receive_some())
            seen.append(await far.receive_some())
            await far.aclose()
            await near.aclose()
            nursery.cancel_scope.cancel()
        return seen

    assert run(program).value == [False, True, 10, b"y", b"x", b""]


def test_a_link_of_this_machine_is_lost_by_its_address() -> None:
    async def program(sim: Sim) -> None:
        network = sim.network()
        (listener,) = await network.open_tcp_listeners(1)
        async with await network.open_tcp_stream("localhost", 1) as one:
            async with await listener.accept():
                network.lose("127.0.0.1")
                with pytest.raises(trio.BrokenResourceError):
                    await one.receive_some()

    run(program)


def test_a_lost_link_breaks_its_connections_only() -> None:
    async def program(sim: Sim) -> None:
        network = sim.network()
        (far,) = await network.open_tcp_listeners(1, "far")
        (near,) = await network.open_tcp_listeners(1, "near")
        one, two = [await network.open_tcp_stream(it, 1) for it in ("far", "near")]
        other = await far.accept()
        await one.send_all(b"on its way")
        network.lose("far")
        assert await other.receive_some() == b"on its way"
        for stream in (one, other):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"x")
        await two.send_all(b"x")
        for it in (one, two, other, far, near):
            await it.aclose()

    run(program)


async def echo_for(stream: Stream) -> None:
    try:
        await echo(stream)
    except trio.BrokenResourceError:
        pass


async def ask(stream: Stream) -> list[bytes | str]:
    """What comes back of two letters, and at last an end or an error."""
    got: list[bytes | str] = []
    try:
        await stream.send_all(b"ab")
        await stream.send_eof()
        while not got or got[-1] != b"":
            got.append(await stream.receive_some())
    except trio.BrokenResourceError:
        got.append("broken")
    return got


WHOLE: list[bytes | str] = [b"ab", b""]

CLIENT: dict[str, tuple[list[bytes | str], float]] = {
    "network.connect slow 1": (WHOLE, 5),
    "network.send reset 1": (["broken"], 0),
    "network.send cut 1": (["broken"], 0),
    "network.send lost 1": (["broken"], 0),
    "network.send half 1": (WHOLE, 0),
    "network.send bytes 1": ([b"a", b"b", b""], 0),
    "network.send apart 1": (WHOLE, 5),
    "network.receive reset 2": (["broken"], 0),
    "network.receive end 2": ([b""], 0),
    "network.receive byte 2": ([b"a", b"b", b""], 0),
    "network.receive slow 2": (WHOLE, 5),
}


@pytest.mark.parametrize("fault", CLIENT)
def test_each_fault_is_what_it_is_called(fault: str) -> None:
    async def program(sim: Sim) -> tuple[list[bytes | str], float]:
        network = sim.network()
        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve_tcp, echo_for, 7)
            async with await network.open_tcp_stream("localhost", 7) as stream:
                got = await ask(stream)
            nursery.cancel_scope.cancel()
        return got, trio.current_time()

    done = simulate(program, tape=f"fault {fault}")
    if done.error:
        raise done.error
    assert done.value == CLIENT[fault]


def test_a_half_close_ends_one_direction_only() -> None:
    async def program(sim: Sim) -> None:
        one, other = await pair(sim.network())
        await one.send_all(b"a")
        assert await other.receive_some() == b"a"
        assert await other.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await one.send_all(b"b")
        await other.send_all(b"c")
        assert await one.receive_some() == b"c"
        await one.aclose()
        await other.aclose()

    done = simulate(program, tape="fault network.send half 1")
    if done.error:
        raise done.error


# ---- Programs without a backend argument ----------------------------------------------


def test_trios_own_streams_run_on_the_network() -> None:
    async def program(sim: Sim) -> bytes:
        sim.network(patch=True)
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, echo, 443, host="far")
            await nursery.start(serve)
            async with await trio.open_tcp_stream("far", 443) as stream:
                assert stream.socket.getpeername() == ("10.0.0.2", 443)
                await stream.send_all(b"hello")
                await stream.send_eof()
                assert stream.socket.did_shutdown_SHUT_WR
                got = b"".join([data async for data in stream])
                with pytest.raises(trio.ClosedResourceError):
                    await stream.send_all(b"x")
            with pytest.raises(OSError, match="nobody serves near"):
                await trio.open_tcp_stream("near", 443)
            with pytest.raises(OSError, match="all attempts to connect"):
                await trio.open_tcp_stream("far", 80)
            nursery.cancel_scope.cancel()
        return got

    finished = run(program)
    assert finished.value == b"hello"
    assert simulate(program).digest == finished.digest


@pytest.mark.parametrize("clog", [False, True], ids=["open", "clogged"])
def test_a_socket_stream_passes_trios_own_checks(clog: bool) -> None:
    async def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        one = await trio.open_tcp_stream("127.0.0.1", port)
        other = await listener.accept()
        await listener.aclose()
        return one, other

    async def full() -> tuple[trio.SocketStream, trio.SocketStream]:
        one, other = await sockets()
        await one.send_all(b"x" * WINDOW)
        await other.send_all(b"x" * WINDOW)
        return one, other

    async def program(sim: Sim) -> None:
        sim.network(patch=True)
        await trio.testing.check_half_closeable_stream(sockets, full if clog else None)

    run(program)


async def says(fn: Any, *args: Any) -> object:
    """What a call returns, or the class and the number of what it raises."""
    try:
        return await fn(*args)
    except (OSError, trio.ClosedResourceError) as error:
        return type(error), getattr(error, "errno", None)


async def ends_of_sockets() -> list[object]:
    """What sockets say at their ends: where nothing is asked for, where another task
    closes them, and where they were closed before."""
    said: list[object] = []

    async def note(fn: Any, *args: Any) -> None:
        said.append(await says(fn, *args))

    box = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
    await box.bind(("127.0.0.1", 0))
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    one = trio.socket.socket()
    await note(one.recv, 0)
    await one.connect(("127.0.0.1", listener.socket.getsockname()[1]))
    other, _ = await listener.socket.accept()
    await note(one.recv, 0)
    await note(one.recv_into, bytearray())
    for socket, fn in {
        box: box.recvfrom,
        one: one.recv,
        listener.socket: lambda _: listener.socket.accept(),
    }.items():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, fn, 10)
            await trio.testing.wait_all_tasks_blocked()
            socket.close()
        await note(fn, 10)
        await note(fn, 0)
    other.close()
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="another number for each error")
def test_sockets_fail_as_trios_own_do() -> None:
    async def program(sim: Sim) -> list[object]:
        sim.network(patch=True)
        return await ends_of_sockets()

    assert run(program).value == trio.run(ends_of_sockets)


def test_a_run_leaves_nothing_of_its_sockets_behind() -> None:
    """Also one that fails."""

    async def program(sim: Sim) -> None:
        sim.network(patch=True)
        raise LookupError

    async def kind() -> str:
        with trio.socket.socket() as made:
            return type(made).__name__

    assert isinstance(simulate(program).error, LookupError)
    assert trio.run(kind) == "_SocketType"
    assert simulate(lambda sim: kind()).value == "_SocketType"


def test_who_polls_a_socket_is_told_whether_it_can_be_read() -> None:
    select = pytest.importorskip("select")
    if not hasattr(select, "poll"):
        pytest.skip("there is no poll")

    def polled(number: int) -> bool:
        asked = select.poll()
        asked.register(number, select.POLLIN)
        return bool(asked.poll(0))

    async def program(sim: Sim) -> list[bool]:
        sim.network(patch=True)
        seen: list[bool] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, echo, 7)
            async with await trio.open_tcp_stream("localhost", 7) as stream:
                seen.append(polled(stream.socket.fileno()))
                await stream.send_all(b"x")
                await trio.sleep(1)
                seen.append(polled(stream.socket.fileno()))
                await stream.receive_some()
                seen.append(polled(stream.socket.fileno()))
            assert stream.socket.fileno() == -1
            nursery.cancel_scope.cancel()
        return seen

    assert run(program).value == [False, True, False]


@pytest.mark.parametrize(
    ("tape", "expected"),
    [
        ("round robin", [b"1", b"2", b"3"]),
        ("fault network.datagram lost 2", [b"1", b"3"]),
        ("fault network.datagram twice 2", [b"1", b"2", b"2", b"3"]),
        ("fault network.datagram late 2", [b"1", b"3", b"2"]),
    ],
)
def test_datagrams_can_be_lost_come_twice_and_come_late(
    tape: str, expected: list[bytes]
) -> None:
    async def program(sim: Sim) -> list[bytes]:
        sim.network(patch=True)
        datagram = trio.socket.SOCK_DGRAM
        with (
            trio.socket.socket(type=datagram) as to,
            trio.socket.socket(type=datagram) as by,
        ):
            await to.bind(("127.0.0.1", 53))
            for data in (b"1", b"2", b"3"):
                await by.sendto(data, ("127.0.0.1", 53))
            got: list[bytes] = []
            with trio.move_on_after(60):
                while True:
                    data, address = await to.recvfrom(100)
                    assert address == by.getsockname()
                    got.append(data)
        return got

    assert simulate(program, tape=tape).value == expected


def test_clients_of_anyio_run_on_the_network() -> None:
    anyio: Any = pytest.importorskip("anyio")

    async def program(sim: Sim) -> bytes:
        sim.network(patch=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, echo, 7)
            async with await anyio.connect_tcp("localhost", 7) as stream:
                await stream.send(b"hello")
                got: bytes = await stream.receive()
            nursery.cancel_scope.cancel()
        return got

    assert run(program).value == b"hello"


# ---- httpcore ----------------------------------------------------------------------------


def test_errors_are_those_of_the_library_that_calls() -> None:
    httpcore = pytest.importorskip("httpcore2")

    async def program(sim: Sim) -> None:
        network = sim.network()
        async with httpcore.AsyncConnectionPool(network_backend=network) as pool:
            with pytest.raises(httpcore.ConnectError, match="nobody serves far:80"):
                await pool.request("GET", "http://far/")
            (listener,) = await network.open_tcp_listeners(80, "far")
            with pytest.raises(httpcore.ReadTimeout):
                timeout = {"timeout": {"read": 5.0}}
                await pool.request("GET", "http://far/", extensions=timeout)
            await listener.aclose()
        assert trio.current_time() == 5

    run(program)


def test_a_client_with_its_own_backend_keeps_its_connection() -> None:
    """It polls the socket to learn whether an idle one was closed."""
    httpx = pytest.importorskip("httpx2")

    async def answer(stream: Any) -> None:
        got = b""
        async for data in stream:
            got += data
            while b"\r\n\r\n" in got:
                _, _, got = got.partition(b"\r\n\r\n")
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def program(sim: Sim) -> list[str]:
        network = sim.network(patch=True)
        got: list[str] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, answer, 80, host="far"))
            async with httpx.AsyncClient(trust_env=False) as client:
                for _ in range(3):
                    response = await client.get("http://far/")
                    got.append(response.text)
                    assert {it.name for it in network.open} == {"far:80 #1"}
            nursery.cancel_scope.cancel()
        return got

    assert run(program).value == ["ok"] * 3
