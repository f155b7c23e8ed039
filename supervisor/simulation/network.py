"""A network in memory and in virtual time: streams and listeners. To httpcore, and what is
made of it, it is a backend.

It knows no host but those that are served in the same run. Streams and listeners have
the meaning of trio's own, and pass trio's own checks. What goes wrong is set on the
network (`Network.delay`, `Network.partition`, `Network.lose`), or put in by a sweep, one
call at a time.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from operator import index
from typing import ClassVar, NoReturn

import trio
from trio.abc import HalfCloseableStream
from trio.abc import Listener as AbstractListener

from ._httpcore import Backend, BackendStream
from ._steering import sites
from ._steering.checks import require_seconds
from ._steering.run import current_task
from ._steering.seams import SEAMS, Seams

__all__ = ["BackendStream", "Listener", "Network", "Stream"]

LOCAL = {"127.0.0.1": "localhost", "0.0.0.0": "localhost"}
"""The addresses of this machine: other names of one host."""

WINDOW = 65_536
"""So many bytes are on their way at most, before a sender waits."""

ALONE = 256
"""So many bytes come one by one, from what is on its way to the end of the send that goes
wrong so."""


def _named(host: str) -> str:
    return LOCAL.get(host, host)


class _Way:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        """Nothing more will be sent."""
        self.broken = False
        """Nobody will receive what is sent."""
        self.lost = False
        """The connection was lost, after what has come."""
        self.cut = False
        """The receiver sees an end that the sender has not made."""
        self.apart = False
        """Nothing comes through: the receiver sees nothing new, the sender no end."""
        self.alone = 0
        """So many of the next bytes come one by one."""
        self.by_fault = False
        """A fault was put in, so what follows from it is not the program's."""
        self._changed = trio.Event()

    def change(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        """Return when something has changed."""
        await self._changed.wait()


class Stream(HalfCloseableStream):
    """One end of a connection."""

    def __init__(
        self, out: _Way, into: _Way, network: Network, host: str, name: str
    ) -> None:
        self.host = host
        """The host that was connected to."""
        self.name = name
        """Which connection it is an end of."""
        self.got_by = ""
        """The task that has opened or accepted it, and where."""
        self.closed = False
        """This end was closed."""
        self._out = out
        self._into = into
        self._network = network
        self._sends = self._receives = False

    def __repr__(self) -> str:
        return f"<Stream {self.name}{' closed' if self.closed else ''}>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; wait while too many are on their way."""
        with self._only_sender():
            await self._network.pause()
            self._require_sending()
            left = memoryview(data)
            wrong = self._network.goes_wrong("network.send")
            if wrong in ("reset", "cut"):
                self._out.data += left[: len(left) // 2 if wrong == "cut" else 0]
                self._out.change()
                self.lose()
                self._require_sending()
            if wrong == "bytes":
                self._out.alone = min(len(self._out.data) + len(left), ALONE)
            if wrong == "apart":
                self._network.part_for_a_while(self.host)
            while left:
                left = left[await self.send_some(left) :]
            if wrong == "lost":
                self.lose()
            if wrong == "half":
                self._out.cut = self._out.broken = self._out.by_fault = True
                self._out.change()

    async def send_some(self, data: memoryview) -> int:
        """Wait for room, send what there is room for, and return how much it was."""
        while True:
            self._require_sending()
            room = WINDOW - len(self._out.data)
            if room > 0:
                self._out.data += data[:room]
                self._out.change()
                return min(room, len(data))
            await self._out.wait()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until bytes can be sent."""
        with self._only_sender():
            await trio.lowlevel.checkpoint()
            while True:
                if self.closed or self._out.ended:
                    raise trio.ClosedResourceError("this end was closed")
                if self._out.broken or len(self._out.data) < WINDOW:
                    return
                await self._out.wait()

    async def send_eof(self) -> None:
        """Send the end; receiving goes on."""
        with self._only_sender():
            await trio.lowlevel.checkpoint()
            if self.closed:
                raise trio.ClosedResourceError("this end was closed")
            self.end()

    def end(self) -> None:
        """Send the end at once."""
        self._out.ended = True
        self._out.change()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes that have come, or none at their end."""
        if max_bytes is not None and index(max_bytes) < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if self._receives:
            raise trio.BusyResourceError("another task receives from this stream")
        self._receives = True
        try:
            await self._network.pause()
            wrong = self._network.goes_wrong("network.receive")
            way = self._into
            if wrong == "reset":
                way.data.clear()
                self.lose()
            if wrong == "end":
                way.data.clear()
                way.cut = way.broken = way.by_fault = True
                way.change()
            if wrong == "slow":
                await trio.sleep(self._network.slow)
            while True:
                if self.closed:
                    raise trio.ClosedResourceError("this end was closed")
                if way.apart:
                    pass
                elif way.data:
                    alone = wrong == "byte" or way.alone
                    got = bytes(way.data[: 1 if alone else max_bytes])
                    del way.data[: len(got)]
                    way.alone = max(0, way.alone - len(got))
                    way.change()
                    return got
                elif way.lost:
                    self._raise_broken(way, "the connection was lost")
                elif way.ended or way.cut:
                    return b""
                await way.wait()
        finally:
            self._receives = False

    def close(self) -> None:
        """Close this end at once. The other one sees the end, and cannot send."""
        if self.closed:
            return
        self.closed = True
        self._network.drop(self)
        self._out.ended = self._into.broken = True
        self._into.data.clear()
        self._out.change()
        self._into.change()

    async def aclose(self) -> None:
        """Close this end, and take a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    @property
    def is_readable(self) -> bool:
        """Whether a receive would return at once."""
        way = self._into
        return not way.apart and bool(way.data or way.ended or way.cut or way.lost)

    def lose(self) -> None:
        """Lose the connection for both; what is on its way comes before that."""
        for way in (self._out, self._into):
            way.lost = way.broken = way.by_fault = True
            way.change()

    def part(self, *, apart: bool) -> None:
        """Let nothing through in either direction, or all again."""
        for way in (self._out, self._into):
            way.apart = apart
            way.change()

    def _raise_broken(self, way: _Way, what: str) -> NoReturn:
        error = trio.BrokenResourceError(what)
        raise self._network.put_in(error) if way.by_fault else error

    def _require_sending(self) -> None:
        if self.closed or self._out.ended:
            raise trio.ClosedResourceError("this end was closed")
        if self._out.broken and not self._out.apart:
            lost = self._out.lost
            what = "the connection was lost" if lost else "the other end was closed"
            self._raise_broken(self._out, what)

    @contextmanager
    def _only_sender(self) -> Generator[None]:
        if self._sends:
            raise trio.BusyResourceError("another task sends on this stream")
        self._sends = True
        try:
            yield
        finally:
            self._sends = False


class Listener(AbstractListener[Stream]):
    """Takes the connections of one host and port."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self.host = host
        """The host that it serves."""
        self.port = port
        """Its port."""
        self._network = network
        self._come: deque[Stream] = deque()
        self._changed = trio.Event()
        self._closed = False

    async def accept(self) -> Stream:
        """Return the next connection, when there is one."""
        await trio.lowlevel.checkpoint()
        while not self._come:
            if self._closed:
                raise trio.ClosedResourceError("this listener was closed")
            await self._changed.wait()
        stream = self._come.popleft()
        self._network.add(stream)
        return stream

    async def aclose(self) -> None:
        """Refuse connections from now on, and take a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._closed = True
        self._network.forget(self)
        while self._come:
            self._come.popleft().close()
        self._changed.set()

    def add(self, stream: Stream) -> None:
        """Let a connection be accepted."""
        self._come.append(stream)
        self._changed.set()
        self._changed = trio.Event()


Handler = Callable[[Stream], Awaitable[object]]


class Network(Backend):
    """The hosts of one run, and the connections to them."""

    seams: ClassVar[Mapping[str, Mapping[str, str]]] = SEAMS
    """What can go wrong with each operation, and what that means."""

    def __init__(
        self,
        seams: Seams | None = None,
        at: Callable[[float, Callable[[], object]], object] | None = None,
    ) -> None:
        self.delay = 0.0
        """Virtual seconds that each connection, send and receive takes before it begins."""
        self.slow = 5.0
        """Virtual seconds of a call that goes wrong by being slow, or by a partition."""
        self.open: dict[Stream, None] = {}
        """The streams that somebody has got and nobody has closed."""
        self._seams = seams
        self._at = at
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ends: dict[Stream, None] = {}  # Both of each connection.
        self._apart: set[str] = set()
        self._healed = trio.Event()
        self._count = 0

    def __setattr__(self, name: str, value: object) -> None:
        """Set ``delay`` or ``slow``. Raises AttributeError for another name, and
        TypeError or ValueError for what is no time."""
        if name in ("delay", "slow"):
            require_seconds(name, value)
        elif name != "open" and not name.startswith("_"):
            text = f"a network has no {name!r}; what can be set is delay and slow"
            raise AttributeError(text)
        super().__setattr__(name, value)

    # ---- What goes wrong --------------------------------------------------------------

    def partition(self, *hosts: str) -> None:
        """Cut hosts off, all that are served if none is named.

        Nothing comes from them or to them, and nobody is told: who receives or connects
        waits, and what is sent is kept on its way. `heal` lets everything through.
        """
        served = tuple(dict.fromkeys(host for host, _ in self._listeners))
        hosts = tuple(map(_named, hosts)) or served
        self._apart.update(hosts)
        for stream in self._of(hosts):
            stream.part(apart=True)

    def heal(self, *hosts: str) -> None:
        """Let everything through that a `partition` has held back."""
        hosts = tuple(map(_named, hosts)) or tuple(self._apart)
        self._apart.difference_update(hosts)
        for stream in self._of(hosts):
            stream.part(apart=False)
        self._healed.set()
        self._healed = trio.Event()

    def lose(self, *hosts: str) -> None:
        """Lose all connections to hosts, to all if none is named.

        Both ends get BrokenResourceError, after what has come already.
        """
        hosts = tuple(map(_named, hosts)) or tuple(it.host for it in self._ends)
        for stream in self._of(hosts):
            stream.lose()

    def part_for_a_while(self, host: str) -> None:
        """Cut a host off, until so many virtual seconds are over as `slow` says."""
        assert self._at is not None
        self.partition(host)
        self._at(self.slow, lambda: self.heal(host))

    def _of(self, hosts: tuple[str, ...]) -> list[Stream]:
        return [stream for stream in self._ends if stream.host in hosts]

    # ---- What trio has ----------------------------------------------------------------

    async def serve_tcp(  # noqa: ASYNC128 (`trio.serve_listeners` says it is started)
        self,
        handler: Handler,
        port: int,
        host: str = "localhost",
        *,
        handler_nursery: trio.Nursery | None = None,
        task_status: trio.TaskStatus[list[Listener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Call ``handler`` with each connection to a host and port, in a task of its own,
        as `trio.serve_tcp` does.

        Connections are closed when their handler ends. Under ``nursery.start`` it is
        started when connections are taken. Raises OSError if the port is taken.
        """
        listeners = await self.open_tcp_listeners(port, host)
        await trio.serve_listeners(
            handler, listeners, handler_nursery=handler_nursery, task_status=task_status
        )

    async def open_tcp_listeners(
        self, port: int, host: str = "localhost"
    ) -> list[Listener]:
        """Return the one listener of a host and port, for ``trio.serve_listeners``.

        Port 0 is one that is free. Raises OSError if the port is taken.
        """
        await trio.lowlevel.checkpoint()
        if port == 0:
            port = 49_152
            while (_named(host), port) in self._listeners:
                port += 1
        return [self.listen(host, port)]

    def listen(self, host: str, port: int) -> Listener:
        """Return the listener of a host and port; OSError if the port is taken."""
        host = _named(host)
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is served already")
        listener = self._listeners[host, port] = Listener(self, host, port)
        return listener

    def serves(self, host: str) -> bool:
        """Tell whether anybody serves a port of a host."""
        return any(served == _named(host) for served, _ in self._listeners)

    async def open_tcp_stream(self, host: str, port: int) -> Stream:
        """Return a new connection to what is served.

        Raises ConnectionRefusedError where nobody serves.
        """
        host = _named(host)
        await self.pause()
        wrong = self.goes_wrong("network.connect")
        if wrong == "refused":
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port}")
            raise self.put_in(refused)
        if wrong == "unreachable":
            raise self.put_in(OSError(errno.ENETUNREACH, f"{host}:{port}"))
        if wrong == "slow":
            await trio.sleep(self.slow)
        while host in self._apart:
            await self._healed.wait()
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"nobody serves {host}:{port}"
            )
        self._count += 1
        name = f"{host}:{port} #{self._count}"
        one, other = _Way(), _Way()
        stream = Stream(one, other, self, host, name)
        there = Stream(other, one, self, host, name)
        self._ends |= {stream: None, there: None}
        listener.add(there)
        self.add(stream)
        return stream

    async def pause(self) -> None:
        """Take a checkpoint, which takes as long as the delay."""
        await trio.sleep(self.delay)

    def goes_wrong(self, operation: str) -> str:
        """Return how a call goes wrong that is being made; "" if it does not."""
        return self._seams.next(operation) if self._seams else ""

    def sends_datagram(self, deliver: Callable[[], object]) -> int:
        """Return how often a datagram comes at once; ``deliver`` is for one that comes
        later."""
        wrong = self.goes_wrong("network.datagram")
        if wrong == "late":
            assert self._at is not None
            self._at(self.slow, deliver)
        return {"": 1, "twice": 2}.get(wrong, 0)

    def put_in(self, error: BaseException) -> BaseException:
        """Return an error that is not the program's."""
        return self._seams.put_in(error) if self._seams else error

    def add(self, stream: Stream) -> None:
        """Remember that somebody has got a stream."""
        task, where = sites.asked_by(current_task())
        by = task.name.rpartition(".")[2] if task is not None else "a timer"
        stream.got_by = f"{by} at {where or 'trio'}"
        self.open[stream] = None

    def drop(self, stream: Stream) -> None:
        """Forget a stream that is closed."""
        self.open.pop(stream, None)
        self._ends.pop(stream, None)

    def forget(self, listener: Listener) -> None:
        """Refuse connections to what a listener has served."""
        self._listeners.pop((listener.host, listener.port), None)


BackendStream.__module__ = __name__  # Where users import it from.
