"""Sockets of a network in memory, for who asks trio for one: ``trio.open_tcp_stream``,
``trio.serve_tcp``, ``trio.socket`` and what is built on them.

trio has a place for this in each of its runs, so nothing is replaced, and nothing of it
is left when the run has ended. There is IPv4, and paths as addresses; and there are
datagrams, which can be lost, come twice, or come late. Sockets that a program makes
from those of the standard library are real ones.
"""

from __future__ import annotations

import errno
import os
import socket as stdlib
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

import trio
from trio.abc import HostnameResolver, SocketFactory
from trio.socket import SocketType

from .network import LOCAL, Listener, Network, Stream

BOX = 64
"""So many datagrams wait for who receives; what comes then is lost."""

Address = Any
"""As the standard library has it: host and port, or a path."""


def use(network: Network) -> None:
    """Give the sockets of a network to who asks trio for one, until the run ends."""
    names = _Names(network)
    trio.socket.set_custom_hostname_resolver(names)
    trio.socket.set_custom_socket_factory(_Factory(network, names))


class _Names(HostnameResolver):
    """Gives each host an address, in the order in which they are asked for."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._hosts = dict(LOCAL)  # {address: host}

    def host(self, address: Address) -> tuple[str, int]:
        """Return the host and the port that an address means to the network."""
        if isinstance(address, (str, bytes)):
            return os.fsdecode(address), 0
        host: str = address[0]
        return self._hosts.get(host, host), address[1]

    def address(self, host: str) -> str:
        """Return the address of a host."""
        for address, name in self._hosts.items():
            if name == host:
                return address
        address = f"10.0.0.{len(self._hosts)}"
        self._hosts[address] = host
        return address

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        await trio.lowlevel.checkpoint()
        name = (host or b"localhost").decode()
        if not flags & stdlib.AI_PASSIVE and not self._network.serves(name):
            raise stdlib.gaierror(stdlib.EAI_NONAME, f"nobody serves {name}")
        kind = type or stdlib.SOCK_STREAM
        return [(stdlib.AF_INET, kind, 0, "", (self.address(name), int(port or 0)))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        await trio.lowlevel.checkpoint()
        host, port = self.host(sockaddr)
        return host, str(port)


class _Factory(SocketFactory):
    def __init__(self, network: Network, names: _Names) -> None:
        self._world = _World(network, names)

    def socket(self, family: int = 2, type: int = 1, proto: int = 0) -> Socket:
        if family == stdlib.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "the network in memory has no IPv6")
        return Socket(self._world, family, type, proto)


class _World:
    """What the sockets of one run share."""

    def __init__(self, network: Network, names: _Names) -> None:
        self.network = network
        self.names = names
        self.boxes: dict[tuple[str, int], Socket] = {}
        """Who receives datagrams, by host and port."""
        self.last_port = 49_151

    def port(self) -> int:
        """Return a port that nobody else has got."""
        self.last_port += 1
        return self.last_port


class Socket(SocketType):
    """One socket, with the meaning of trio's own."""

    def __init__(self, world: _World, family: int, type: int, proto: int) -> None:
        super().__init__()
        self._world = world
        self._kind = (
            stdlib.AddressFamily(family),
            stdlib.SocketKind(type & ~_FLAGS),
            proto,
        )
        self._name: Address = ("0.0.0.0", 0)
        self._peer: Address = None
        self._stream: Stream | None = None
        self._listener: Listener | None = None
        self._box: deque[tuple[bytes, Address]] = deque()
        self._changed = trio.Event()
        self._closed = self._ended = False
        self._pipe: tuple[int, int] | None = None

    @property
    def _sock(self) -> Socket:
        """anyio looks here for what the standard library's socket would tell."""
        return self

    # ---- What it is -------------------------------------------------------------------

    @property
    def family(self) -> stdlib.AddressFamily:
        return self._kind[0]

    @property
    def type(self) -> stdlib.SocketKind:
        return self._kind[1]

    @property
    def proto(self) -> int:
        return self._kind[2]

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        return self._ended

    def getsockname(self) -> Address:
        return self._name

    def getpeername(self) -> Address:
        if self._peer is None:
            raise OSError(errno.ENOTCONN, "this socket is not connected")
        return self._peer

    def getsockopt(self, level: int, optname: int, buflen: int | None = None) -> Any:
        if optname == getattr(stdlib, "SO_ACCEPTCONN", None):
            return int(self._listener is not None)
        return 0 if buflen is None else bytes(buflen)

    def setsockopt(
        self, level: int, optname: int, value: Any, optlen: int | None = None
    ) -> None:
        self._require_open()

    def get_inheritable(self) -> bool:
        return False

    def set_inheritable(self, inheritable: bool) -> None: ...

    def is_readable(self) -> bool:
        if self._stream is not None:
            return self._stream.is_readable
        return bool(self._box)

    def fileno(self) -> int:
        """Return a number for who polls: one that can be read if this socket can be."""
        if self._closed:
            return -1
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
        try:
            os.read(self._pipe[0], 1)
        except BlockingIOError:
            pass
        if self.is_readable():
            os.write(self._pipe[1], b"x")
        return self._pipe[0]

    # ---- Its beginning and its end ------------------------------------------------------

    async def bind(self, address: Address) -> None:
        await trio.lowlevel.checkpoint()
        self._require_open()
        if not isinstance(address, (str, bytes)):
            address = (address[0], address[1] or self._world.port())
        self._name = address
        if self.type == stdlib.SOCK_DGRAM:
            self._take(self._world.names.host(address))

    def _take(self, at: tuple[str, int]) -> None:
        if at in self._world.boxes:
            raise OSError(errno.EADDRINUSE, f"{at[0]}:{at[1]} is taken already")
        self._world.boxes[at] = self

    def listen(self, backlog: int = 128) -> None:
        self._require_open()
        host, port = self._world.names.host(self._name)
        self._listener = self._world.network.listen(host, port)

    async def accept(self) -> tuple[SocketType, Address]:
        self._require_open()
        if self._listener is None:
            raise OSError(errno.EINVAL, "this socket does not listen")
        stream = await self._listener.accept()
        peer = ("127.0.0.1", self._world.port())
        return self._connected(stream, self._name, peer), peer

    async def connect(self, address: Address) -> None:
        self._require_open()
        if self.type == stdlib.SOCK_DGRAM:
            await trio.lowlevel.checkpoint()
            self._bound()
        else:
            host, port = self._world.names.host(address)
            self._stream = await self._world.network.open_tcp_stream(host, port)
            if self._closed:
                self._stream.close()
                raise trio.ClosedResourceError("this socket was closed")
            self._name = ("127.0.0.1", self._world.port())
        self._peer = address

    def _connected(self, stream: Stream, name: Address, peer: Address) -> Socket:
        made = Socket(self._world, *self._kind)
        made._stream, made._name, made._peer = stream, name, peer
        return made

    def shutdown(self, flag: int) -> None:
        self._require_open()
        if self._stream is None:
            raise OSError(errno.ENOTCONN, "this socket is not connected")
        if flag in (stdlib.SHUT_WR, stdlib.SHUT_RDWR):
            self._ended = True
            self._stream.end()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        if self._listener is not None:
            self._listener.close()
        for at, box in list(self._world.boxes.items()):
            if box is self:
                del self._world.boxes[at]
        for number in self._pipe or ():
            os.close(number)
        self._wake()

    def detach(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a socket in memory has nothing to detach")

    def dup(self) -> SocketType:
        raise OSError(errno.EOPNOTSUPP, "a socket in memory has one owner")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # ---- Bytes and datagrams ------------------------------------------------------------

    async def wait_writable(self) -> None:
        if self._stream is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._stream.wait_send_all_might_not_block()

    async def recv(self, buflen: int, flags: int = 0, /) -> bytes:
        if buflen == 0:  # The standard library asks the system for nothing then.
            await trio.lowlevel.checkpoint()
            return b""
        self._require_open()
        if self.type == stdlib.SOCK_DGRAM:
            return (await self.recvfrom(buflen))[0]
        with _as_sockets_do():
            return await self._connection().receive_some(buflen)
        raise AssertionError

    async def recv_into(
        self, buffer: Any, nbytes: int | None = None, flags: int = 0
    ) -> int:
        got = await self.recv(nbytes or len(buffer))
        memoryview(buffer)[: len(got)] = got
        return len(got)

    async def send(self, data: Any, flags: int = 0, /) -> int:
        self._require_open()
        if self.type == stdlib.SOCK_DGRAM:
            return await self.sendto(data, self.getpeername())
        with _as_sockets_do():
            # As one send of the network, so that its faults come here too.
            await self._connection().send_all(data)
        return len(data)

    async def recvfrom(self, bufsize: int, flags: int = 0, /) -> tuple[bytes, Address]:
        await trio.lowlevel.checkpoint()
        self._require_open()
        while not self._box:
            await self._changed.wait()
            if self._closed:
                raise trio.ClosedResourceError("another task closed this socket")
        data, address = self._box.popleft()
        return data[:bufsize], address

    async def sendto(self, data: Any, *flags_and_address: Any) -> int:
        self._require_open()
        self._bound()
        network, address = self._world.network, flags_and_address[-1]
        await network.pause()
        times = network.sends_datagram(lambda: self._deliver(bytes(data), address))
        for _ in range(times):
            self._deliver(bytes(data), address)
        return len(data)

    def _deliver(self, data: bytes, address: Address) -> None:
        box = self._world.boxes.get(self._world.names.host(address))
        if box is not None and len(box._box) < BOX:
            box._box.append((data, self._name))
            box._wake()

    def _bound(self) -> None:
        """Let answers come back to one who has not asked for a port."""
        if self._name[1] == 0:
            self._name = ("127.0.0.1", self._world.port())
            self._take(self._world.names.host(self._name))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _connection(self) -> Stream:
        if self._stream is None:
            raise OSError(errno.ENOTCONN, "this socket is not connected")
        return self._stream

    def _require_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "this socket was closed")


_FLAGS = getattr(stdlib, "SOCK_NONBLOCK", 0) | getattr(stdlib, "SOCK_CLOEXEC", 0)


@contextmanager
def _as_sockets_do() -> Generator[None]:
    try:
        yield
    except trio.BrokenResourceError as error:
        raise ConnectionResetError(errno.ECONNRESET, str(error)) from error
