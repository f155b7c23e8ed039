"""Mutants by somebody who has not seen the checkers, the budget, or any test.

How to write one: read the promises (P1 to P10) and the code of the runtime and of the
tree, and nothing in ``tests/``, ``supervisor/simulation/`` or ``bench/mutants/`` but
this file and ``_mutant.py``. Choose a promise, find the line that keeps it, and break
it as a programmer might on a bad day:

    Mutant(
        name="notified-before-the-end",
        file="supervisor/_life/life.py",
        before="        self.places.start_pending()\\n",
        after="        pass\\n",
        promise="P9",
        why="A task that waits for a place is not woken when one becomes free.",
    ),

``before`` is copied from the file, whole lines with their indentation and the newline
at the end, and is in it exactly once. ``python -m bench.mutants --check`` says for each
whether it fits and whether the file still compiles; it runs nothing.
``python -m bench.mutants --only NAME`` tries one. What is alive then stays in this list;
whoever makes something find it writes that into ``alive_at_first``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._mutant import Mutant

BLIND: Sequence[Mutant] = (
    Mutant(
        name="straggler-reported-only-once",
        file="supervisor/tree/_events.py",
        before="                    self.watched[incarnation] = (asked_at, due + REPORT_EVERY)\n",
        after="                    del self.watched[incarnation]\n",
        promise="P1",
        why=(
            "A child that outlives its budget is reported once, and then the block "
            "hangs without another word."
        ),
        alive_at_first="P1, which now asks for the next report",
    ),
    Mutant(
        name="log-closed-without-shield",
        file="actors/shell/_command.py",
        before="        await log.finish()\n",
        after="        await log.aclose()\n",
        promise="P2",
        why=(
            "A shell that is stopped is recorded without the end of its output, "
            "because the cancellation comes out of the close before that is read."
        ),
    ),
    Mutant(
        name="flush-trusts-older-failure",
        file="actors/transcript/_log.py",
        before="            and not (self._failures > failures and self._failed >= wanted)\n",
        after="            and self._failures == failures\n",
        promise="P2",
        why=(
            "An agent is recorded as ended before its last words are on the disk, "
            "if a write that was under way before them fails and the next one would "
            "not."
        ),
        alive_at_first="a program whose first write is slow and fails",
    ),
    Mutant(
        name="checkpoint-after-return",
        file="actors/_kernel/actor.py",
        before="                        exit = Completed(await fn(self, *args))\n",
        after=(
            "                        value = await fn(self, *args)\n"
            "                        await trio.lowlevel.checkpoint_if_cancelled()\n"
            "                        exit = Completed(value)\n"
        ),
        promise="P3",
        why=(
            "A task that has returned its result is told as killed, and the result "
            "is lost, if a stop has come by then."
        ),
    ),
    Mutant(
        name="stopped-resume-undone",
        file="supervisor/_tasks/revival.py",
        before="            self.is_undone = status is TaskStatus.FAILED\n",
        after="            self.is_undone = status is not TaskStatus.COMPLETED\n",
        promise="P4",
        why=(
            "A resumed agent that is stopped before it says anything leaves no "
            "record of that end, and its old record is back as if nobody had "
            "resumed it."
        ),
        alive_at_first="P4, which now owes a notification to a resume that did not fail",
    ),
    Mutant(
        name="put-back-at-the-end",
        file="supervisor/_delivery/outbox.py",
        before="        self._notes = deque(sorted(self._ready, key=by_number))\n",
        after="",
        promise="P4",
        why=(
            "What a turn took and made nothing of is offered again behind the tasks "
            "that have ended later, not in the order of ending."
        ),
        alive_at_first="an assert on the order in a program with two readers",
    ),
    Mutant(
        name="escaped-before-cut",
        file="actors/envelope.py",
        before="            escape(_start(text, n), quotes=True)\n",
        after="            _start(escape(_exact(text), quotes=True), n)\n",
        promise="P5",
        why=(
            "A long result or error with an ampersand or a tag where it is cut "
            "makes an envelope that no XML parser reads."
        ),
        alive_at_first="P5, by a result that is cut inside of an escape",
    ),
    Mutant(
        name="queued-survives-crash",
        file="supervisor/_life/telling.py",
        before="            self._queued.clear()\n",
        after="",
        promise="P6",
        why=(
            "A task whose message the notifier had in its hands when it crashed "
            "tells no further progress while it runs."
        ),
        alive_at_first="a program whose notifier fails between two reports",
    ),
    Mutant(
        name="backlog-of-strangers",
        file="supervisor/_life/life.py",
        before="        waiting = outbox.unacknowledged - outbox.routed\n",
        after="        waiting = outbox.unacknowledged\n",
        promise="P6",
        why=(
            "The program is refused every launch because of notifications that only "
            "an agent can acknowledge, though it has acknowledged all of its own."
        ),
        alive_at_first="a program with an agent that reads nothing",
    ),
    Mutant(
        name="quota-anew-each-run",
        file="actors/output/__init__.py",
        before="            room = min(room, max(0, self._quota - self._used - self._seen))\n",
        after="            room = min(room, max(0, self._quota - self._seen))\n",
        promise="P7",
        why=(
            "A shell that is run again has its whole quota again in each run, so a "
            "loop of crashes fills the disk."
        ),
        alive_at_first="P7, by a loud command that is run again",
    ),
    Mutant(
        name="moved-task-dies-with-turn",
        file="supervisor/_life/foreground.py",
        before=(
            "        if not task.background:\n"
            '            why = "whoever ran it was cancelled"\n'
        ),
        after=(
            "        if task.ended_at is None:\n"
            '            why = "whoever ran it was cancelled"\n'
        ),
        promise="P8",
        why=(
            "A task that was just moved to the background is stopped if the turn is "
            "cancelled before `run` has returned."
        ),
        alive_at_first="P8, by a task that is moved in the step of the cancel",
    ),
    Mutant(
        name="together-when-cancelled",
        file="supervisor/tree/_block.py",
        before="            elif supervision.dynamic:\n",
        after='            elif supervision.dynamic or by == "outer":\n',
        promise="P8",
        why=(
            "When a scope around a supervisor is cancelled its children are all "
            "stopped at once, so a database goes away under the worker that still "
            "writes to it."
        ),
    ),
    Mutant(
        name="ended-task-keeps-its-turn",
        file="supervisor/_tasks/places.py",
        before=(
            "        if task.rare is None or not task.waits:\n"
            "            if task in self._returning:\n"
            "                self._leave_queue(task)\n"
            "            else:\n"
            "                self.slots.give_back(task)\n"
        ),
        after=(
            "        # Else its place is lent, or not its own again: it has none to give up.\n"
            "        if not task.waits and task not in self._returning:\n"
            "            self.slots.give_back(task)\n"
        ),
        promise="P9",
        why=(
            "A task that ends while it waits to have its place again gets one after "
            "its end and keeps it, so with a cap of one no pending task ever "
            "starts."
        ),
        alive_at_first="a program with a work that gives up a wait",
    ),
    Mutant(
        name="last-question-hangs",
        file="actors/_kernel/actor.py",
        before="                if place <= taken:\n",
        after="                if place < taken:\n",
        promise="P10",
        why=(
            "Whoever asked the question that an actor was handling when it crashed "
            "waits for ever instead of hearing of the failure."
        ),
        alive_at_first="a program with one question to an actor that fails at it",
    ),
    Mutant(
        name="restart-counted-when-due",
        file="supervisor/tree/_restart.py",
        before="        return StartAgain(delay), History((*recent, now))\n",
        after="        return StartAgain(delay), History((*recent, now + delay))\n",
        promise="P10",
        why=(
            "A child with a backoff ends its supervisor after failures that are "
            "further apart than the period allows to count, because each counts "
            "from the end of its delay."
        ),
        alive_at_first="P10, by a backoff that ends within the period",
    ),
)
