"""What a supervisor is told about a child, as data: `ChildSpec`, `Backoff`.

Each field is checked where it is set. What depends on two of them, or on the
supervisor, is checked when the child is started.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import (
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    get_args,
    overload,
)

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import Context
from actors.house import check_number, check_one_of, check_type, check_whole, frozen

from ._errors import InvalidChildSpec, InvalidSupervisorFlags

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
Ts = TypeVarTuple("Ts")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
Shutdown: TypeAlias = float | Literal["brutal_kill", "infinity"]
ChildKind: TypeAlias = Literal["worker", "supervisor"]
Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
AutoShutdown: TypeAlias = Literal["never", "any_significant", "all_significant"]

RESTARTS: tuple[Restart, ...] = get_args(Restart)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
AUTO_SHUTDOWNS: tuple[AutoShutdown, ...] = get_args(AutoShutdown)
CHILD_KINDS: tuple[ChildKind, ...] = get_args(ChildKind)


@frozen
class Backoff:
    """How long to wait before a restart. The first wait takes ``min`` seconds, and each
    further one twice as long, up to ``max``. Chance makes each wait longer, by at most
    the part ``jitter`` of it.

    A child that ran for ``reset_after`` seconds begins with ``min`` again. The default
    is the middle of ``min`` and ``max``.
    """

    min: float
    max: float
    jitter: float = attrs.field(default=0.0, kw_only=True)
    reset_after: float | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        try:
            check_number("min", self.min, "seconds", zero=False)
            check_number("max", self.max, "seconds")
            check_number("jitter", self.jitter)
            check_number("reset_after", self.reset_after, "seconds", none=True)
        except (TypeError, ValueError) as error:
            raise InvalidChildSpec(f"backoff {error}") from None
        if self.max < self.min:
            raise InvalidChildSpec(
                f"backoff max must be seconds from min on, not {self.max!r}"
            )

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after the ``failures``-th failure in a row (from 1
        on). ``chance``, from 0.0 to 1.0, decides on the jitter."""
        doublings = min(failures - 1, 1023)
        base = min(self.max, self.min * 2.0**doublings)
        return base * (1.0 + self.jitter * chance)

    def forgets_after(self) -> float:
        """Return the seconds that a child must run to begin with ``min`` again."""
        return (
            (self.min + self.max) / 2 if self.reset_after is None else self.reset_after
        )


_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


def _is_async(fn: object) -> bool:
    """Whether a call of ``fn`` makes an awaitable, as far as it shows: a plain
    function, or a lambda, may return anything."""
    if isinstance(fn, partial):
        return _is_async(fn.func)
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:
        return True
    if inspect.iscoroutinefunction(fn):  # marked as one
        return True
    if inspect.isclass(fn):
        return hasattr(fn, "__await__") and not hasattr(fn, "__aenter__")
    returned = getattr(fn, "__annotations__", {}).get("return", "")
    if "Awaitable" in str(returned) or "Coroutine" in str(returned):
        return True
    # What a decorator has wrapped; else what an object does when it is called.
    inner = getattr(fn, "__wrapped__", None)
    if inner is None and not inspect.isroutine(fn):
        inner = getattr(fn, "__call__", None)  # noqa: B004
    return inspect.isroutine(inner) and inner is not fn and _is_async(inner)


def _budget(spec: ChildSpec[Any]) -> float:
    if spec.shutdown == "infinity":
        return math.inf
    # What is not a number either is refused once all fields are set.
    return 0.0 if spec.shutdown == "brutal_kill" else spec.shutdown


class ChildTemplate(Generic[M_co]):
    """The template from which `open_dynamic_supervisor` makes children, for type
    checkers. It is a `ChildSpec`, or one that lacks up to three of the last arguments
    of its function. `start_child` appends these. At run time each template is a
    `ChildSpec`."""

    __slots__ = ()


@frozen
class ChildSpec(ChildTemplate[M_co]):
    """A child of a supervisor. Make it with `child`, which checks the types of the
    function's arguments."""

    id: str
    fn: Callable[..., Awaitable[object]]
    args: tuple[object, ...] = ()
    restart: Restart = attrs.field(default="permanent", kw_only=True)
    shutdown: Shutdown = attrs.field(default=5.0, kw_only=True)
    significant: bool = attrs.field(default=False, kw_only=True)
    kind: ChildKind = attrs.field(default="worker", kw_only=True)
    backoff: Backoff | None = attrs.field(default=None, kw_only=True)
    wait_started: bool = attrs.field(default=False, kw_only=True)
    drain: float = attrs.field(default=0.0, kw_only=True)
    mailbox: int | None = attrs.field(default=None, kw_only=True)
    budget: float = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(_budget, takes_self=True),
    )
    """The seconds that it has for cleaning up once it was cancelled."""
    stays_down: bool = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(
            lambda spec: spec.restart == "temporary" and spec.significant is False,
            takes_self=True,
        ),
    )
    """Whether nothing follows its end, whatever that is."""

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidChildSpec(f"missing id: a child needs a name, not {self.id!r}")
        if not callable(self.fn):
            raise InvalidChildSpec(
                f"missing start: child {self.id!r} needs an async function, not {self.fn!r}"
            )
        if not _is_async(self.fn):
            raise InvalidChildSpec(
                f"invalid start of child {self.id!r}: {self.fn!r} is not async; it "
                "must be an async function, a partial of one, an object with an async "
                "__call__, or a function annotated to return an Awaitable"
            )
        try:
            check_one_of("restart", self.restart, RESTARTS)
            if self.shutdown not in ("brutal_kill", "infinity"):
                what = "'brutal_kill', 'infinity' or seconds"
                check_number("shutdown", self.shutdown, what)
            check_one_of("kind", self.kind, CHILD_KINDS)
            check_type("significant", self.significant, bool)
            check_type("wait_started", self.wait_started, bool)
            check_type("backoff", self.backoff, Backoff | None)
            check_number("drain", self.drain, "seconds")
            check_whole("mailbox", self.mailbox, 1, none=True)
        except (TypeError, ValueError) as error:
            raise InvalidChildSpec(f"child {self.id!r}: {error}") from None

    def as_permanent(self) -> ChildSpec[Any]:
        """Return the same spec, but for a child that is restarted after every end."""
        return attrs.evolve(self, restart="permanent", significant=False)


class _Options(TypedDict, total=False):
    # What `child` takes besides, to type checkers; its defaults and its help are there.
    restart: Restart
    shutdown: Shutdown | None
    significant: bool
    backoff: Backoff | None
    wait_started: bool
    drain: float
    mailbox: int | None


@overload
def child(
    id: str,
    fn: Callable[[Context[M], *Ts], Awaitable[object]],
    *args: *Ts,
    kind: ChildKind = "worker",
    **options: Unpack[_Options],
) -> ChildSpec[M]: ...
@overload
def child(
    id: str,
    fn: Callable[[*Ts], AbstractAsyncContextManager[object]],
    *args: *Ts,
    kind: Literal["supervisor"],
    **options: Unpack[_Options],
) -> ChildSpec[Any]: ...
@overload
def child(
    id: str,
    fn: Callable[[Context[M], *Ts, A], Awaitable[object]],
    *args: *Ts,
    kind: ChildKind = "worker",
    **options: Unpack[_Options],
) -> ChildTemplate[M]: ...
@overload
def child(
    id: str,
    fn: Callable[[Context[M], *Ts, A, B], Awaitable[object]],
    *args: *Ts,
    kind: ChildKind = "worker",
    **options: Unpack[_Options],
) -> ChildTemplate[M]: ...
@overload
def child(
    id: str,
    fn: Callable[[Context[M], *Ts, A, B, C], Awaitable[object]],
    *args: *Ts,
    kind: ChildKind = "worker",
    **options: Unpack[_Options],
) -> ChildTemplate[M]: ...
def child(  # type: ignore[misc] # mypy does not see that *Any takes *Ts
    id: str,
    fn: Callable[..., Any],
    *args: Any,
    restart: Restart = "permanent",
    shutdown: Shutdown | None = None,
    significant: bool = False,
    kind: ChildKind = "worker",
    backoff: Backoff | None = None,
    wait_started: bool = False,
    drain: float = 0.0,
    mailbox: int | None = None,
) -> ChildSpec[Any]:
    """Describe a child that runs ``fn(context, *args)``.

    Args:
        id: its name, unique among its siblings in a static supervisor.
        fn: an async function, or anything else that shows that it makes an awaitable.
            Each restart calls it again. For a child of kind ``supervisor`` it may
            instead make an async context manager from ``args`` alone, such as
            `open_supervisor` or a partial of it. Then the child starts when the block
            is entered, and what that returned is ``ref.started_value``.
        restart: ``permanent`` comes back after every end, ``transient`` after
            a failure or a missed deadline, ``temporary`` never (and is
            forgotten when it ends).
        shutdown: the seconds that it has for cleaning up when it is cancelled. After
            that it is reported, and its supervisor still waits for it. With
            ``infinity`` nothing is reported. With ``brutal_kill`` it is reported at
            once. The default is 5.0 for a worker and ``infinity`` for a supervisor.
        significant: whether its end counts for ``auto_shutdown``.
        kind: ``supervisor`` for a child that has children of its own.
        backoff: how long to wait before a restart. None means no wait.
        wait_started: whether it acknowledges its start with ``ctx.started``. If it has
            not done so after 30 seconds, it is reported, and again after each 30 more.
            Its supervisor still waits for it.
        drain: the seconds between the request to stop and the cancellation.
        mailbox: the number of messages that its mailbox holds. None means no bound.

    Raises:
        InvalidChildSpec: for a bad argument. The error names it and its value.
    """
    if shutdown is None:
        shutdown = "infinity" if kind == "supervisor" else 5.0
    if kind == "supervisor" and callable(fn) and not _is_async(fn):
        fn, args, wait_started = _serve, (fn, *args), True
    return ChildSpec(
        id,
        fn,
        args,
        restart=restart,
        shutdown=shutdown,
        significant=significant,
        kind=kind,
        backoff=backoff,
        wait_started=wait_started,
        drain=drain,
        mailbox=mailbox,
    )


# An interrupt on the way out of the block would leave it half open.
@enable_ki_protection
async def _serve(
    ctx: Context[Any],
    make_block: Callable[..., AbstractAsyncContextManager[object]],
    *args: object,
) -> None:
    async with make_block(*args) as handle:
        ctx.started(handle)
        await trio.sleep_forever()


@frozen(kw_only=True)
class Flags:
    """What holds for a whole supervisor."""

    strategy: Strategy = "one_for_one"
    intensity: int = 1
    period: float = 5.0
    auto_shutdown: AutoShutdown = "never"
    max_children: int | None = None

    def __attrs_post_init__(self) -> None:
        try:
            check_one_of("strategy", self.strategy, STRATEGIES)
            check_whole("intensity", self.intensity)
            check_number("period", self.period, "seconds", zero=False)
            check_one_of("auto_shutdown", self.auto_shutdown, AUTO_SHUTDOWNS)
            check_whole("max_children", self.max_children, none=True)
        except (TypeError, ValueError) as error:
            raise InvalidSupervisorFlags(str(error)) from None

    def check_child(self, spec: ChildSpec[Any]) -> None:
        """Check what depends on the supervisor and on the child together.

        Raises:
            InvalidChildSpec: naming both.
        """
        if spec.significant and self.auto_shutdown == "never":
            raise InvalidChildSpec(
                f"bad combination: child {spec.id!r} is significant and the supervisor's "
                "auto_shutdown is 'never'"
            )
        if spec.significant and spec.restart == "permanent":
            raise InvalidChildSpec(
                f"bad combination: child {spec.id!r} is significant and permanent; "
                "it would be restarted and never end"
            )
