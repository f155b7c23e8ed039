"""OTP's rules of supervision as a pure function, for tests to compare with.

A `World` is a supervisor at rest; `step` applies one operation or event to it and
returns the answer and the world that follows. Starting and stopping take no time
here, so each step is whole before the next one: the order that a concurrent
supervisor has to agree with. Where we differ from OTP on purpose the model does,
too, and says so (D).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import attrs

Outcome = Literal["ok", "fails", "declines", "hangs"]
"""How a start goes."""


@attrs.define(kw_only=True)
class Child:
    """What a supervisor knows of a child."""

    id: str
    restart: str = "permanent"
    significant: bool = False
    delay: float = 0.0
    plan: list[Outcome] = attrs.Factory(list)  # how its next starts go
    state: str = "stopped"  # or running, starting, restarting
    is_live: bool = False  # whether a run of it has begun and not ended
    is_silent: bool = False  # whether that has not come to its function
    is_ending: bool = False  # whether somebody ends it for good
    is_new: bool = True
    runs: int = 0
    caller: int | None = None  # who waits for its start: `LIST`, or a call
    told: int | None = None  # the caller that was told last that it is up
    told_new: bool = False  # whether it was new before
    until: float | None = None  # when its backoff ends

    def copy(self) -> Child:
        return attrs.evolve(self, plan=[*self.plan])


LIST = 0
"""The caller that starts the children of the supervisor's list, and its course."""
BY_ITSELF = -1
"""The course of a child that begins to run, and fails while the end comes."""


@attrs.define
class Group:
    """A group restart that waits, or hangs at a member that does not start."""

    members: list[str]
    until: float
    hung_at: str | None = None
    # Whether it stops or starts its members: who fails now has to wait.
    is_busy: bool = False
    has_failed: bool = False  # its present attempt
    rest: list[str] = attrs.Factory(list)  # those to be started after that one
    # Which run of a child has failed meanwhile, and the group of that.
    deferred: list[tuple[str, int, list[str]]] = attrs.Factory(list)

    def copy(self) -> Group:
        return attrs.evolve(
            self,
            members=[*self.members],
            rest=[*self.rest],
            deferred=[(id, run, [*theirs]) for id, run, theirs in self.deferred],
        )


@attrs.define(kw_only=True)
class World:
    """A supervisor at rest."""

    strategy: str = "one_for_one"
    intensity: int = 1
    period: float = 5.0
    auto_shutdown: str = "never"
    now: float = 0.0
    children: dict[str, Child] = attrs.Factory(dict)
    group: Group | None = None
    restarts: list[float] = attrs.Factory(list)  # in the window
    counted: int = 0
    # The significant child that ended while others were only on their way.
    early: str | None = None
    journal: list[str] = attrs.Factory(list)
    # For each entry of the journal, in the course of what it came; what is under
    # way side by side may be mixed.
    courses: list[int] = attrs.Factory(list)
    course: int = 0
    answers: dict[int, str] = attrs.Factory(dict)
    ended: str | None = None
    calls: int = 0
    # Those of the list that are still to be started, None when that is over.
    to_come: list[Child] | None = None

    def copy(self) -> World:
        return attrs.evolve(
            self,
            children={id: child.copy() for id, child in self.children.items()},
            group=None if self.group is None else self.group.copy(),
            restarts=[*self.restarts],
            journal=[*self.journal],
            courses=[*self.courses],
            answers=dict(self.answers),
            to_come=None if self.to_come is None else [*self.to_come],
        )

    def states(self) -> dict[str, str]:
        return {c.id: c.state for c in self.children.values()}

    def active(self) -> int:
        """How many run, or are on their way for the first time or by hand."""
        return sum(c.state in ("running", "starting") for c in self.children.values())


Operation = tuple[Any, ...]


def step(world: World, operation: str, *args: Any) -> World:
    """Return the world after ``operation``. An operation that is asked has the
    number `World.calls`, under which its answer is in `World.answers`: what it
    raised, or ``ok``; none as long as it waits."""
    world = world.copy()
    _Step(world).apply(operation, *args)
    return world


def step_with(
    world: World, operation: Operation, meanwhile: Operation, place: int
) -> World | None:
    """Return the world after ``operation``, in the middle of which, before the
    start or stop with number ``place``, ``meanwhile`` was served, as the next
    course; None if there is no such place."""
    world = world.copy()
    whole = _Step(world)
    whole.meanwhile, whole.places = meanwhile, place
    whole.apply(*operation)
    return None if whole.meanwhile is not None else world


class _Ended(Exception):
    pass


class _Step:
    def __init__(self, world: World) -> None:
        self.w = world
        self._list_failed = False
        self.meanwhile: Operation | None = None
        self.places = 0
        # Who begins to run, and will fail or decline if nobody ends it before.
        self.failing: Child | None = None

    def apply(self, operation: str, *args: Any) -> None:
        try:
            getattr(self, operation)(*args)
            self._start_list()
        except _Ended:
            pass

    def _pause(self) -> None:
        """A place where another operation may be served."""
        if self.meanwhile is None:
            return
        if self.places:
            self.places -= 1
            return
        (operation, *args), self.meanwhile = self.meanwhile, None
        self.w.course += 1
        try:
            getattr(self, operation)(*args)
        finally:
            self.w.course -= 1

    # What happens

    def advance(self, seconds: float) -> None:
        """Let time pass, and all backoffs end that end by then."""
        w = self.w
        end = w.now + seconds
        while w.ended is None:
            due = [(c.until, c.id) for c in w.children.values() if c.until is not None]
            if w.group is not None and w.group.hung_at is None:
                due.append((w.group.until, ""))
            if not due or min(due)[0] > end:
                break
            w.now, id = min(due)
            if id:
                w.children[id].until = None
                self._start_again(w.children[id])
            else:
                assert w.group is not None
                self._start_group(w.group.members)
        w.now = end

    # An event may belong to one run of a child, and is nothing to another one.

    def crash(self, id: str, run: int | None = None) -> None:
        """It fails by itself, if it runs, or in its start, if that hangs."""
        child = self._hanging(id, run)
        if child is None:
            self._end_by_itself(id, run, normal=False)
            return
        if self.w.ended is not None:
            self._end_with_all(child)
            return
        self._log_end(child)
        if child.caller is None:
            self._failed_to_start(child)
        else:
            self._start_failed(child, "StartFailed")
            self._ask_again()
            self._go_on(child)

    def come_up(self, id: str, run: int | None = None) -> None:
        """Its start hangs no more."""
        child = self._hanging(id, run)
        if child is not None:
            self._acknowledge(child)
            self._go_on(child)

    def flash(self, id: str, run: int | None = None) -> None:
        """Its start hangs no more, and then it fails in the same step."""
        child = self._hanging(id, run)
        if child is not None:
            self._acknowledge(child)
            self._end_by_itself(id, child.runs, normal=False)
            self._go_on(child)

    def finish(self, id: str, run: int | None = None) -> None:
        """It returns, if it runs."""
        self._end_by_itself(id, run, normal=True)

    def leave(self) -> None:
        """The block is left."""
        if self.w.ended is None:
            self._end_all("left")

    def interrupt(self, id: str, run: int | None = None) -> None:
        """It raises KeyboardInterrupt, if it runs."""
        child = self._running(id, run)
        if child is not None:
            self._log_end(child)
            self._stay_down(child)
            if self.w.ended is None:
                self._end_all("interrupted")
            elif self.w.ended == "left":
                self.w.ended = "interrupted"

    def stop(self, id: str, run: int | None = None) -> None:
        """It is stopped by its reference: a normal end."""
        child = self.w.children.get(id)
        if child is None or not child.is_live:
            return
        if run is not None and run != child.runs:
            return
        if self.w.ended is not None:
            self._end_with_all(child)
            return
        if child.state == "running":
            self._end_by_itself(id, run, normal=True)
        elif child.caller is not None:
            self._log_end(child)
            self._start_failed(child, "StartFailed")
            self._ask_again()
            self._go_on(child)
        elif child.restart != "permanent":
            self._log_end(child)
            self._leave(child)
            self._follow(child, normal=True)
            self._go_on(child)
        else:
            self._log_end(child)
            self._failed_to_start(child)

    def cancel(self, call: int) -> None:
        """A caller of start or restart that still waits gives up."""
        for child in self.w.children.values():
            if child.caller == call:
                self._tell(child, "Cancelled")
                was_new = child.is_new
                self._end_for_good(child)
                if was_new:
                    self._forget(child)
                self._ask_again()
                self._go_on(child)
                return

    def cancel_late(self, call: int) -> None:
        """A caller gives up in the step in which it would have been told that the
        child is up: it does not know, and ends it."""
        for child in list(self.w.children.values()):
            if child.told == call:
                self.w.answers[call] = "Cancelled"
                if self.w.ended is not None:
                    self._end_with_all(child)
                else:
                    self._end_for_good(child)
                if child.told_new:
                    self._forget(child)
                if self.w.ended is None:
                    self._ask_again()
                    self._go_on(child)

    # What is asked

    def open(self, children: Sequence[Child]) -> None:
        """The supervisor is opened with a list, whose children are started one
        after the other."""
        self.w.to_come = list(children)

    def plan(self, id: str, outcomes: list[Outcome]) -> None:
        """Say how its next starts will go."""
        if id in self.w.children:
            self.w.children[id].plan = list(outcomes)

    def start(self, child: Child) -> None:
        w = self.w
        call = self._call()
        present = w.children.get(child.id)
        if w.ended is not None:
            w.answers[call] = "SupervisorStopping"
        elif present is not None:
            live = present.state in ("running", "starting")
            w.answers[call] = "AlreadyStarted" if live else "AlreadyPresent"
        else:
            w.children[child.id] = child = child.copy()
            self._start_by_hand(child, call)

    def restart(self, id: str) -> None:
        w = self.w
        call = self._call()
        child = w.children.get(id)
        if w.ended is not None:
            w.answers[call] = "SupervisorStopping"
        elif child is None:
            w.answers[call] = "ChildNotFound"
        elif child.state == "restarting":
            w.answers[call] = "ChildRestarting"
        elif child.state != "stopped":
            w.answers[call] = "ChildRunning"
        else:
            child.is_new = False
            self._start_by_hand(child, call)

    def delete(self, id: str) -> None:
        w = self.w
        call = self._call()
        child = w.children.get(id)
        if child is None:
            w.answers[call] = "ChildNotFound"
        elif child.state == "restarting":
            w.answers[call] = "ChildRestarting"
        elif child.state != "stopped":
            w.answers[call] = "ChildRunning"
        else:
            w.answers[call] = "ok"
            del w.children[id]

    def terminate(self, id: str) -> None:
        w = self.w
        call = self._call()
        child = w.children.get(id)
        if child is None:
            w.answers[call] = "ok" if w.ended is not None else "ChildNotFound"
        elif w.ended is not None:
            w.answers[call] = "ok"
            self._end_with_all(child)
        else:
            w.answers[call] = "ok"
            child.is_ending = child.is_live
            self._pause()
            child.is_ending = False
            if child.state != "stopped" and w.children.get(id) is child:
                if child.significant and child.caller is None:
                    w.early = None  # it counted as active
                self._end_for_good(child)
                self._ask_again()
                self._go_on(child)

    # Starting

    def _call(self) -> int:
        self.w.calls += 1
        return self.w.calls

    def _begin(self, child: Child) -> Outcome | Literal["ended"]:
        """Call its function, as its plan says; ``ended`` if somebody ends it."""
        child.runs += 1
        child.is_live = child.is_silent = True
        run = child.runs
        self._pause()
        if child.is_live and child.runs == run:
            outcome = child.plan.pop(0) if child.plan else "ok"
            self._log(f"+{child.id}")
            child.is_silent = False
            if outcome in ("fails", "declines"):
                self.failing = child
                self._pause()
                self.failing = None
            self._pause()
            if child.is_live and child.runs == run and child.state != "running":
                if outcome == "ok":
                    self._acknowledge(child)
                elif outcome != "hangs":
                    self._log_end(child)
                return outcome
        group = self.w.group
        if group is not None and group.has_failed:
            group.has_failed = False
            return "fails"
        return "ended"

    def _acknowledge(self, child: Child) -> None:
        child.state = "running"
        child.told, child.told_new = child.caller, child.is_new
        child.is_new = False
        if child.significant:
            self.w.early = None
        if child.caller is not None:
            self._tell(child, "ok")

    def _tell(self, child: Child, answer: str) -> None:
        """Tell whoever waits for its start."""
        assert child.caller is not None
        if child.caller != LIST:
            self.w.answers[child.caller] = answer
        elif answer == "StartFailed":
            self._list_failed = True
        child.caller = None

    def _start_list(self) -> None:
        """Go on with the list as soon as the one before has come up."""
        w = self.w
        course, w.course = w.course, LIST
        try:
            self._start_next()
        finally:
            w.course = course

    def _start_next(self) -> None:
        w = self.w
        while w.to_come is not None and w.ended is None:
            if self._list_failed:
                self._end_all("failed to open")
            if any(child.caller == LIST for child in w.children.values()):
                return
            if not w.to_come:
                w.to_come = None
                self._ask_again()  # which had to wait for the list
                return
            self._pause()
            child = w.to_come.pop(0).copy()
            if child.id in w.children:  # somebody else was sooner
                self._end_all("failed to open")
            w.children[child.id] = child
            self._start_by_hand(child, LIST)

    def _log(self, entry: str) -> None:
        self.w.journal.append(entry)
        self.w.courses.append(self.w.course)

    def _log_end(self, child: Child) -> None:
        if not child.is_silent:
            self._log(f"-{child.id}")
        child.is_live = child.is_silent = False

    def _start_by_hand(self, child: Child, call: int) -> None:
        child.state = "starting"
        child.caller = call
        outcome = self._begin(child)
        if child.caller is None:
            pass  # it is up, or whoever has ended it has dealt with it
        elif outcome == "fails":
            self._start_failed(child, "StartFailed")
        elif outcome == "declines":
            self._start_failed(child, "ChildIgnored")
        self._ask_again()

    def _start_failed(self, child: Child, answer: str) -> None:
        self._tell(child, answer)
        if child.restart == "temporary" or (child.is_new and answer != "ChildIgnored"):
            self._forget(child)
        child.is_new = False
        child.state = "stopped"

    def _start_again(self, child: Child) -> None:
        """An automatic restart of one child."""
        outcome = self._begin(child)
        if outcome == "fails":
            self._follow(child, normal=False)
        elif outcome == "declines":
            self._stay_down(child)
            self._ask_again()

    def _failed_to_start(self, child: Child) -> None:
        """Its automatic restart has failed."""
        group = self.w.group
        if group is not None and group.is_busy and child.id in group.members:
            group.has_failed = True
        elif group is None or group.hung_at != child.id:
            self._follow(child, normal=False)
        else:
            group.hung_at = None
            self._try_again(child)

    # Ending

    def _running(self, id: str, run: int | None) -> Child | None:
        child = self.w.children.get(id)
        if child is None or child.state != "running":
            return None
        return child if run in (None, child.runs) else None

    def _hanging(self, id: str, run: int | None) -> Child | None:
        child = self.w.children.get(id)
        if child is None or child.is_silent or not child.is_live:
            return None
        if child.state == "running":
            return None
        return child if run in (None, child.runs) else None

    def _end_by_itself(self, id: str, run: int | None, *, normal: bool) -> None:
        child = self._running(id, run)
        if child is not None:
            self._log_end(child)
            self._follow(child, normal=normal)

    def _follow(
        self, child: Child, *, normal: bool, members: list[str] | None = None
    ) -> None:
        w = self.w
        if w.ended is not None or child.is_ending:
            self._stay_down(child)
            return
        if child.restart == "permanent" or (
            child.restart == "transient" and not normal
        ):
            child.state = "restarting"
            if w.strategy != "one_for_one":
                members = members or self._group_of(child)
                if w.group is not None and (w.group.is_busy or w.group.hung_at):
                    w.group.deferred.append((child.id, child.runs, members))
                    return
            self._count(child)
            if members is not None:
                self._restart_group(members, child.delay)
            elif child.delay:
                child.until = w.now + child.delay
            else:
                self._start_again(child)
            return
        self._stay_down(child)
        ends = child.significant and w.auto_shutdown == "any_significant"
        if ends or self._is_last_significant(child):
            self._end_all(f"auto_shutdown {child.id}")
        if child.significant and not any(
            c.significant and c.state == "running" for c in w.children.values()
        ):
            w.early = child.id
            self._ask_again()

    def _ask_again(self) -> None:
        """It was the last significant child if no other one has come up."""
        w = self.w
        if w.ended is not None or w.early is None or w.to_come is not None:
            return
        if all(not c.significant or c.state == "stopped" for c in w.children.values()):
            self._end_all(f"auto_shutdown {w.early}")

    def _is_last_significant(self, child: Child) -> bool:
        """Whether it ends the supervisor even while the list is being started."""
        w = self.w
        return (
            child.significant
            and w.auto_shutdown == "all_significant"
            and not any(other.significant for other in w.to_come or ())
            and all(
                not other.significant or other.state == "stopped"
                for other in w.children.values()
            )
        )

    def _count(self, child: Child) -> None:
        """Count a restart, or give up."""
        w = self.w
        w.restarts = [t for t in w.restarts if t >= w.now - w.period]
        if len(w.restarts) >= w.intensity:
            self._stay_down(child)
            self._end_all("gave up")
        w.restarts.append(w.now)
        w.counted += 1

    def _end_all(self, why: str) -> None:
        w = self.w
        w.ended = why
        w.group = None
        if self.failing is not None and self.failing.is_live:
            course, w.course = w.course, BY_ITSELF
            self._log_end(self.failing)
            w.course = course
        # Whoever is to come up next for the list is given up first.
        last_first = [c for c in w.children.values() if c.caller != LIST]
        last_first += [c for c in w.children.values() if c.caller == LIST]
        for child in reversed(last_first):
            self._pause()
            if w.children.get(child.id) is child:
                self._end_with_all(child)
        raise _Ended

    def _end_with_all(self, child: Child) -> None:
        if child.is_live:
            if child.state == "restarting":
                child.state = "stopping"
                self._pause()
            if child.is_live:
                self._log_end(child)
        if child.caller is not None:
            self._start_failed(child, "SupervisorStopping")
        elif child.state != "stopped":
            self._stay_down(child)

    def _stay_down(self, child: Child) -> None:
        child.state = "stopped"
        child.until = None
        if child.restart == "temporary":
            self._forget(child)

    def _end_for_good(self, child: Child) -> None:
        """Somebody ends it; its group goes on without it (D)."""
        if child.is_live:
            self._log_end(child)
        self._leave(child)
        if child.caller is not None:
            self._start_failed(child, "StartFailed")
        self._stay_down(child)

    def _forget(self, child: Child) -> None:
        self._leave(child)
        self.w.children.pop(child.id, None)

    # Groups

    def _group_of(self, child: Child) -> list[str]:
        ids = list(self.w.children)
        return ids[ids.index(child.id) :] if self.w.strategy == "rest_for_one" else ids

    def _leave(self, child: Child) -> None:
        group = self.w.group
        if group is None:
            return
        for members in (group.members, group.rest, *(m for *_, m in group.deferred)):
            if child.id in members:
                members.remove(child.id)
        if not group.members and group.hung_at is None and not group.is_busy:
            self.w.group = None

    def _go_on(self, child: Child) -> None:
        """If its group hung at it, the members after it are started."""
        group = self.w.group
        if group is not None and group.hung_at == child.id:
            group.hung_at = None
            self._start_group(group.rest)

    def _restart_group(self, members: list[str], delay: float) -> None:
        w = self.w
        until = w.now + delay
        if w.group is not None:  # it waits (D: OTP has no delays)
            if delay or not set(members) >= set(w.group.members):
                until = max(until, w.group.until)
            members = [i for i in w.children if i in members or i in w.group.members]
        w.group = Group(members, until)
        self._stop_group()
        if w.group is not None and until <= w.now:
            self._start_group(w.group.members)

    def _stop_group(self) -> None:
        group = self.w.group
        assert group is not None
        group.is_busy = True
        for id in group.members:
            if self.w.children[id].state == "stopped":
                self.w.children[id].state = "restarting"
        for id in reversed(list(group.members)):
            self._pause()
            if id not in group.members:
                continue
            child = self.w.children[id]
            if child.is_live:
                self._log_end(child)
            if child.restart == "temporary":
                if child.caller is not None:
                    self._start_failed(child, "StartFailed")
                self._forget(child)
            else:
                child.state = "restarting"
        for id in group.members:
            if id in self.w.children:
                self.w.children[id].state = "restarting"  # also who has just ended
        group.is_busy = False
        if self._list_failed:
            self._end_all("failed to open")

    def _start_group(self, ids: list[str]) -> None:
        w = self.w
        group = w.group
        assert group is not None
        group.until = -math.inf
        group.is_busy = True
        group.rest = list(ids)
        while group.rest:
            id = group.rest.pop(0)
            child = w.children[id]
            awaited = child.caller is not None
            outcome = self._begin(child)
            if outcome == "hangs":
                group.is_busy = False
                group.hung_at = id
                return
            if outcome == "ended":
                continue
            if outcome != "ok" and awaited:
                answer = "StartFailed" if outcome == "fails" else "ChildIgnored"
                self._start_failed(child, answer)
                self._ask_again()
            elif outcome == "declines":
                self._stay_down(child)
                self._ask_again()
            elif outcome == "fails":
                self._try_again(child)
                return
        self._group_done()

    def _group_done(self) -> None:
        w = self.w
        group, w.group = w.group, None
        deferred = [] if group is None else group.deferred
        for id, run, members in deferred:
            if w.group is not None and w.group.hung_at is not None:
                w.group.deferred.append((id, run, members))
                continue
            child = self._still_waits(id, run)
            # A member of a group that waits now is restarted with it anyhow.
            if child is not None and (w.group is None or id not in w.group.members):
                self._follow(child, normal=False, members=members)

    def _still_waits(self, id: str, run: int) -> Child | None:
        """Return the child if nothing has become of it since that run failed."""
        child = self.w.children.get(id)
        if child is None or child.runs != run or child.is_live:
            return None
        return child if child.state == "restarting" else None

    def _try_again(self, failed: Child) -> None:
        """Those that were put off are served between two attempts; the failed one
        counts when the next is due, unless a wider group has replaced it."""
        w = self.w
        group = w.group
        assert group is not None
        again = self._group_of(failed)
        w.group = Group([m for m in group.members if m in again], w.now)
        failed.state = "restarting"
        is_replaced = False
        for id, run, theirs in group.deferred:
            child = self._still_waits(id, run)
            # The run of a member is replaced by the next attempt.
            if child is not None and id not in w.group.members:
                is_replaced = True
                self._count(child)
                until = w.now + child.delay
                if child.delay or not set(theirs) >= set(w.group.members):
                    until = max(until, w.group.until)
                merged = [i for i in w.children if i in theirs or i in w.group.members]
                w.group = Group(merged, until)
        if not is_replaced:
            self._count(failed)
            w.group.until = w.now + failed.delay
        self._stop_group()
        if w.group is not None and w.group.until <= w.now:
            self._start_group(w.group.members)
