"""What a host may bound: how many tasks run at once, and what lies in the directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs

from actors.house import check_type, check_whole, frozen

from .kinds import POOLS


def _copy(caps: Mapping[str, int]) -> Mapping[str, int]:
    # A copy, so that nobody changes the caps later. What is not a mapping stays as it
    # is, for the check to refuse. To a type checker it is a mapping already, and the
    # question idle: hence the cast.
    is_mapping = isinstance(cast("object", caps), Mapping)
    return dict(caps) if is_mapping else caps


@frozen(kw_only=True)
class Limits:
    """The caps of a runtime, for foreground and background tasks together.

    None means no cap. A task runs when every cap that it counts for has room: ``total``
    counts all tasks. ``shells`` and ``agents`` count those of a kind. ``models`` counts
    agents by their model (``"opus"`` or ``"anthropic/opus"``). ``providers`` counts
    them by what is before the slash of that. ``backlog`` is for notifications that are
    not acknowledged, ``disk`` for bytes in the directory, and ``transcript`` for those
    of one agent there. ``keep_days`` and ``keep_tasks`` say what goes of what earlier
    programs have left.

    A task lends its place while it waits for other tasks or for notifications. An agent
    also lends it while it waits for messages or a person's answer. Then the task goes
    on as soon as it has a place again, before every task that has not started.

    No cap is exceeded, except in three cases. The runtime sees waits, not work:

    - A task counts as waiting while any of its calls waits.
    - A task that has given up a wait, by a timeout of its own, waits for its place
      only at its next wait or tool call.
    - A task whose own child runs on after the wait (it waited for output or input, or
      the child was moved to the background) shares the child's place if no other is
      free, because the child may end only by what this task does now.

    Raises:
        TypeError, ValueError: for a bad cap. The error names it and its value.
    """

    total: int | None = None
    """How many tasks of all types run at once. The others wait."""
    shells: int | None = None
    """How many of those may have the type ``local_bash``."""
    agents: int | None = None
    """How many of those may have the types ``local_agent`` and ``remote_agent``."""
    models: Mapping[str, int] = attrs.field(factory=dict[str, int], converter=_copy)
    """How many of those may be agents with this model. The key is ``model``, for any
    provider, or ``provider/model``. The second one counts if both are there."""
    providers: Mapping[str, int] = attrs.field(factory=dict[str, int], converter=_copy)
    """How many of those may be agents with a model ``provider/...``. They count here
    also if `models` has a cap for their model."""
    backlog: int = 10_000
    """How many notifications may wait to be acknowledged. With so many, nothing is
    launched."""
    disk: int | None = None
    """The most bytes that may lie in the directory. All files in it count, from the
    start, whoever has written them. Those in directories below it do not. A warning
    comes at 80 %. What wants to write more fails: a task by its output, an agent by its
    transcript. Several runtimes may share the directory: it holds for all of them
    together if each has this limit."""
    transcript: int | None = 2**30
    """The most bytes that the transcript of one agent may have, over all its runs. A
    warning comes at 80 %. With more the agent fails, and what it said before is all
    there. If the limit is higher then, it can be resumed."""
    keep_days: int | None = 30
    """Files of tasks of earlier programs go when nothing was written to them for so
    many days."""
    keep_tasks: int | None = 1_000
    """Of so many tasks of earlier programs the output files stay; of more, those go
    that were written to first. Agents are not among them: they can be resumed, so all
    of them stay for ``keep_days``.

    A runtime removes what is too old or too many when it is opened, and tells by one
    warning what went. It does so only if it is the only one that has the directory
    open. Nothing goes that was written to within the last hour, nor the files of a task
    whose notification is still to be acknowledged, nor what no runtime has made."""

    def __attrs_post_init__(self) -> None:
        # `check_whole` raises a TypeError for what is no whole number at all. Here every
        # bad number is a ValueError: the type of the error does not depend on the value.
        for name in ("total", *POOLS, "disk", "transcript", "keep_days"):
            check_whole(name, getattr(self, name), 1, none=True, wrong=ValueError)
        check_whole("keep_tasks", self.keep_tasks, none=True, wrong=ValueError)
        check_whole("backlog", self.backlog, 1, wrong=ValueError)
        for name in ("models", "providers"):
            caps: Mapping[object, object] = getattr(self, name)
            check_type(name, caps, Mapping)
            for key, value in caps.items():
                if not isinstance(key, str) or not key:
                    raise TypeError(f"{name} must map names to caps, not {key!r}")
                check_whole(f"{name}[{key!r}]", value, 1, wrong=ValueError)
