"""One run of an agent task, from its first event to its answer.

One task iterates the agent's `run`, in the body of a nursery beside those that
watch it. Between two events no scope is opened or left, so whatever the run has
open across a `yield` stays well nested. It is closed before the nursery ends.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

import trio
from trio.lowlevel import enable_ki_protection

from .._kernel.exit import Stopped
from ._account import Account, watch
from ._alone import Alone
from ._context import AgentContext
from ._errors import AgentFailed, Terminate, TransientError
from ._events import CompactBoundary, FinalResult, Message, UserMessage
from ._fork import enter_fork
from ._inbox import Inbox
from ._loop import END, Loop, told_of_its_wait
from ._next import Standing, decide
from ._plan import open_items
from ._report import AgentReport

if TYPE_CHECKING:
    from ._agent import Agent
    from ._budget import Budget

T = TypeVar("T")

CONTINUE: Final = "Continue working on the current task from the last completed step."
"""What a run is told, as a ``reminder``, that goes on where one before it has
stopped and that nobody has told anything."""

# They end a run, and are nobody's failure.
_NO_FAILURES: Final = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)

# A run that yields without waiting for anything must not keep others waiting.
_EVENTS_IN_A_ROW = 64


@enable_ki_protection
async def run_agent(agent: Agent, report: AgentReport) -> str:
    """Run ``agent`` to its end and return its answer; see `Agent.run`."""
    if agent.forked:
        enter_fork()
    return await _Running(agent, report).work()


class _Running:
    """One run of an agent task."""

    def __init__(self, agent: Agent, report: AgentReport) -> None:
        self._agent = agent
        self._report = report
        host = report.agent_host
        self._host = Alone(agent) if host is None else host
        self._budget = self._host.budget
        inbox = report.inbox
        self._inbox = Inbox(messages=agent.takes_messages) if inbox is None else inbox
        self._account = Account(agent, report, self._host, self._budget)
        self._ends_at = (
            math.inf
            if agent.deadline is None
            else trio.current_time() + max(0.0, agent.deadline - report.time_used)
        )
        self._context = AgentContext(
            agent,
            report,
            self._host,
            self._account,
            self._inbox,
            None if agent.deadline is None else self._ends_at,
        )
        # Why it was ended, if it was, from here.
        self._verdict: AgentFailed | None = None
        # Whether the run says of itself that it was cancelled.
        self._was_cancelled = False
        self._attempts = 0
        self._reminded = 0
        self._plan_changes = 0
        # The part of its budget of which it was warned.
        self._warned = 0.0
        report.conversation = self._account.history
        report.terminate = None
        report.waiting = None
        report.ends_by = None

    # From the first pass to the last

    async def work(self) -> str:
        """Do it all."""
        report = self._report
        try:
            with self._inbox.read_by(
                self._account.keep, self._account.pulse.paused, self._host.wait_for
            ):
                await self._begin()
                while True:
                    if await self._pass():
                        await self._flush()
                        # From here to the return there is no checkpoint: a message
                        # is in time, or finds the inbox closed.
                        if self._may_end():
                            break
                    self._inbox.take()
        except BaseException as error:
            self._account.keep_draft()
            report.terminate = _mode_of(error)
            await self._flush()  # noqa: ASYNC102 - it shields itself, with a deadline
            raise
        finally:
            report.conversation = None
        report.ends_by = None
        if self._was_cancelled:
            return report.result or ""
        report.terminate = "goal"
        assert self._account.answer is not None
        return self._account.answer

    async def _begin(self) -> None:
        """Put down what the conversation begins with."""
        if self._budget is not None and self._budget.exceeded is not None:
            raise AgentFailed("budget", self._budget.exceeded)
        account, earlier = self._account, self._host.history
        if earlier and self._budget is not None:
            # The runs before have told of it.
            self._warned = self._budget.mark
        added = await self._host.starting()
        compacted = [n for n, it in enumerate(earlier) if type(it) is CompactBoundary]
        account.history += earlier[compacted[-1] if compacted else 0 :]
        if not earlier:
            for message in self._agent.history:
                account.begin_with(message)
        if added:
            account.keep(UserMessage(added, origin="hook"))
        if not earlier:
            account.keep(UserMessage(self._agent.prompt))
        elif not self._inbox.take():
            account.keep(UserMessage(CONTINUE, origin="reminder"))
        self._tell_mark_again(earlier)

    def _tell_mark_again(self, earlier: Sequence[Message]) -> None:
        """Tell of the budget what a run before was too near its end to take."""
        if not 0.0 < self._warned < 1.0 or self._budget is None:
            return
        begins = _mark_in_words(self._warned)
        if not any(
            isinstance(it, UserMessage)
            and it.origin == "reminder"
            and it.text.startswith(begins)
            for it in earlier
        ):
            self._account.keep(_mark_told(self._warned, self._budget))

    def _may_end(self) -> bool:
        if self._was_cancelled:
            return True
        # The run is closed, so it would be called again.
        if self._agent.one_shot:
            self._inbox.close()
            return True
        return self._inbox.close_if_empty(ends_count=False)

    async def _flush(self) -> None:
        with trio.CancelScope(shield=True, deadline=self._cleaning_ends()):
            await self._host.flush()

    def _cleaning_ends(self) -> float:
        """Closing the run has half of the time for cleaning up, writing the
        transcript half of what is left, and the host the rest."""
        now = trio.current_time()
        if self._report.hurry:
            return now
        return max(now, (now + self._end_by()) / 2)

    def _end_by(self) -> float:
        """Return by when all is to be over, counted from the first call on."""
        report = self._report
        if report.ends_by is None:
            report.ends_by = trio.current_time() + self._agent.shutdown
        return report.ends_by

    # One pass: one call of the agent's run

    async def _pass(self) -> bool:
        """Call `run` and follow it; say whether nothing is left to do."""
        # Or a stop that has come while the last pass was closed had its time anew.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._report.ends_by = None
        self._account.pulse.last = trio.current_time()
        self._done: bool | None = None
        self._scope = trio.CancelScope()
        self._own_wait: trio.CancelScope | None = None
        self._is_cancelled = False
        failure: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch)
                if self._budget is not None:
                    nursery.start_soon(self._watch_budget)
                try:
                    # Not the nursery's scope, which any task in it cancels by
                    # being cancelled itself.
                    with self._scope:
                        await self._follow(Loop(self._agent.loop, self._context))
                # The boundary: here it still has its own type and is in no group.
                except Exception as error:
                    failure = error
                except BaseExceptionGroup as group:
                    # A part of it is a cancellation, which meets the nursery, too.
                    cancelled, failed = group.split(trio.Cancelled)
                    if cancelled is None or not isinstance(failed, ExceptionGroup):
                        raise
                    failure = cast("ExceptionGroup[Exception]", failed)
                nursery.cancel_scope.cancel()
        except Exception as error:
            failure = failure or error
        except BaseException as error:  # noqa: ASYNC103 - its failure is raised below
            # What it has raised when it was stopped is in no nursery any more.
            if failure is None:
                raise
            if not _is_cancellation(error):
                self._report.warn(f"the run has failed as well: {failure!r}")
                raise
        if self._verdict is not None and not isinstance(failure, AgentFailed):
            raise self._verdict from failure
        if failure is not None:
            raise _alone(failure)
        assert self._done is not None
        return self._done

    async def _follow(self, loop: Loop) -> None:
        """Iterate ``loop``, and close it however that ends."""
        try:
            self._done = await self._iterate(loop)
        except BaseException as first:
            try:
                await self._close(loop)  # noqa: ASYNC102 - it shields itself
            # The boundary: the first error is the one that counts; a cancellation is
            # none.
            except Exception as error:
                if _is_cancellation(first):
                    raise
                if first is self._verdict:
                    raise first from error
                self._report.warn(f"the run could not clean up: {error!r}")
            raise
        await self._close(loop)

    async def _iterate(self, loop: Loop) -> bool:
        """Let the run say all it has to say. Return True if nothing is left to do,
        False if `run` is to be called again."""
        account, tell = self._account, self._report.on_begun
        in_a_row = 0
        resumed_at = -1
        cancelled: trio.Cancelled | None = None
        while True:
            if cancelled is None:
                step = loop.next()
                event = await (step if tell is None else told_of_its_wait(step, tell))
                tell = None
            elif await self._is_its_own(loop):
                # A scope that the run holds open across its `yield` is cancelled:
                # it has to know.
                event = await loop.throw(cancelled)
                cancelled = None
            else:
                raise cancelled
            try:
                if account.tell(event):
                    if account.over is not None:
                        raise account.over
                    in_a_row += 1
                    if in_a_row == _EVENTS_IN_A_ROW:
                        in_a_row = 0
                        await trio.lowlevel.checkpoint()
                    continue
                if event is END:
                    loop.returned = True
                    account.check_yielded()
                elif isinstance(event, FinalResult):
                    self._report.on_agent_event(event)
                    account.say_answer(event.text)
                    if event.terminate != "goal":
                        return self._end_as(event)
                else:
                    hint = ": await it first" if inspect.iscoroutine(event) else ""
                    raise TypeError(
                        f"{loop.name} yielded {event!r}, which is not an event{hint}"
                    )
                # It may have swallowed what was to end it.
                await trio.lowlevel.checkpoint_if_cancelled()
                follows = await self._what_follows(
                    returned=loop.returned, ignores=self._inbox.takes == resumed_at
                )
                if follows != "resume":
                    return follows == "finish"
                resumed_at = self._inbox.takes
            except trio.Cancelled as error:  # noqa: ASYNC103 - raised above
                cancelled = error

    def _end_as(self, event: FinalResult) -> bool:
        """End as the run itself says that it has ended."""
        if event.terminate != "cancelled":
            why = event.error or f"it has ended itself: {event.terminate}"
            raise AgentFailed(event.terminate, why)
        self._was_cancelled = True
        self._report.own_exit = Stopped("stop", event.error)
        self._report.terminate = "cancelled"
        return True

    async def _is_its_own(self, loop: Loop) -> bool:
        """Whether a cancellation that came while the run was suspended is one of
        a scope that it has opened itself."""
        if loop.returned or not loop.can_be_thrown_at:
            return False
        # A scope further out reaches the watch too, within two turns of the loop.
        await trio.lowlevel.cancel_shielded_checkpoint()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return not self._is_cancelled and not self._scope.cancel_called

    async def _close(self, loop: Loop) -> None:
        """Let the run clean up, in the time there is for it."""
        if loop.returned:
            return
        # Not a scope of its own, which would lie inside those of the run and be
        # left after them.
        scope = self._scope
        hastening = trio.CancelScope(shield=True)
        self._nursery.start_soon(self._hasten, scope, hastening)
        scope.deadline = self._cleaning_ends()
        scope.shield = True
        try:
            events = await loop.close()
        except trio.Cancelled:  # noqa: ASYNC103 - of our own scope, which ends here
            if trio.current_time() < scope.deadline:
                raise
            self._report.warn("the run had no time to finish its cleaning up")
        else:
            if events:
                self._report.warn(
                    f"the run yielded {events} event(s) while it was closed"
                )
        finally:
            scope.shield = False
            hastening.cancel()

    async def _hasten(
        self, scope: trio.CancelScope, hastening: trio.CancelScope
    ) -> None:
        with hastening:
            await self._report.wait_hurry()
            scope.deadline = trio.current_time()

    # What follows an answer

    async def _what_follows(self, *, returned: bool, ignores: bool) -> str:
        """Wait, remind and ask until it is clear how to go on: ``resume``,
        ``again`` or ``finish``."""
        judged = False
        while True:
            step = decide(self._standing(returned, ignores, judged))
            judged = False
            if step == "remind":
                self._remind()
            elif step == "give up":
                raise AgentFailed("error", self._open_plan())
            elif step == "wait":
                await self._wait_own_tasks(ends_count=not (returned or ignores))
            elif step == "no answer":
                raise AgentFailed("error", "ended without an answer")
            elif step == "judge":
                judged = await self._judge(returned)
            else:
                return step

    def _standing(self, returned: bool, ignores: bool, judged: bool) -> Standing:
        account, host, inbox = self._account, self._host, self._inbox
        if account.plan_changes > self._plan_changes:
            self._plan_changes = account.plan_changes
            self._reminded = 0
        plan_open = host.todo_aware and bool(open_items(self._report.todos))
        # Before the inbox is looked at, for it may put something into that.
        own_tasks = host.own_tasks()
        return Standing(
            returned=returned,
            ignores=ignores,
            one_shot=self._agent.one_shot,
            messages=len(inbox) > 0,
            asks=inbox.asks(),
            plan_open=plan_open,
            may_remind=self._reminded < self._agent.reminders,
            own_tasks=own_tasks,
            has_answer=account.answer is not None,
            judged=judged,
        )

    def _open_plan(self) -> str:
        items = open_items(self._report.todos)
        return f"ended with {len(items)} step(s) of its plan not done: {items[0]}"

    def _remind(self) -> None:
        self._reminded += 1
        steps = "\n".join(f"- {item}" for item in open_items(self._report.todos))
        self._inbox.add_own(
            UserMessage(
                f"These steps of your plan are not done yet:\n{steps}\n"
                "Do them, or change the plan, and then give your answer.",
                origin="reminder",
            )
        )

    async def _judge(self, returned: bool) -> bool:
        """Ask the host; say whether it agrees that this is the end."""
        answer = self._account.answer
        assert answer is not None
        self._attempts += 1
        reason = await self._wait(self._host.finishing, answer, self._attempts)
        if reason is None:
            return True
        if returned and self._agent.one_shot:
            self._report.warn(f"it was not to end yet, but runs only once: {reason}")
            return True
        self._inbox.add_own(UserMessage(reason, origin="hook"))
        return False

    async def _wait_own_tasks(self, *, ends_count: bool) -> None:
        """Wait for the end of the last own task, or for a message that counts."""
        self._tell_waiting("tasks")
        try:
            await self._wait(self._host.wait_for, partial(self._next_news, ends_count))
        finally:
            self._tell_waiting(None)

    async def _next_news(self, ends_count: bool) -> None:
        inbox = self._inbox
        watcher = trio.CancelScope()
        done = False

        async def watch_tasks() -> None:
            nonlocal done
            with watcher:
                await self._host.wait_own_tasks()
                done = True
                news.set()

        news = inbox.next_arrival()
        self._nursery.start_soon(watch_tasks)
        try:
            while not done and not (len(inbox) if ends_count else inbox.asks()):
                await news.wait()
                if not done:
                    news = inbox.next_arrival()
        finally:
            watcher.cancel()

    def _tell_waiting(self, what: Literal["tasks"] | None) -> None:
        self._report.waiting = what
        self._host.waiting(what)

    async def _wait(self, fn: Callable[..., Awaitable[T]], *args: object) -> T:
        """Wait for something of our own while the run is suspended: what ends the
        run then must not cancel it, but close it."""
        with self._account.pulse.paused(), trio.CancelScope() as scope:
            self._own_wait = scope
            try:
                return await fn(*args)
            finally:
                self._own_wait = None
        assert self._verdict is not None
        raise self._verdict

    # What ends it

    @enable_ki_protection
    async def _watch(self) -> None:
        agent = self._agent
        try:
            await watch(
                self._account.pulse,
                warning=agent.stall_warning,
                limit=agent.stall_limit,
                deadline=self._ends_at,
                on_silence=self._on_silence,
                on_stall=self._on_stall,
                on_deadline=self._on_deadline,
            )
            await trio.sleep_forever()
        except trio.Cancelled:
            self._is_cancelled = True
            if not self._report.hurry:
                # The run itself may be shielded, and its time goes on all the same.
                self._end_by()
            raise

    def _on_silence(self, seconds: float) -> None:
        self._report.warn(f"no sign of life for {seconds:g} s")

    def _on_stall(self) -> None:
        self._stop("stalled", f"no sign of life for {self._agent.stall_limit:g} s")

    def _on_deadline(self) -> None:
        self._stop("timeout", f"not done within its {self._agent.deadline:g} s")

    @enable_ki_protection
    async def _watch_budget(self) -> None:
        budget = self._budget
        assert budget is not None
        while (mark := await budget.wait_mark(self._warned)) < 1.0:
            self._warned = mark
            left = _left_in_words(*budget.left())
            self._report.warn(f"{mark:.0%} of its budget is used: {left}")
            # It is no reason to go on for one who is done.
            self._inbox.say_aside(_mark_told(mark, budget))
        self._stop("budget", await budget.wait_exceeded())

    def _stop(self, mode: Terminate, why: str) -> None:
        # What is done is only being closed, for which it has a time of its own.
        if self._verdict is None and self._done is None:
            self._verdict = AgentFailed(mode, why)
            scope = self._own_wait or self._scope
            scope.cancel(reason=why)


def _mark_in_words(mark: float) -> str:
    return f"{mark:.0%} of your budget is used"


def _mark_told(mark: float, budget: Budget) -> UserMessage:
    """Return what an agent is told when so much of its budget is used."""
    return UserMessage(
        f"{_mark_in_words(mark)}, with what your own tasks use: "
        f"{_left_in_words(*budget.left())}. When nothing is left, you are ended in the "
        "middle of your work.",
        origin="reminder",
    )


def _left_in_words(tokens: int | None, cost: float | None) -> str:
    """Say what is left of a budget."""
    parts = [] if tokens is None else [f"{tokens:,} tokens"]
    parts += [] if cost is None else [f"{cost:.6g} in cost"]
    return f"{' and '.join(parts)} left"


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is nothing but a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def _alone(failure: Exception) -> Exception:
    """Return a `TransientError` that has come through the nurseries of the run, and
    everything else as it is: with another error beside it, it does not pass."""
    if not isinstance(failure, ExceptionGroup):
        return failure
    group = cast("ExceptionGroup[Exception]", failure)
    if group.split(TransientError)[1] is not None:
        return group
    first = group.exceptions[0]
    return _alone(first)


def _mode_of(error: BaseException) -> Terminate:
    if isinstance(error, AgentFailed):
        return error.mode
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        # What is left of it is its failure.
        return "cancelled" if group.split(_NO_FAILURES)[1] is None else "error"
    return "cancelled" if isinstance(error, _NO_FAILURES) else "error"
