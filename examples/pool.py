"""Is a connection pool right when a request is cancelled? One run for each moment.

    python examples/pool.py              # httpcore2
    python examples/pool.py httpcore     # version 1.0.9 loses its only connection

The program is an ordinary trio program: two servers in memory, a pool with room for one
connection, and three requests, of which one is cancelled. What must hold is the last
block: the pool still works. Needs one of the two libraries.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

import trio

from supervisor.simulation import Sim, SimulationFailed, cancel_everywhere
from supervisor.simulation.network import Stream


async def serve(stream: Stream) -> None:
    """Answer each request with two letters."""
    got = b""
    async for data in stream:
        got += data
        while b"\r\n\r\n" in got:
            _, _, got = got.partition(b"\r\n\r\n")
            await trio.sleep(0.05)
            try:
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            except trio.BrokenResourceError:
                return  # Who has asked is gone.


async def get(pool: Any, host: str) -> None:
    response = await pool.request("GET", f"http://{host}/")
    assert response.content == b"ok"


async def program(sim: Sim, library: Any) -> None:
    network = sim.network()
    network.delay = 0.01
    async with trio.open_nursery() as nursery:
        for host in ("a", "b"):
            await nursery.start(partial(network.serve_tcp, serve, 80, host))
        options = {"network_backend": network, "max_connections": 1}
        async with library.AsyncConnectionPool(**options) as pool:
            async with trio.open_nursery() as clients:
                clients.start_soon(get, pool, "a")
                clients.start_soon(get, pool, "a")
                clients.start_soon(sim.target(get), pool, "b")
            with sim.within(60):
                await get(pool, "a")
        nursery.cancel_scope.cancel()


def main(name: str = "httpcore2") -> None:
    try:
        library = importlib.import_module(name)
    except ModuleNotFoundError:
        print(f"{name} is not installed")
        return
    try:
        print(cancel_everywhere(partial(program, library=library)))
    except SimulationFailed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
