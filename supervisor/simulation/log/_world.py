"""What a runtime does to the world, seen through its `Env`: processes and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast

from actors.env import Env, Files, Processes
from actors.hosting import Process, ProcessExit

from ...tree import Event
from . import _kinds as kinds  # pyright: ignore[reportPrivateUsage]


class Add(Protocol):
    """Writes something down."""

    def __call__(self, kind: type[Event], /, *fields: object) -> None: ...


def seen_through(env: Env, add: Add) -> Env:
    """Return a world that is ``env`` and tells what is done to it."""
    return Env(
        clock=env.clock,
        ids=env.ids,
        processes=cast("Processes", _Processes(env.processes, add)),
        files=cast("Files", _Files(env.files, add)),
    )


class _Seen:
    """What it does not have itself is that of what it looks at."""

    def __init__(self, inner: Any, add: Add) -> None:
        self._inner = inner
        self._add = add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Processes(_Seen):
    async def spawn(self, *args: Any, marker: str, **options: Any) -> Process:
        process = await self._inner.spawn(*args, marker=marker, **options)
        self._add(kinds.ProcessStarted, marker, process.pid)
        return cast("Process", _Process(process, self._add, marker))


class _Process(_Seen):
    def __init__(self, inner: Process, add: Add, run_id: str) -> None:
        super().__init__(inner, add)
        self._of = run_id, inner.pid
        self._told = set[type[Event]]()

    def terminate(self) -> None:
        self._add(kinds.ProcessSignalled, *self._of, "term")
        self._inner.terminate()

    def kill(self) -> None:
        self._add(kinds.ProcessSignalled, *self._of, "kill")
        self._inner.kill()

    async def receive_or_exit(self, *args: Any) -> bytes | ProcessExit | None:
        news: bytes | ProcessExit | None = await self._inner.receive_or_exit(*args)
        if isinstance(news, ProcessExit):
            self._tell_exit(news)
            if self._inner.is_over:
                self._once(kinds.ProcessGone)
        return news

    async def wait_exit(self) -> ProcessExit:
        exit: ProcessExit = await self._inner.wait_exit()
        self._tell_exit(exit)
        return exit

    def _tell_exit(self, exit: ProcessExit) -> None:
        self._once(kinds.ProcessExited, exit.code, exit.signal)

    async def wait_gone(self) -> None:
        await self._inner.wait_gone()
        self._once(kinds.ProcessGone)

    def _once(self, kind: type[Event], *fields: object) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._add(kind, *self._of, *fields)


class _Files(_Seen):
    def create_output(self, path: Path) -> _Output:
        return self._opened(self._inner.create_output(path))

    def open_output(self, path: Path) -> _Output:
        return self._opened(self._inner.open_output(path))

    def _opened(self, file: Any) -> _Output:
        self._add(kinds.OutputOpened, file.path.stem)
        return _Output(file, self._add)


class _Output(_Seen):
    _written = 0
    _rotated = False
    _is_closed = False

    async def append(self, data: bytes) -> None:
        await self._inner.append(data)
        self._written += len(data)

    def rotate(self, older: Path) -> int:
        self._rotated = True
        size: int = self._inner.rotate(older)
        return size

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if not self._is_closed:
                self._is_closed = True
                name = self._inner.path.stem
                self._add(kinds.OutputClosed, name, self._written, self._rotated)
