"""What people are shown of what happened, when more happens than they can read.

A `DisplayQueue` keeps at most 20 items for a display and folds the others into
one summary. It is for eyes only: the records of the outbox are never dropped,
whatever this queue does with the lines about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

from actors import TaskStatus
from actors.house import check_whole, define, frozen
from actors.text import duration_words, one_line

if TYPE_CHECKING:
    from .outbox import Notification

LINE_LIMIT = 200
"""Characters of a line for people."""
DISPLAY_LIMIT = 20
"""Items that a `DisplayQueue` keeps."""
DISPLAY_LINES = 3
"""Lines that `cap_lines` leaves."""
_NAMED = 3
"""Ids named in each group of a summary."""


Variant: TypeAlias = Literal["success", "error", "warning", "info"]

_ENDS: Final[Mapping[TaskStatus, tuple[Variant, str, str]]] = {
    TaskStatus.COMPLETED: ("success", "completed", "finished in"),
    TaskStatus.FAILED: ("error", "failed", "failed after"),
    TaskStatus.KILLED: ("warning", "stopped", "was stopped after"),
}
_TITLES: Final = {
    "progress": "Progress of a background task",
    "prompt": "Scheduled prompt",
}


@frozen(kw_only=True)
class Toast:
    """A notice for people that a host shows for some seconds. Its texts are clean, and
    each is one line of at most 200 characters. It never holds a result."""

    title: str
    """What has happened, in a few words."""
    message: str
    """The notice, such as ``Task "unit tests" finished in 3m 2s.``"""
    variant: Variant
    """``success`` if the task has completed, ``error`` if it has failed, ``warning`` if
    it was stopped, and ``info`` for whatever is no end."""
    duration: float = 5.0
    """The seconds for which it is to be shown."""

    @classmethod
    def of(cls, note: Notification) -> Toast:
        """Return the notice of a notification."""
        if note.kind != "task" or note.status not in _ENDS:
            title = _TITLES.get(note.kind, "Background task")
            return cls(title=title, message=note.display, variant="info")
        variant, how, words = _ENDS[note.status]
        message = note.display
        if note.description is not None and note.duration_ms is not None:
            end = f'" {words} {duration_words(note.duration_ms)}.'
            room = LINE_LIMIT - len('Task "') - len(end)
            message = f'Task "{one_line(note.description, room, "...")}{end}'
        return cls(title=f"Background task {how}", message=message, variant=variant)


def after(milliseconds: int | None) -> str:
    """Return what a line says of how long a task took; it is empty for less than a
    second."""
    if milliseconds is None or milliseconds < 1000:
        return ""
    return f", after {duration_words(milliseconds)}"


@frozen(kw_only=True)
class DisplayItem:
    """One line that would be shown."""

    kind: str
    """The word under which a summary counts it, such as ``failed``."""
    id: str
    """The id of the task that it is about."""
    text: str
    """The line. It is short and clean, and has no newline."""
    pulse: bool = False
    """Whether it only reports progress, which a later item replaces."""
    protected: bool = False
    """Whether it is dropped last."""
    recorded: bool = False
    """Whether the reader finds the result without looking for it."""

    @classmethod
    def of(cls, note: Notification, *, protected: bool = False) -> DisplayItem:
        """Return the line about the end of a task, its progress, what it has printed,
        or a prompt."""
        return cls(
            kind=note.status.value if note.kind == "task" else note.kind,
            id=note.task_id,
            text=note.display,
            pulse=note.kind in ("progress", "monitor"),
            protected=protected,
            recorded=note.acked is not None,
        )


@frozen
class Admission:
    """What becomes of an item that arrives."""

    admitted: bool
    """Whether it enters the queue, at its end."""
    evicted: int | None = None
    """The place of the one that leaves for it."""


def admit(
    queue: Sequence[DisplayItem], item: DisplayItem, limit: int = DISPLAY_LIMIT
) -> Admission:
    """Decide what becomes of ``item``, and change nothing.

    While there is room it enters. Else it takes the place of the oldest pulse;
    where there is none, a pulse is refused, and anything else takes the place of
    the oldest item. What is protected never leaves and is, though it be a pulse,
    never refused as one; among nothing but protected items any other is refused.
    """
    if len(queue) < limit:
        return Admission(True)
    unprotected = [n for n, other in enumerate(queue) if not other.protected]
    for place in unprotected:
        if queue[place].pulse:
            return Admission(True, place)
    if not unprotected or (item.pulse and not item.protected):
        return Admission(False)
    return Admission(True, unprotected[0])


@frozen
class Folded:
    """What was not shown, in a sentence."""

    status: Literal["dropped", "recorded"]
    """``recorded`` if results were lost, and each of them is kept where its
    reader finds it anyway."""
    text: str
    """The sentence, for people."""


class DisplayQueue:
    """The lines that wait to be shown, at most 20, and the count of the others.

    Code that must not wait calls `add`. The code that draws calls `take`. Neither
    waits, and neither fails.
    """

    def __init__(self) -> None:
        self._items: list[DisplayItem] = []
        self._counts: dict[tuple[str, bool, bool], _Group] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: DisplayItem) -> bool:
        """Add an item, unless `admit` decides against it. Return whether it is in."""
        admission = admit(self._items, item)
        if not admission.admitted:
            self._lose(item)
        else:
            if admission.evicted is not None:
                self._lose(self._items.pop(admission.evicted))
            self._items.append(item)
        return admission.admitted

    def take(self) -> tuple[list[DisplayItem], Folded | None]:
        """Take every item, the oldest first. If items were lost since the last time,
        add a summary of them. Nothing is told twice."""
        items, self._items = self._items, []
        groups, self._counts = self._counts, {}
        return items, _fold(groups.values())

    def clear(self) -> None:
        """Forget the items and the count of lost ones, without telling them."""
        self._items = []
        self._counts = {}

    def _lose(self, item: DisplayItem) -> None:
        key = item.kind, item.pulse, item.recorded
        group = self._counts.setdefault(key, _Group(*key))
        group.count += 1
        group.ids[item.id] = None


@define
class _Group:
    """What was lost of one kind."""

    kind: str
    pulse: bool
    recorded: bool
    count: int = 0
    # In the order in which they were lost.
    ids: dict[str, None] = attrs.field(factory=dict[str, None])

    def __str__(self) -> str:
        named = ", ".join([*self.ids][:_NAMED])
        more = len(self.ids) - _NAMED
        return f"{self.count} {self.kind} ({named}{f' +{more}' if more > 0 else ''})"


def _fold(groups: Iterable[_Group]) -> Folded | None:
    groups = list(groups)
    results = [group for group in groups if not group.pulse]
    lost = [group for group in results if not group.recorded]
    kept = [group for group in results if group.recorded]
    pulses = [group for group in groups if group.pulse]
    sentences: list[str] = []
    if lost:
        total = sum(group.count for group in lost)
        sentences.append(
            f"Dropped {total} from the display: {_listed(lost)}; TaskList shows them."
        )
    if kept:
        sentences.append(f"Recorded without being shown: {_listed(kept)}.")
    if pulses:
        sentences.append(f"Interim updates not shown: {_listed(pulses)}.")
    if not sentences:
        return None
    only_kept = bool(kept) and not lost
    return Folded("recorded" if only_kept else "dropped", " ".join(sentences))


def _listed(groups: Iterable[_Group]) -> str:
    return ", ".join(map(str, groups))


def cap_lines(lines: Sequence[str], limit: int = DISPLAY_LINES) -> list[str]:
    """Return at most ``limit`` lines: if there are more, the last one returned
    says how many are left out.

    Raises:
        ValueError: if ``limit`` leaves no room for that.
    """
    check_whole("limit", limit, 1)
    if len(lines) <= limit:
        return [*lines]
    return [*lines[: limit - 1], f"and {len(lines) - limit + 1} more"]
