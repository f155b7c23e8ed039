"""A backend for httpcore and what is made of it, on a network in memory.

The errors that it raises are those of the library that calls: forks of it have their own.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from inspect import currentframe
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from .network import Stream


class Backend:
    """What httpcore calls of a network."""

    async def open_tcp_stream(self, host: str, port: int) -> Stream:
        """Connect to what serves a port of a host."""
        raise NotImplementedError

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's protocol)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> BackendStream:
        """Connect as httpcore wants it, and raise the errors of the fork that calls."""
        library = _library()
        with _mapped(library, "Connect", timeout):
            stream = await self.open_tcp_stream(host, port)
            return BackendStream(stream, library)
        raise AssertionError

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's protocol)
        socket_options: Iterable[Any] | None = None,
    ) -> BackendStream:
        """Connect to what is served on port 0 of a host that is called as the path."""
        return await self.connect_tcp(path, 0, timeout)

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await trio.sleep(seconds)


class BackendStream:
    """A stream as httpcore wants it."""

    def __init__(self, stream: Stream, library: Any) -> None:
        self.stream = stream
        """The stream itself."""
        self._library = library

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's protocol)
    ) -> bytes:
        """Return bytes that have come, or none at their end."""
        with _mapped(self._library, "Read", timeout):
            return await self.stream.receive_some(max_bytes)
        raise AssertionError

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's protocol)
    ) -> None:
        """Send bytes."""
        if buffer:
            with _mapped(self._library, "Write", timeout):
                await self.stream.send_all(buffer)

    async def aclose(self) -> None:
        """Close the stream."""
        await self.stream.aclose()

    async def start_tls(
        self,
        ssl_context: Any,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's protocol)
    ) -> BackendStream:
        """Return the stream itself: nothing is encrypted here."""
        await trio.lowlevel.checkpoint()
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return whether the stream is readable; nothing else is known."""
        return self.stream.is_readable if info == "is_readable" else None


def _library() -> Any:
    """Return the package from which the backend is called, for its errors."""
    frame = currentframe()
    while frame is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    name = "" if frame is None else frame.f_globals["__name__"]
    return sys.modules.get(name.partition(".")[0])


@contextmanager
def _mapped(library: Any, what: str, seconds: float | None) -> Generator[None]:
    try:
        with trio.fail_after(seconds if seconds is not None else float("inf")):
            yield
    except trio.TooSlowError as error:
        raise getattr(library, f"{what}Timeout", TimeoutError)() from error
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        kind = getattr(library, f"{what}Error", None)
        if kind is None:
            raise
        raise kind(error) from error
