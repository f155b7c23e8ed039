"""The network in memory: trio's meaning, in virtual time."""

from __future__ import annotations

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


async def echo(stream: Stream) -> None:
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
