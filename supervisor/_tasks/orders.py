"""An order: what a caller wants started, checked before anything is, and whose it is.

Every argument is looked at here, and each property of the work is read once, so
that a bad one is an error of the call and changes nothing.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import trio

from actors.house import check_one_of
from actors.work import Work

from .._delivery.outbox import NOTIFY, Notify
from ..tree._errors import InvalidChildSpec
from ..tree._spec import Backoff, ChildSpec, Restart
from ..tree._supervisor import open_supervisor
from .errors import DepthExceeded, RuntimeStopping
from .kinds import KINDS
from .record import Order, RestartPolicy, Task

if TYPE_CHECKING:
    from .agent_task import AgentTask

# What `Runtime.launch` has when nothing is said about restarts.
_RUN_ONCE = ("temporary", 1, 5.0, None)

# What every work has.
_MEMBERS = ("task_type", "run", "shutdown", "describe", "writes_output")

_TYPES = f"one of {', '.join(KINDS)}"


def check_order(
    work: Work,
    description: str | None,
    owner: str | None,
    tool_use_id: str | None,
    policy: RestartPolicy | None,
    notify: Notify,
) -> Order:
    """Return the order that the arguments of `Runtime.launch` make.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """
    if isinstance(work, type):
        raise _refusal(work, "that is a class")
    try:
        task_type: object = work.task_type
        run: object = work.run
        given: object = work.shutdown
        describe: Any = work.describe
        writes_output = work.writes_output
    except AttributeError as error:
        raise _refusal(work, _lacking(work)) from error
    takes_input = bool(getattr(work, "takes_input", False))
    if not isinstance(task_type, str) or task_type not in KINDS:
        raise _refusal(work, f"its task_type must be {_TYPES}, not {task_type!r}")
    # What is a plain str, as nearly all are, needs no look.
    if description is not None and type(description) is not str:
        description = as_text("description", description)
    if owner is not None and type(owner) is not str:
        owner = as_text("owner", owner)
    if tool_use_id is not None and type(tool_use_id) is not str:
        tool_use_id = as_text("tool_use_id", tool_use_id)
    if notify != "wake":
        check_one_of("notify", notify, NOTIFY)
    if not callable(run):
        raise _refusal(work, "its run is not a method")
    shutdown = given if type(given) is float else _plain_number(given)
    if not isinstance(shutdown, float) or not 0 <= shutdown < inf:
        raise TypeError(f"the shutdown of a work must be seconds, not {given!r}")
    if not callable(describe):
        raise _refusal(work, "its describe is not a method")
    if not description:
        own: object = describe()
        if type(own) is not str:
            if not isinstance(own, str):
                raise TypeError(f"the description of a work must be a str, not {own!r}")
            own = str.__str__(own)
        description = own
    limit_key: object = getattr(work, "limit_key", None)
    if limit_key is not None:
        limit_key = as_text("the limit_key of a work", limit_key)
    has_tasks = bool(getattr(work, "has_tasks", False))
    return Order(
        work,
        str.__str__(task_type),
        shutdown,
        bool(writes_output),
        takes_input,
        description,
        owner,
        tool_use_id,
        policy,
        notify,
        has_tasks,
        has_tasks and bool(getattr(work, "takes_messages", False)),
        limit_key,
    )


def check_policy(
    restart: Restart, intensity: int, period: float, backoff: Backoff | None
) -> RestartPolicy | None:
    """Return how often a task is run again, or None for never.

    Raises:
        InvalidChildSpec, InvalidSupervisorFlags: naming the value.
    """
    if intensity is not True and (restart, intensity, period, backoff) == _RUN_ONCE:
        return None
    try:
        ChildSpec("run", trio.sleep_forever, restart=restart, backoff=backoff)
    except InvalidChildSpec as error:
        # Whoever launches a task has named no child.
        raise InvalidChildSpec(str(error).removeprefix("child 'run': ")) from None
    open_supervisor(intensity=intensity, period=period)
    if restart == "temporary":
        return None
    return RestartPolicy(
        restart=restart, intensity=intensity, period=period, backoff=backoff
    )


def as_text(name: str, value: object) -> str | None:
    """Return ``value`` as a real str, so that none of its own methods runs later."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str or None, not {value!r}")
    return str.__str__(value)


def parent_of(named: Task, owner: str | None) -> AgentTask | None:
    """Return the agent whose own task a new one is to be: ``named`` is the task that
    its ``owner`` names. If nobody is named, it is the one from which the call comes,
    and the agent above it counts, too.

    Raises:
        RuntimeStopping: if that agent is stopping.
    """
    parent = named.as_agent
    if parent is None and owner is None:
        parent = named.parent
    if parent is not None and parent.stopping:
        raise RuntimeStopping(
            f"the agent {parent.task_id} is stopping and starts no task"
        )
    return parent


def depth_below(parent: AgentTask | None, max_depth: int) -> int:
    """Return the depth of an agent whose parent this is.

    Raises:
        DepthExceeded: if that is too deep, or cannot be told.
    """
    if parent is None:
        return 0
    lineage: list[str] = []
    above: AgentTask | None = parent
    while above is not None and above.task_id not in lineage:
        lineage.append(above.task_id)
        above = above.parent
    lineage.reverse()
    # A parent that is its own, or a depth from a file that somebody has changed.
    if above is not None or parent.depth < 0:
        raise DepthExceeded(None, max_depth, tuple(lineage))
    if parent.depth >= max_depth:
        raise DepthExceeded(parent.depth + 1, max_depth, tuple(lineage))
    return parent.depth + 1


def _refusal(work: object, why: str) -> TypeError:
    if isinstance(work, str):
        why = f"{why}; a command is launched as Shell({work!r})"
    if callable(work) and not isinstance(work, type):
        why = f'{why}; the loop of an agent is launched as Agent(run, "prompt")'
    return TypeError(f"expected a work such as Shell(...), got {work!r}: {why}")


def _lacking(work: object) -> str:
    """Say which of the members that every work has this one has not."""
    for name in _MEMBERS:
        if not hasattr(work, name):
            of = f", which must be {_TYPES}" if name == "task_type" else ""
            return f"it has no {name}{of}"
    return "its members cannot be read"


def _plain_number(value: object) -> object:
    """Return a number as a real float, so that none of its own methods runs
    later, and whatever else it is as it is."""
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return int.__float__(value)
        except OverflowError:
            return inf
    return value
