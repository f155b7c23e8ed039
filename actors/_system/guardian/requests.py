"""The bytes with which a runtime asks the guardian to start a tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


class Request:
    """What to start as a tree."""

    def __init__(
        self,
        marker: bytes,
        mark: int,
        cwd: bytes,
        argv: list[bytes],
        *,
        writable: bool,
        errors: bool,
        terminal: tuple[int, int] | None,
        nice: int | None,
        limits: list[tuple[str, int]],
    ) -> None:
        self.marker = marker
        self.mark = mark
        """See `proc.set_mark`."""
        self.cwd = cwd
        self.argv = argv
        self.writable = writable
        """Whether the input is a pipe."""
        self.errors = errors
        """Whether stderr is a pipe of its own."""
        self.terminal = terminal
        """Rows and columns."""
        self.nice = nice
        self.limits = limits
        """By name, in lower case and without ``RLIMIT_``."""


def encode_environment(env: Mapping[str, str]) -> bytes:
    """Return the variables as bytes.

    Raises:
        ValueError: if a name is empty or holds ``=``, or anything a NUL.
    """
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a variable name: {name!r}")
    block = os.fsencode("\0".join([f"{name}={value}" for name, value in env.items()]))
    if block.count(b"\0") != max(0, len(env) - 1):
        raise ValueError("a variable contains a NUL")
    return block


def decode_environment(block: bytes) -> dict[bytes, bytes]:
    """Return the variables that `encode_environment` was given."""
    if not block:
        return {}
    return dict([variable.split(b"=", 1) for variable in block.split(b"\0")])


def encode_request(
    argv: Iterable[str],
    cwd: str,
    marker: str,
    mark: int,
    env: bytes,
    *,
    writable: bool = False,
    errors: bool = False,
    terminal: tuple[int, int] | None = None,
    nice: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> bytes:
    """Return the bytes that ask for a tree.

    Raises:
        ValueError: if ``argv`` is empty, or a text holds a NUL.
    """
    arguments = list(argv)
    if not arguments:
        raise ValueError("argv is empty")
    fields = [
        marker,
        str(mark),
        cwd,
        "pipe" if writable else "null",
        "pipe" if errors else "stdout",
        " ".join(map(str, terminal or ())),
        "" if nice is None else str(nice),
        " ".join(f"{name}={value}" for name, value in (limits or {}).items()),
        *arguments,
    ]
    head = os.fsencode("\0".join(fields))
    if head.count(b"\0") != len(fields) - 1:
        raise ValueError("an argument, the directory or the marker contains a NUL")
    length = len(head).to_bytes(8, "big") + len(env).to_bytes(8, "big")
    return length + head + env


def split_request(data: bytes | bytearray) -> tuple[bytes, bytes, bytes] | None:
    """Return the head, the variables and what follows; None if more must come."""
    if len(data) < 16:
        return None
    middle = 16 + int.from_bytes(data[:8], "big")
    end = middle + int.from_bytes(data[8:16], "big")
    if len(data) < end:
        return None
    return bytes(data[16:middle]), bytes(data[middle:end]), bytes(data[end:])


def decode_request(head: bytes) -> Request:
    """Return the request of which `split_request` returned the head."""
    marker, mark, cwd, stdin, stderr, terminal, nice, limits, *argv = head.split(b"\0")
    size = tuple(map(int, terminal.split()))
    pairs = [limit.decode().split("=") for limit in limits.split()]
    return Request(
        marker,
        int(mark),
        cwd,
        argv,
        writable=stdin == b"pipe",
        errors=stderr == b"pipe",
        terminal=(size[0], size[1]) if size else None,
        nice=int(nice) if nice else None,
        limits=[(name, int(value)) for name, value in pairs],
    )
