"""What programs that have ended have left in the directory, and what goes of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.hosting import FileEntry

from .._tasks.kinds import KINDS

if TYPE_CHECKING:
    from actors.env import Files

    from .._tasks.journal.state import Read
    from .._tasks.limits import Limits
    from .life import Life

YOUNG: Final = 3_600.0
"""Seconds. What was written to within them stays in any case: its program may live,
where no lock can tell."""
_DAY: Final = 86_400.0

_PREFIXES: Final = "|".join(kind.id_prefix for kind in KINDS.values())
# Only what a runtime makes: a store of transcripts takes other ids, from others.
# With the names in the order of their removal. A meta goes before its transcript, or an
# agent would be found that has forgotten everything. An output goes last: as long as it
# is there, no other task gets its id.
_NAMES: Final = (
    re.compile(r"agent-(?P<id>[0-9a-f]{8})\.meta\.json\.new").fullmatch,
    re.compile(r"agent-(?P<id>[0-9a-f]{8})\.meta\.json").fullmatch,
    re.compile(r"agent-(?P<id>[0-9a-f]{8})\.jsonl").fullmatch,
    re.compile(rf"(?P<id>(?:{_PREFIXES})[0-9a-f]{{8}})\.output\.new").fullmatch,
    re.compile(rf"(?P<id>(?:{_PREFIXES})[0-9a-f]{{8}})\.output\.1").fullmatch,
    re.compile(rf"(?P<id>(?:{_PREFIXES})[0-9a-f]{{8}})\.output").fullmatch,
    re.compile(r"(?P<id>disk-[0-9a-f]{16})\.lease(?:\.new)?").fullmatch,
)
_OF_AGENTS: Final = 3
"""The first so many names are those of an agent, and of nothing else."""


class Leftover(NamedTuple):
    """The files of one task."""

    task_id: str
    names: tuple[str, ...]
    """In the order in which they are to be removed."""
    is_agent: bool
    size: int
    modified: float
    """When one of them was last written to, in seconds since 1970."""


def leftovers(entries: Iterable[FileEntry]) -> list[Leftover]:
    """Return the tasks of which there are files, the one first that was written to
    last. Whatever no runtime has made is in none of them."""
    found: dict[str, list[tuple[int, FileEntry]]] = {}
    for entry in entries:
        for rank, match in enumerate(_NAMES):
            if told := match(entry.name):
                found.setdefault(told["id"], []).append((rank, entry))
                break
    tasks = [
        Leftover(
            task_id,
            tuple(it.name for _, it in sorted(files, key=_rank)),
            min(rank for rank, _ in files) < _OF_AGENTS,
            sum(it.size for _, it in files),
            max(it.modified for _, it in files),
        )
        for task_id, files in found.items()
    ]
    return sorted(tasks, key=lambda it: (-it.modified, it.task_id))


def outdated(
    entries: Iterable[FileEntry],
    now: float,
    limits: Limits,
    keep: Collection[str] = (),
) -> list[Leftover]:
    """Return what is to go, at the time ``now``, of the files in a directory in which
    nothing runs: what is older than `Limits.keep_days`, and the oldest of more than
    `Limits.keep_tasks`. An agent goes by its age alone. ``keep`` has the ids of tasks
    of which nothing goes."""
    gone: list[Leftover] = []
    stayed = 0
    for task in leftovers(entries):
        age = now - task.modified
        too_old = limits.keep_days is not None and age > limits.keep_days * _DAY
        too_many = (
            limits.keep_tasks is not None
            and stayed >= limits.keep_tasks
            and not task.is_agent
        )
        if (too_old or too_many) and age >= YOUNG and task.task_id not in keep:
            gone.append(task)
        elif not task.is_agent:
            stayed += 1
    return gone


async def remove_outdated(life: Life, there: Read | None) -> None:
    """Remove from the directory what is `outdated`, and tell by one warning what went
    and what could not be removed. It fails by nothing of that.

    It is for the opening. If another runtime has the directory open,
    it does nothing. One that opens it meanwhile may resume an agent, so each agent is
    claimed before it goes. Of a task of which a journal has still something to tell
    nothing goes: ``there`` is what was in it, None if this runtime keeps none.
    """
    if not life.share.is_alone():
        return
    try:
        # One who keeps no journal leaves that of others as it is, and what it is about.
        state = (life.journal.look() if there is None else there).state
        keep = {it.started.task for it in state.tasks.values()}
        old = _look(life, keep)
        if old:
            agents = [it.task_id for it in old if it.is_agent]
            try:
                free = {it for it in agents if life.share.claim(it) is None}
                # Another runtime may have gone on with one before it was claimed.
                again = {it.task_id: it for it in _look(life, keep)}
                going = [
                    again[it.task_id]
                    for it in old
                    if it.task_id in again
                    and (it.task_id in free or not again[it.task_id].is_agent)
                ]
                told = await life.env.files.in_thread(
                    _remove, life.env.files, life.directory, going
                )
            finally:
                for task_id in agents:
                    life.share.release(task_id)
            life.delivery.warn(None, told)
    # The boundary: whatever is wrong with old files is no reason not to open.
    except Exception as error:
        text = f"old files in {life.directory} could not be removed: {error}"
        life.delivery.warn(None, text)


def _look(life: Life, keep: Collection[str]) -> list[Leftover]:
    entries = life.env.files.entries(life.directory)
    now = life.env.clock.now().timestamp()
    return outdated(entries, now, life.limits, {*keep, *life.table.live})


def _remove(files: Files, directory: Path, tasks: Sequence[Leftover]) -> str:
    """Remove the files of these tasks, in a thread. Return what is to be told."""
    gone = size = left = 0
    failure: OSError | None = None
    for task in tasks:
        try:
            for name in task.names:
                files.remove(directory / name)
            gone, size = gone + 1, size + task.size
        except OSError as error:
            # What follows in it stays, too: the order counts.
            left, failure = left + 1, failure or error
    text = (
        f"files of {gone:,} task(s) of earlier programs, {size:,} bytes, were removed "
        f"from {directory}, by Limits.keep_days and keep_tasks"
    )
    if failure is not None:
        text = f"{text}; those of {left:,} could not be: {failure}"
    return text


def _rank(file: tuple[int, FileEntry]) -> int:
    return file[0]
