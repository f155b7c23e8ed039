"""Where a task is, as a reader of a report wants it: lines of the program and of the
libraries that it uses, not of trio, the standard library or the simulator."""

from __future__ import annotations

import contextlib
import linecache
import os.path
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import currentframe
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import cast

import trio
from trio.lowlevel import Task

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+| id='\d+'")
"""What differs from run to run in the text of an object; mocks have an id."""

# trio runs steps and keeps deadlines by libraries that who uses it does not know.
_TRIO = tuple(
    os.path.dirname(cast("str", sys.modules[name].__file__)) + os.sep
    for name in (trio.__name__, "outcome", "sniffio", "sortedcontainers")
    if name in sys.modules
)
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # of the simulator
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_WORLD = os.path.join(_ROOT, "actors", "testing") + os.sep  # of its processes and files
_OURS = tuple(os.path.join(_ROOT, it) + os.sep for it in ("actors", "supervisor"))
_STANDARD = os.path.dirname(contextlib.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_PROJECT = "pyproject.toml setup.py setup.cfg pytest.ini tox.ini .git .hg".split()
"""What stands in the folder of a project."""

_known: dict[str, str | None] = {}  # {file: how it is shown, or None}
_projects: dict[str, str] = {}  # {folder: that of its project}


def shown(file: str) -> str | None:
    """Return how a file is called in a report; None if it is not to be shown."""
    if file not in _known:
        _known[file] = _shown(file)
    return _known[file]


def _shown(file: str) -> str | None:
    if file.startswith((*_TRIO, _HERE, _WORLD, "<frozen", "<attrs")):
        return None
    for folder in _INSTALLED:
        if folder in file:
            return file.rpartition(folder)[2]
    if file.startswith(_STANDARD):
        return None
    return os.path.basename(file)


def is_installed(file: str) -> bool:
    """Tell whether a file is a library's."""
    return any(folder in file for folder in _INSTALLED)


def own_line(lines: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line that a report shows and that is not a library's, as
    ``/path/file.py:12``; "" if there is none. ``lines`` begin with the outermost one."""
    found = ""
    for file, line in lines:
        if shown(file) is not None and not is_installed(file):
            found = f"{file}:{line}"
    return found


def frames(task: Task) -> Iterable[tuple[FrameType, int]]:
    """Return the frames of a suspended task and their lines, outermost first; none of
    one that has ended. trio before 0.32 fails at such a one."""
    has_ended = getattr(task.coro, "cr_frame", ...) is None
    return () if has_ended else task.iter_await_frames()


def place(task: Task) -> str:
    """Return the `own_line` of a suspended task."""
    return own_line((it.f_code.co_filename, at) for it, at in frames(task))


def place_raised(error: BaseException) -> str:
    """Return the `own_line` that an error has come through."""
    lines = walk_tb(error.__traceback__)
    return own_line((frame.f_code.co_filename, line) for frame, line in lines)


def place_here() -> str:
    """Return the `own_line` that runs now."""
    lines = [(it.f_code.co_filename, at) for it, at in _here()]
    return own_line(reversed(lines))


def text(place: str) -> str:
    """Return the text of a line, which `own_line` has found; "" if nobody has it."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if file else ""


def site(task: Task) -> str:
    """Return the innermost place of a suspended task: ``file.py:12 function``; of one
    that is all trio's, ``trio function``."""
    found, outermost = "", ""
    for frame, line in frames(task):
        if not outermost and not frame.f_code.co_filename.startswith(_HERE):
            outermost = f"trio {frame.f_code.co_name}"
        if shown(frame.f_code.co_filename) is not None:
            found = _site(frame, line)
    return found or outermost


def caller() -> str:
    """Return the innermost place that runs now."""
    for frame, line in _here():
        if shown(frame.f_code.co_filename) is not None:
            return _site(frame, line)
    return ""


def _here() -> Iterator[tuple[FrameType, int]]:
    """Yield the frames that run now and their lines, from the innermost one to that in
    which the run of trio was begun: who has begun it is no part of it."""
    for frame, line in walk_stack(currentframe()):
        if frame.f_code is trio.run.__code__:
            return
        yield frame, line


def asked_by(task: Task | None) -> tuple[Task | None, str]:
    """Return who runs now, and the innermost place; of a task that is all trio's, who is
    above it and where that is."""
    where = caller()
    while not where and task is not None:
        nursery = task.parent_nursery
        if nursery is None:
            break
        task = nursery.parent_task
        found = site(task)
        where = "" if found.startswith("trio ") else found
    return task, where


def nearest(frame: FrameType | None) -> str:
    """Return the first place that is shown, from a frame outwards as far as the
    simulator's own; "" if there is none."""
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        if shown(frame.f_code.co_filename) is not None:
            return _site(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def caller_of(frame: FrameType | None) -> str:
    """Return the first place outside of the standard library, from a frame outwards; ""
    if it is trio's or the simulator's."""
    while frame is not None and frame.f_code.co_filename.startswith(
        (_STANDARD, "<frozen")
    ):
        if any(folder in frame.f_code.co_filename for folder in _INSTALLED):
            break
        frame = frame.f_back
    if frame is None or shown(frame.f_code.co_filename) is None:
        return ""
    return _site(frame, frame.f_lineno)


def raised_at(error: BaseException) -> str:
    """Return the innermost place that an error has come through."""
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        if shown(frame.f_code.co_filename) is not None:
            found = _site(frame, line)
    return found


def failed_at(error: BaseException) -> str:
    """Return the innermost place that an error has come through and that is not a
    library's; that of a library if there is no other."""
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if shown(file) is not None and not is_installed(file):
            found = _site(frame, line)
    return found or raised_at(error)


def _site(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{shown(code.co_filename)}:{line} {code.co_name}"


def own_files(file: str) -> tuple[str, str]:
    """Return a file, and the folder below which files count as the same program's: that
    of its project, for tests stand beside what they test; without one, its own."""
    folder = os.path.dirname(file)
    if folder not in _projects:
        _projects[folder] = _project(folder)
    return file, _projects[folder] + os.sep if folder else file  # typed: no folder


def _project(folder: str) -> str:
    at = folder
    while at != os.path.dirname(at):
        if any(os.path.exists(os.path.join(at, it)) for it in _PROJECT):
            return at
        at = os.path.dirname(at)
    return folder


def is_own(file: str, own: tuple[str, str]) -> bool:
    """Tell whether a file is the program's own: its file, or one of its project that is
    neither installed nor of this package."""
    if file == own[0]:
        return True
    if not file.startswith(own[1]):
        return False
    return not file.startswith((*_TRIO, *_OURS, _STANDARD)) and not is_installed(file)


def tree(tasks: Iterable[tuple[Task, str]]) -> str:
    """Return tasks, in the order of their birth, as a tree with where each is."""
    names = dict(tasks)
    below: dict[Task | None, list[Task]] = {}
    for task in names:
        nursery = task.parent_nursery
        parent = nursery.parent_task if nursery is not None else None
        below.setdefault(parent if parent in names else None, []).append(task)
    lines: list[str] = []
    left = [(task, 0) for task in reversed(below.get(None, ()))]
    while left:
        task, depth = left.pop()
        lines.append(f"{'  ' * depth}{names[task]}: {site(task) or 'at its end'}")
        left += [(it, depth + 1) for it in reversed(below.get(task, ()))]
    return "\n".join(lines)
