"""Launches with a key: the same key finds the task that it began, and begins no other."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.house import check_text
from actors.shell import Shell
from actors.work import Work

from .._tasks.errors import KeyElsewhere, KeyTaken
from .._tasks.record import Task

if TYPE_CHECKING:
    from .life import Life

KEPT: Final = timedelta(hours=24)
"""How long after its end a task is found by its key."""
_LONGEST: Final = 200
_FEW: Final = 64


class Keyed(NamedTuple):
    """What a key has begun."""

    task: Task
    what: str


class Keys:
    """The keys of one runtime, each of one owner.

    The keys of a directory are in its journal, so only the runtime that writes that
    knows them all. Another one there begins nothing with a key: it cannot know what was
    begun with it, nor keep it for those who come later.
    """

    def __init__(self, life: Life) -> None:
        self.elsewhere: str | None = None
        """Who has the keys of the directory, if that is another runtime. It counts until
        what that has left is recovered, and not only read."""
        self._life = life
        self._begun: dict[tuple[str | None, str], Keyed] = {}
        # Looked through when it has so many: there is no other event for their age.
        self._full = _FEW

    def find(self, owner: str | None, key: str, what: str) -> Task | None:
        """Return the task that ``owner`` has begun with this key; None if there is none,
        or none any more.

        Raises:
            KeyTaken: if that task does something else.
            KeyElsewhere: if another runtime has the keys.
        """
        if self.elsewhere is not None:
            raise KeyElsewhere(key, owner, self.elsewhere)
        found = self._begun.get((owner, key))
        if found is None or self._is_over(found.task):
            return None
        task = self._life.table.find(found.task.task_id) or found.task
        if found.what != what:
            raise KeyTaken(key, owner, task.task_id, found.what, what)
        return task

    def add(self, owner: str | None, key: str, what: str, task: Task) -> None:
        """A key has begun a task. It is not forgotten as long as the key counts."""
        if len(self._begun) >= self._full:
            self._let_go()
            self._full = 2 * len(self._begun) + _FEW
        before = self._begun.pop((owner, key), None)
        if before is not None:
            self._forget(before.task)
        self._begun[owner, key] = Keyed(task, what)
        self._life.delivery.kept.add(task.task_id)

    def _is_over(self, task: Task) -> bool:
        ended = task.ended_at
        return ended is not None and self._life.env.clock.now() - ended >= KEPT

    def _let_go(self) -> None:
        over = [of for of, it in self._begun.items() if self._is_over(it.task)]
        for of in over:
            self._forget(self._begun.pop(of).task)

    def _forget(self, task: Task) -> None:
        self._life.delivery.kept.discard(task.task_id)
        if task.note is None:
            self._life.delivery.let_go(task)


def check_key(key: str) -> str:
    """Return a key that can be one.

    Raises:
        TypeError, ValueError: if it cannot.
    """
    check_text("key", key)
    if not 0 < len(key) <= _LONGEST:
        raise ValueError(f"key must have 1 to {_LONGEST} characters, not {len(key)}")
    return str.__str__(key)


def what_of(work: Work) -> str:
    """Return what a work does, in words: a work with other words is another one."""
    if isinstance(work, Shell):
        return what_of_command(work.command, work.cwd)
    from actors.agent import Agent

    return work.prompt if isinstance(work, Agent) else work.describe()


def what_of_command(command: str, cwd: object) -> str:
    """Return the same of a shell: the journal has no other words for it."""
    return command if cwd is None else f"{command}, in {cwd}"
