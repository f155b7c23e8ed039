"""An outbox without a runtime, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from actors import TaskStatus
from actors.envelope import Envelope
from actors.notifier import write_envelopes
from supervisor._delivery.outbox import Ack, Notification, Notify, Outbox, Words
from supervisor._delivery.readers import Notifications
from supervisor._delivery.turns import Parents, Turn
from supervisor._delivery.wakes import Wakes

_numbers = count(1)


class NoJournal:
    """Stands for the journal of a runtime that keeps none."""

    def is_told(self, number: int) -> bool:
        return True

    def flush(self) -> None:
        pass

    async def settle(self, *, shield: bool = True) -> None:
        pass


class Box:
    """An outbox and what it says."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, Ack | None]] = []
        self.warnings: list[str] = []
        self.outbox = Outbox(
            lambda n, how: self.acks.append((n.id, how)),
            self.warnings.append,
            NoJournal(),
        )
        self.parents = Parents(self.outbox)

    def add(
        self,
        owner: str | None = None,
        summary: str = "x",
        notify: Notify = "wake",
        *,
        task_id: str | None = None,
        deliver: Callable[[Notification], None] | None = None,
    ) -> Notification:
        envelope = make(summary=summary)
        return self.outbox.add(
            envelope.notification_id,
            envelope.task_id if task_id is None else task_id,
            owner,
            TaskStatus(envelope.status),
            notify,
            envelope,
            deliver=deliver,
        )

    def add_progress(
        self,
        task_id: str,
        tell: Callable[[], str | None],
        owner: str | None = None,
        notify: Notify = "wake",
    ) -> Notification:
        """Add a note of progress that tells what ``tell`` returns when it is taken."""

        def facts() -> Words | None:
            text = tell()
            return None if text is None else Words(text=text, summary=text)

        id = f"n{next(_numbers)}"
        running = TaskStatus.RUNNING
        return self.outbox.add(
            id, task_id, owner, running, notify, facts, kind="progress"
        )

    def add_prompt(self, text: str, owner: str | None = None) -> Notification:
        id = f"n{next(_numbers)}"
        words = Words(text=text, summary=text)
        return self.outbox.add(
            id, "c1", owner, TaskStatus.RUNNING, "wake", lambda: words, kind="prompt"
        )

    def wakes(self, owner: str | None = None, window: float = 0.0) -> Wakes:
        return Wakes(self.parents.of(owner), window)

    def turn(self, owner: str | None = None) -> Turn:
        return Turn(self.parents.of(owner))

    def all(self) -> Notifications:
        return Notifications(self.outbox, None, everyone=True)

    def of(self, owner: str | None) -> Notifications:
        return Notifications(self.outbox, owner, everyone=False)

    def publish(self) -> None:
        write_envelopes(self.outbox)


def make(summary: str = "x", status: str = "completed") -> Envelope:
    number = next(_numbers)
    return Envelope(
        notification_id=f"n{number}",
        task_id=f"s{number:08x}",
        run_id=f"s{number:08x}-1",
        task_type="local_bash",
        status=status,
        summary=summary,
        remaining=0,
        all_terminal=True,
    )
