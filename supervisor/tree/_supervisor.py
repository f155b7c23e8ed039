"""Supervisors: what users hold of them, and how they are opened.

The work is done in `_children` and `_supervision`, and in `_block` where it begins
and ends; here it gets its two faces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import ActorRef, Exit, Failed, Stopped
from actors.env import Env
from actors.hosting import ActorState
from actors.house import frozen

from ._block import Block
from ._children import Child, Children, checked
from ._errors import (
    AlreadyPresent,
    AlreadyStarted,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    InvalidChildSpec,
    MaxChildrenReached,
)
from ._events import EventStream
from ._spec import AutoShutdown, ChildKind, ChildSpec, ChildTemplate, Flags, Strategy
from ._supervision import OnRestart, Supervision

M = TypeVar("M")


@frozen
class ChildInfo:
    """One line of `which_children`."""

    id: str
    ref: ActorRef[Any]
    kind: ChildKind
    state: ActorState


@frozen
class ChildCounts:
    """How many children there are."""

    specs: int
    """The number of known children, running or not."""
    active: int
    """The number of children with a running incarnation."""
    supervisors: int
    """The number of children of kind ``supervisor``, running or not."""
    workers: int
    """The number of children of kind ``worker``, running or not."""


class _Supervisor:
    """What both kinds of supervisor share."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}, {len(self._children.by_key)} children>"

    @property
    def path(self) -> str:
        """The names of the supervisors from the outermost down to this one,
        with slashes."""
        return self._children.path

    @property
    def events(self) -> EventStream:
        """What happens in this supervisor, and in the whole tree around it."""
        return self._children.events

    @property
    def exit(self) -> Failed | Stopped | None:
        """How the supervisor ended: ``Stopped("owner")``,
        ``Stopped("auto_shutdown", child id)`` or
        ``Failed(RestartIntensityExceeded)``; None while it has not."""
        return self._children.exit

    def which_children(self) -> list[ChildInfo]:
        """Return every child in start order, running or not."""
        children = self._children.by_key.values()
        return [ChildInfo(c.id, c, c.spec.kind, c.state) for c in children]

    def count_children(self) -> ChildCounts:
        """Return how many children there are."""
        children = self._children.by_key.values()
        supervisors = sum(c.spec.kind == "supervisor" for c in children)
        return ChildCounts(
            specs=len(children),
            active=sum(c.is_live and c.state != "restarting" for c in children),
            supervisors=supervisors,
            workers=len(children) - supervisors,
        )

    def tree(self) -> str:
        """Return the tree from here down as text, a line for each child."""
        return "\n".join(_draw(self._children))

    async def wait(self) -> None:
        """Wait until the supervisor has ended.

        In the block itself this serves until the supervisor ends by itself
        (its block is then cancelled) or the block is cancelled.
        """
        await self._children.ended.wait()

    async def _terminate(self, key: Any) -> None:
        children = self._children
        if children.closing and key not in children.by_key:
            await trio.lowlevel.checkpoint()
            return  # it may have been one of the children that are gone
        child = await checked(self._find, key)
        await checked(children.refuse_deadlock, child)
        await children.terminate(child)

    def _find(self, key: Any, /) -> Child[Any]:
        raise NotImplementedError


def _draw(top: Children) -> Iterator[str]:
    yield f"{top.path} ({_describe_flags(top)})"
    # A stack, so that depth costs no recursion.
    stack = [("", list(reversed(top.by_key.values())))]
    while stack:
        indent, rest = stack[-1]
        if not rest:
            stack.pop()
            continue
        child = rest.pop()
        branch, below = ("├─ ", "│  ") if rest else ("└─ ", "   ")
        flags = "".join(f" ({_describe_flags(children)})" for children in child.below)
        yield (
            f"{indent}{branch}{child.id}  {child.spec.restart} {child.spec.kind}, "
            f"{child.state}, incarnation {child.incarnation.number}{flags}"
        )
        grandchildren = [
            c for children in child.below for c in children.by_key.values()
        ]
        stack.append((indent + below, grandchildren[::-1]))


def _describe_flags(children: Children) -> str:
    flags = children.flags
    strategy = "dynamic" if children.dynamic else flags.strategy
    return f"{strategy}, {flags.intensity} restarts in {flags.period:g} s"


class Supervisor(_Supervisor):
    """A supervisor of named children. `open_supervisor` makes it."""

    def child_spec(self, id: str) -> ChildSpec[Any]:
        """Return the spec of the child.

        Raises:
            ChildNotFound: if there is none of this id.
        """
        return self._find(id).spec

    def _find(self, id: object) -> Child[Any]:
        by_key = self._children.by_key
        child = by_key.get(id) if isinstance(id, str) else None
        if child is None:
            text = (
                f"supervisor {self.path!r} has no child {id!r}; it has "
                f"{', '.join(map(repr, by_key)) or 'none'}"
            )
            if not isinstance(id, str):
                text += "; a child is named by its id, a str"
            raise ChildNotFound(text)
        return child

    @enable_ki_protection
    async def start_child(self, spec: ChildSpec[M]) -> ActorRef[M]:
        """Add a child after all others and start it.

        It returns when the child has acknowledged its start or, without
        ``wait_started``, has made its first step. If the call is cancelled, the child
        is stopped and nothing is kept. Other children are served in the meantime.

        Raises:
            SupervisorStopping: if the supervisor is stopping or has ended.
            InvalidChildSpec: if it does not go with the supervisor's flags.
            AlreadyStarted, AlreadyPresent: if the id is taken.
            StartFailed: if it ended before the acknowledgement. Its error is the cause.
                Nothing is kept.
            ChildIgnored: if it declined. The spec is kept unless it is temporary.
        """
        child = await checked(self._add, spec)
        await self._children.start(child)
        return child

    def _add(self, spec: ChildSpec[M]) -> Child[M]:
        children = self._children
        children.check_open()
        _check_spec(spec)
        children.flags.check_child(spec)
        present = children.by_key.get(spec.id)
        if present is not None:
            if present.state in ("starting", "running", "stopping"):
                raise AlreadyStarted(f"child {spec.id!r} is {present.state} already")
            raise AlreadyPresent(
                f"child {spec.id!r} is known and {present.state}; restart_child() starts it, "
                "delete_child() forgets it"
            )
        return Child(children, spec, spec.args, spec.id)

    async def terminate_child(self, id: str) -> None:
        """Stop a child and wait for its end. Its spec is kept unless it is temporary. A
        child that is stopped already is left alone. A child that waits for a restart is
        not restarted.

        Raises:
            ChildNotFound: if there is none of this id.
            StillRunning: if the child outlives its budget.
            WouldDeadlock: if the child itself, or one below it, asks.
        """
        await self._terminate(id)

    @enable_ki_protection
    async def restart_child(self, id: str) -> ActorRef[Any]:
        """Start a stopped child again, at its old place, under its old ref.

        Raises:
            ChildNotFound, ChildRunning, ChildRestarting, SupervisorStopping,
                StartFailed, ChildIgnored: the spec is kept in any case.
            WouldDeadlock: if the child itself, or one below it, asks.
        """
        child = await checked(self._find_to_restart, id)
        await self._children.start_again(child)
        return child

    def _find_to_restart(self, id: str) -> Child[Any]:
        self._children.check_open()
        child = self._find(id)
        self._children.refuse_deadlock(child)
        _check_stopped(child)
        return child

    async def delete_child(self, id: str) -> None:
        """Forget the spec of a stopped child.

        This also works while the supervisor is ending, and afterwards. A child that has
        not stopped is refused.

        Raises:
            ChildNotFound, ChildRunning, ChildRestarting.
        """
        await trio.lowlevel.checkpoint()
        child = self._find(id)
        _check_stopped(child)
        self._children.forget(child)


def _check_stopped(child: Child[Any]) -> None:
    if child.state == "restarting":
        raise ChildRestarting(f"child {child.id!r} is being restarted")
    if child.state != "stopped":
        raise ChildRunning(f"child {child.id!r} is {child.state}")


class DynamicSupervisor(_Supervisor):
    """A supervisor of children that come and go. `open_dynamic_supervisor` makes it."""

    def __init__(self, children: Children, template: ChildSpec[Any] | None) -> None:
        super().__init__(children)
        self._template = template

    def child_spec(self, ref: ActorRef[M]) -> ChildSpec[M]:
        """Return the spec of the child, with its own name and all the arguments with
        which it was started.

        Raises:
            ChildNotFound: if it is not, or no longer, a child of this supervisor.
        """
        child = self._find(ref)
        if child.args == child.spec.args and child.id == child.spec.id:
            return child.spec
        return attrs.evolve(child.spec, id=child.id, args=child.args)

    def _find(self, ref: ActorRef[M]) -> Child[M]:
        if not isinstance(ref, Child) or not self._children.knows(ref):
            text = f"supervisor {self.path!r} has no child {ref!r}"
            if not isinstance(ref, ActorRef):
                text += "; a child is named by the ActorRef that start_child returned"
            raise ChildNotFound(text)
        return ref

    @enable_ki_protection
    async def start_child(self, *args: Any) -> ActorRef[Any]:
        """Start a child from the template. If there is no template, the first of
        ``args`` is the spec. The other ``args`` are appended to the spec's arguments.

        It returns at the same point as `Supervisor.start_child`, and a cancellation has
        the same effect.

        Raises:
            SupervisorStopping, InvalidChildSpec, StartFailed, ChildIgnored:
                as `Supervisor.start_child`. Nothing is kept.
            MaxChildrenReached: if there are ``max_children`` already. Those that wait
                for a restart count.
        """
        child = await checked(self._add, args, None)
        await self._children.start(child)
        return child

    @enable_ki_protection
    def start_child_nowait(
        self,
        *args: Any,
        id: str | None = None,
        watcher: Callable[[ActorRef[Any], Exit[object]], None] | None = None,
    ) -> ActorRef[Any]:
        """Do as `start_child`, but do not wait for the child's first step.

        ``id`` names this child instead of its spec. ``watcher(ref, exit)`` is
        called once, synchronously in the child's last step, when it has ended
        and will not be restarted. It must not raise.
        """
        child = self._add(args, id)
        self._children.start_nowait(child, watcher)
        return child

    def _add(self, args: tuple[Any, ...], id: str | None) -> Child[Any]:
        children = self._children
        if children.closing:
            children.check_open()
        maximum = children.flags.max_children
        if maximum is not None and len(children.by_key) >= maximum:
            raise MaxChildrenReached(
                f"supervisor {self.path!r} has its {maximum} children"
            )
        spec = self._template
        if spec is None:
            if not args:
                raise InvalidChildSpec(
                    "start_child needs a child spec here; there is no template"
                )
            spec, args = _check_spec(args[0]), args[1:]
            if spec.significant:
                _check_dynamic(spec)
        return Child(children, spec, (*spec.args, *args), id or spec.id)

    async def terminate_child(self, ref: ActorRef[Any]) -> None:
        """Stop the child of this ref, wait for its end and forget it.

        Raises:
            ChildNotFound: if it is not, or no longer, a child of this supervisor.
            StillRunning, WouldDeadlock: as for a static supervisor.
        """
        await self._terminate(ref)

    async def terminate_children(
        self, refs: Iterable[ActorRef[Any]], reason: str | None = None
    ) -> list[ActorRef[Any]]:
        """Stop several children together and wait for their ends.

        Refs that are not, or no longer, children of this supervisor are left out. It
        returns the refs of those that have outlived their budgets. They are reported.

        Raises:
            WouldDeadlock: if one of them, or one below it, asks.
        """
        ours = [
            ref for ref in refs if isinstance(ref, Child) and self._children.knows(ref)
        ]
        await checked(self._children.refuse_deadlock, *ours)
        return await self._children.terminate_together(ours, reason)


class open_supervisor(Block[Supervisor]):
    """Open a supervisor of named children, for the length of a block::

        async with open_supervisor(children=[child("counter", counter, 0)]) as sup:
            ...

    The children are started one after the other, in the order of the list. When the
    block is left, in whatever way, they are stopped one by one in the reverse order. An
    error while opening stops those that are started already, and is raised. The block
    is cancelled when the supervisor ends by itself. After an auto-shutdown there is no
    error. When the children needed too many restarts, it raises
    `RestartIntensityExceeded`. (It is a class so that type checkers see that its block
    may end early.)

    Nothing is restarted once the block is being left, or the actor in which it is open
    was asked to stop.

    Args:
        children: the specs.
        strategy: what is restarted with a child. ``one_for_one`` restarts nothing else,
            ``rest_for_one`` the children after it, ``one_for_all`` all. The restart of
            a group counts once. As in OTP, it also starts again what had finished or
            was stopped by hand.
        intensity: how many restarts are allowed ...
        period: ... within this many seconds.
        auto_shutdown: ``any_significant`` ends the supervisor when a
            significant child has ended by itself (a transient one normally),
            ``all_significant`` when the last one has.
        name: its name in events and errors. The default is that of the actor in which
            the block runs.
        env: the effects. The default is those of the supervisor above.
        events: the stream for its events. The default is that of the supervisor above.
        on_restart: it is called with the child's ref and the delay, in the step in
            which a restart of the child is decided. It must not raise.

    Raises:
        InvalidSupervisorFlags, InvalidChildSpec: for a bad argument. The error names it
            and its value. Nothing was started.
        StartFailed: if a child failed to start.
        RestartIntensityExceeded: see above. An error of the body is its cause.
    """

    def __init__(
        self,
        children: Iterable[ChildSpec[Any]] = (),
        *,
        strategy: Strategy = "one_for_one",
        intensity: int = 1,
        period: float = 5.0,
        auto_shutdown: AutoShutdown = "never",
        name: str | None = None,
        env: Env | None = None,
        events: EventStream | None = None,
        on_restart: OnRestart | None = None,
    ) -> None:
        if isinstance(children, ChildSpec) or not isinstance(children, Iterable):
            raise InvalidChildSpec(
                f"children must be a list of child specs, not {children!r}"
            )
        flags = Flags(
            strategy=strategy,
            intensity=intensity,
            period=period,
            auto_shutdown=auto_shutdown,
        )
        super().__init__(
            partial(Supervision, flags, name, env, events, on_restart=on_restart),
            list(children),
        )

    def _prepare(self, children: Children) -> Supervisor:
        seen: set[str] = set()
        for spec in [_check_spec(spec) for spec in self._specs]:
            children.flags.check_child(spec)
            if spec.id in seen:
                raise InvalidChildSpec(
                    f"duplicate child id {spec.id!r}; nothing was started"
                )
            seen.add(spec.id)
        return Supervisor(children)


class open_dynamic_supervisor(Block[DynamicSupervisor]):
    """Open a supervisor for children that are started as needed.

    They are known by their refs, forgotten when they end for good, and stopped
    all together.

    Args:
        template: the spec of every child. `start_child` appends its own arguments to
            those of the spec. None means that each call passes a spec.
        max_children: how many children there may be. None means any number.
        intensity, period, name, env, events: as for `open_supervisor`.

    Raises:
        InvalidSupervisorFlags, InvalidChildSpec, RestartIntensityExceeded: as
            for `open_supervisor`.
    """

    def __init__(
        self,
        template: ChildTemplate[Any] | None = None,
        *,
        max_children: int | None = None,
        intensity: int = 1,
        period: float = 5.0,
        name: str | None = None,
        env: Env | None = None,
        events: EventStream | None = None,
    ) -> None:
        flags = Flags(intensity=intensity, period=period, max_children=max_children)
        super().__init__(partial(Supervision, flags, name, env, events, dynamic=True))
        self._template = template

    def _prepare(self, children: Children) -> DynamicSupervisor:
        template = self._template
        if template is not None:
            template = _check_spec(template)
            _check_dynamic(template)
        return DynamicSupervisor(children, template)


def _check_spec(spec: ChildTemplate[Any]) -> ChildSpec[Any]:
    if not isinstance(spec, ChildSpec):
        raise InvalidChildSpec(
            f"expected a child spec, made with child(...), got {spec!r}"
        )
    return spec


def _check_dynamic(spec: ChildSpec[Any]) -> None:
    if spec.significant:
        raise InvalidChildSpec(
            f"invalid significant of child {spec.id!r}: True; a dynamic supervisor has "
            "no significant children"
        )
