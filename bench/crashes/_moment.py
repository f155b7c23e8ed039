"""One moment: programs that are started, killed and asked what they have found."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NoReturn

import attrs
import trio

from ._blow import JOURNAL
from ._host import VARIABLE, Say, live
from ._judge import Found, Life, Line, judge
from ._plan import Blow, Plan, Whole

_LATE: Final = 20.0
"""Seconds after which a program is killed that was to die at a write it never made."""
_STUCK: Final = 90.0
"""Seconds after which a program is killed that was to end by itself."""
_GONE: Final = 20.0
"""Seconds in which what it had started must be gone."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of one moment."""

    plan: Plan
    hits: tuple[str, ...]
    """Where it died, each time."""
    wrong: tuple[str, ...]
    tasks: int
    notes: int


def run_moment(plan: Plan, keep: Path | None = None) -> Outcome:
    """Run one moment. If something was wrong, its directory is copied to ``keep``."""
    directory = Path(tempfile.mkdtemp(prefix="bench-crashes-"))
    token = f"{os.getpid()}-{plan.seed}-{plan.number}"
    try:
        begin = partial(_begin, directory, plan, token)
        lives = [begin("first", plan.first)]
        left = _survivors(token, _GONE)
        if plan.second is not None:
            lives.append(begin("second", plan.second))
            left += _survivors(token, _GONE)
        lives += [begin("last", None), begin("look", None)]
        left += _survivors(token, _GONE)
        found = Found(
            lives=lives,
            outputs={
                it.name.removesuffix(".output"): it.read_bytes()
                for it in directory.glob("*.output")
                if not it.is_symlink()  # That of an agent leads to its transcript.
            },
            journal=(directory / JOURNAL).read_bytes(),
            survivors=left,
            mode=plan.mode,
        )
        wrong = judge(found)
        if wrong and keep is not None:
            where = keep / f"{plan.seed}-{plan.number}"
            shutil.copytree(directory, where, symlinks=True, dirs_exist_ok=True)
            said = [{"part": it.part, "lines": it.lines} for it in lives]
            (where / "said.json").write_text(json.dumps(said, indent=1))
        return Outcome(
            plan=plan,
            hits=tuple(hit for life in lives if (hit := _hit(life)) is not None),
            wrong=tuple(wrong),
            tasks=len(found.launched()),
            notes=len(found.seen()),
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_whole(seed: int) -> Whole:
    """Run the 40 tasks, and kill nothing before they are done."""
    directory = Path(tempfile.mkdtemp(prefix="bench-crashes-"))
    token = f"{os.getpid()}-{seed}-whole"
    plan = Plan(
        seed=seed,
        number=-1,
        mode="inline",
        first=Blow(),
        second=None,
        resumes=False,
    )
    try:
        # It is killed when it is idle: it has written all that it will write.
        life = _begin(directory, plan, token, "first", Blow(write="append", number=0))
        _survivors(token, _GONE)
        idle = next((it for it in life.lines if it["say"] == "idle"), None)
        if idle is None:
            raise RuntimeError(
                f"the program did not come to its end: {life.lines[-3:]}"
            )
        seconds = float(idle["after"])
        return Whole(seconds, idle["appends"], idle["replaces"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _begin(
    directory: Path,
    plan: Plan,
    token: str,
    part: Literal["first", "second", "last", "look"],
    blow: Blow | None,
) -> Life:
    """Run one program to its end, whichever that is."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        _be(
            partial(
                live,
                directory,
                Say(writes),
                part=part,
                seed=f"{plan.seed}/{plan.number}",
                mode=plan.mode,
                blow=blow,
                token=token,
                resumes=plan.resumes,
            )
        )
    os.close(writes)
    seconds = _STUCK
    if blow is not None:
        seconds = _LATE if blow.write is not None else blow.seconds
    try:
        return _watch(part, pid, reads, seconds, is_whole=blow is None)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(reads)


def _be(run: Callable[[], Awaitable[object]]) -> NoReturn:
    """Be the child, and never return."""
    code = 1
    try:
        logging.disable(logging.CRITICAL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        trio.run(run)
        code = 0
    except BaseException:  # noqa: ASYNC103 - nothing is above it in this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch(part: str, pid: int, pipe: int, seconds: float, *, is_whole: bool) -> Life:
    """Read what a program says, and kill it so many seconds after it began to open."""
    os.set_blocking(pipe, False)
    contents = bytearray()
    lines: list[Line] = []
    end = monotonic() + _STUCK
    opened: float | None = None
    code: int | None = None
    killed = False
    while code is None:
        wait = max(0.0, min(end - monotonic(), 0.02))
        if select.select([pipe], [], [], wait)[0]:
            _read(pipe, contents, lines, opened)
        if opened is None and lines:
            opened = monotonic()
            end = opened + seconds
        is_idle = not is_whole and seconds == _LATE and _says(lines, "idle")
        if (monotonic() >= end or is_idle) and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
    _read(pipe, contents, lines, opened)
    return Life(part=part, lines=lines, code=code, is_killed=killed, is_whole=is_whole)


def _says(lines: list[Line], what: str) -> bool:
    return any(it["say"] == what for it in lines)


def _read(
    pipe: int, contents: bytearray, lines: list[Line], opened: float | None
) -> None:
    try:
        while more := os.read(pipe, 2**16):
            contents += more
    except BlockingIOError:
        pass
    *whole, rest = contents.split(b"\n")
    contents[:] = rest  # It has died within it, or goes on.
    for line in whole:
        said: dict[str, Any] = json.loads(line)
        said["after"] = 0.0 if opened is None else monotonic() - opened
        lines.append(said)


def _hit(life: Life) -> str | None:
    """Return where a program was when it died; None if it was not killed."""
    if life.is_whole:
        return None
    when = "recovery"
    if life.part == "first":
        when = "opening"
    if _says(life.lines, "opened"):
        when = "running"
    struck = next((it for it in life.lines if it["say"] == "struck"), None)
    if struck is None:
        late = _says(life.lines, "idle") and life.is_killed
        return f"clock, {'idle' if late else when}"
    what = "commit"
    if struck["write"] == "replace":
        what = "compaction" if when == "running" else "rewrite"
    return f"{what}, {when}, {struck['place']}"


def _survivors(token: str, seconds: float) -> list[str]:
    """Wait until no process is left that carries the token in its environment or its
    command; return those that are left after so many seconds."""
    end = monotonic() + seconds
    while True:
        left = [text for it in os.listdir("/proc") if (text := _carries(it, token))]
        if not left or monotonic() > end:
            return left
        select.select([], [], [], 0.02)


def _carries(name: str, token: str) -> str | None:
    if not name.isdecimal():
        return None
    try:
        command = Path(f"/proc/{name}/cmdline").read_bytes()
        environ = Path(f"/proc/{name}/environ").read_bytes()
    except OSError:
        return None
    if f"{VARIABLE}={token}".encode() in environ.split(b"\0") or (
        f": {token}".encode() in command
    ):
        return f"process {name}: {command.replace(bytes(1), b' ').decode()[:200]}"
    return None
