"""Two studies that are worked out, each as a program, its rows, a table and a plot.

    trio-supervisor sim study restarts --out results

writes the rows as CSV, the table as text, and the plot as SVG, which needs matplotlib
(the extra ``plots``). What they say stands in ``docs/``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from statistics import fmean
from typing import Any, Literal

import attrs
import trio

from actors import Context
from supervisor.tree import (
    ChildStarted,
    Event,
    RestartScheduled,
    child,
    open_supervisor,
)

from ._public import publish
from ._steering.checks import require_count
from ._steering.sim import Sim
from .experiments import Delivery, experiment, open_group

Row = Mapping[str, Any]
Topology = Literal["independent", "chain"]
Strategy = Literal["one_for_one", "rest_for_one", "one_for_all"]
Restart = Literal["permanent", "transient", "temporary"]
Shields = Literal["none", "innermost", "each"]

START_UP = 1.0
"""Virtual seconds that a child needs for its start, and a clean-up for its end."""

CRASH_AT = 50.0
"""When the crash comes, in virtual seconds: all children have long been started."""


class Outdated(Exception):
    """A child uses what another one has given it before that was restarted."""


# ---- Restart strategies: blast radius, and time to quiescence -----------------------------


async def crash(
    sim: Sim,
    *,
    topology: Topology,
    strategy: Strategy,
    children: int,
    restart: Restart = "permanent",
) -> Row:
    """Let one of some children crash once, and tell what follows.

    In a ``chain`` each child uses what the one before it has made at its start. It looks
    once a second, and crashes if that is outdated. ``restarted`` counts incarnations,
    ``decisions`` the restarts that the supervisor has decided on, ``quiet_after`` is the
    virtual time from the crash to the last start, and ``gone`` counts the children that
    do not run at the end.
    """
    made = [0] * children
    which = sim.random.randrange(children)

    async def work(ctx: Context[None], place: int) -> None:
        await trio.sleep(START_UP)
        made[place] += 1
        used = made[place - 1]
        ctx.started()
        if place == which and made[place] == 1:
            await trio.sleep_until(CRASH_AT)
            raise LookupError("the crash")
        while True:
            await trio.sleep(1.0)
            if topology == "chain" and place and made[place - 1] != used:
                raise Outdated

    specs = [
        child(f"child{place}", work, place, wait_started=True, restart=restart)
        for place in range(children)
    ]
    told: Sequence[Event] = ()
    gone = 0
    logging.getLogger("supervisor").addFilter(_quiet)
    try:
        async with open_supervisor(
            specs, strategy=strategy, intensity=10 * children, period=1000.0
        ) as sup:
            with sup.events.subscribe() as events:
                await trio.sleep_until(CRASH_AT + 4 * children * START_UP + 10)
                told = events.drain()
            gone = children - sup.count_children().active
    finally:
        logging.getLogger("supervisor").removeFilter(_quiet)
    starts = [it.time for it in told if isinstance(it, ChildStarted)]
    return {
        "restarted": len(starts),
        "decisions": sum(isinstance(it, RestartScheduled) for it in told),
        "quiet_after": max(starts, default=CRASH_AT) - CRASH_AT,
        "gone": gone,
    }


def _quiet(_: logging.LogRecord) -> bool:
    return False  # The crashes are wanted here.


def restarts(
    *, seeds: int = 40, largest: int = 16, restart: Restart = "permanent"
) -> list[dict[str, Any]]:
    """Return the rows of the study of restart strategies, one for each run."""
    require_count("largest", largest, 2)
    return experiment(
        crash,
        seeds=seeds,
        restart=[restart],
        topology=["independent", "chain"],
        strategy=["one_for_one", "rest_for_one", "one_for_all"],
        children=[it for it in (2, 4, 8, 12, 16) if it <= largest],
    )


# ---- Latency of a cancel: depth, shields, delivery ----------------------------------------


class _Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def after_task_step(self, task: object) -> None:
        self.count += 1


async def unwind(_: Sim, *, delivery: Delivery, shields: Shields, depth: int) -> Row:
    """Cancel groups that stand in one another, and tell how long their end takes.

    Each block waits beside the group below it. ``innermost``, and in ``each``, what ends
    cleans up for a second behind a shield. ``latency`` is in virtual seconds from the
    cancel to the end of the outermost group, ``latency_steps`` in steps of all tasks.
    """
    steps = _Steps()

    async def level(below: int) -> None:
        async with open_group(delivery=delivery) as group:
            if below:
                group.start_soon(level, below - 1)
            try:
                await trio.sleep_forever()
            finally:
                if shields == "each" or (shields == "innermost" and not below):
                    with trio.move_on_after(START_UP, shield=True):
                        await trio.sleep_forever()

    async with open_group(delivery=delivery) as group:
        group.start_soon(level, depth - 1)
        await trio.sleep(10)
        trio.lowlevel.add_instrument(steps)
        asked = trio.current_time()
        group.cancel()
    trio.lowlevel.remove_instrument(steps)
    return {"latency": trio.current_time() - asked, "latency_steps": steps.count}


def cancels(*, seeds: int = 5, deepest: int = 16) -> list[dict[str, Any]]:
    """Return the rows of the study of cancels, one for each run."""
    require_count("deepest", deepest)
    return experiment(
        unwind,
        seeds=seeds,
        delivery=["level", "edge"],
        shields=["none", "innermost", "each"],
        depth=[it for it in (1, 2, 4, 8, 12, 16) if it <= deepest],
    )


# ---- As a table and as a plot -------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Study:
    """How rows become a table and a plot: means over the seeds."""

    title: str
    run: Callable[..., list[dict[str, Any]]]
    small: Mapping[str, int]
    """Arguments for a run that only shows that it works."""
    lines: tuple[str, str]
    """The parameters of which each pair of values is a line."""
    across: str
    """The parameter on the axis below."""
    measures: Mapping[str, str]
    """What was measured, with the words for it."""

    def means(self, rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, float]]:
        """Return the mean of each measure by the values of the parameters."""
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            key = *(row[name] for name in self.lines), row[self.across]
            found.setdefault(key, []).append(row)
        return {
            key: {name: fmean(row[name] for row in them) for name in self.measures}
            for key, them in found.items()
        }

    def table(self, rows: Sequence[Row]) -> str:
        """Return the means as a table of Markdown."""
        heads = [*self.lines, self.across, *self.measures.values()]
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for key, values in self.means(rows).items():
            cells = [*map(str, key), *(f"{values[name]:.1f}" for name in self.measures)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def plot(self, rows: Sequence[Row], path: str) -> None:
        """Draw the means, and write them as SVG. Needs matplotlib."""
        mpl: Any = import_module("matplotlib")  # Few have it, and it takes long.
        figures: Any = import_module("matplotlib.figure")
        means = self.means(rows)
        # Without a date and by its own numbers: the same rows give the same file.
        with mpl.rc_context({"svg.hashsalt": self.title, "svg.fonttype": "none"}):
            figure: Any = figures.Figure(
                figsize=(5 * len(self.measures), 4), layout="tight"
            )
            axes = figure.subplots(1, len(self.measures))
            firsts = list(dict.fromkeys(key[0] for key in means))
            seconds = list(dict.fromkeys(key[1] for key in means))
            for axis, (name, words) in zip(axes, self.measures.items(), strict=True):
                for first, second in dict.fromkeys(key[:2] for key in means):
                    x = [key[2] for key in means if key[:2] == (first, second)]
                    axis.plot(
                        x,
                        [means[first, second, at][name] for at in x],
                        label=f"{first}, {second}",
                        linestyle=("-", "--")[firsts.index(first) % 2],
                        color=f"C{seconds.index(second)}",
                        marker="os^"[seconds.index(second) % 3],
                    )
                axis.set_xlabel(self.across)
                axis.set_ylabel(words)
                axis.set_ylim(bottom=0)
            axes[0].legend(fontsize="small")
            figure.savefig(path, format="svg", metadata={"Date": None})


_STUDIES: Mapping[str, Study] = {
    "restarts": Study(
        title="Restart strategies",
        run=restarts,
        small={"seeds": 2, "largest": 4},
        lines=("topology", "strategy"),
        across="children",
        measures={
            "restarted": "children restarted",
            "decisions": "restarts decided",
            "quiet_after": "seconds to quiescence",
        },
    ),
    "cancels": Study(
        title="Latency of a cancel",
        run=cancels,
        small={"seeds": 1, "deepest": 4},
        lines=("delivery", "shields"),
        across="depth",
        measures={"latency": "latency in seconds", "latency_steps": "latency in steps"},
    ),
}


def study(name: str) -> Study:
    """Return a study by its name: ``restarts`` or ``cancels``.

    Raises ValueError for one that there is not.
    """
    if name not in _STUDIES:
        raise ValueError(f"studies are {', '.join(_STUDIES)}; not {name!r}")
    return _STUDIES[name]


__all__ = ["Study", "cancels", "crash", "restarts", "study", "unwind"]

publish(globals())
