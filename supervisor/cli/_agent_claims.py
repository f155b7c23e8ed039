"""What the demo claims of agents: facts, and the questions that are put to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from actors import TaskStatus
from actors.agent import AgentEvent, AssistantMessage

from ..runtime import TaskSnapshot

SAID: Final[Mapping[str, tuple[str, ...]]] = {
    "lead": (
        "I start the tests and a helper.",
        "Both are at work.",
        "One of them is done. I was asked: How far are you?",
        "So is the other. All is well.",
    ),
    "helper": ("I compute.", "It is 42."),
    "watcher": ("I watch.", "I was stopped, and go on. I was asked: Anything new?"),
}
"""What each agent says, by its script, if all goes well."""


@attrs.define(kw_only=True)
class AgentFacts:
    """What was measured. What was not is None, or is not there."""

    ids: dict[str, str] = attrs.Factory(dict[str, str])
    """The task id of each agent that the demo started."""
    own: dict[str, str] = attrs.Factory(dict[str, str])
    """The ids of the agents' own tasks, by description."""
    ended: list[str] = attrs.Factory(list[str])
    """The ids of all tasks, also of the agents' own, in the order of their ends."""
    said: dict[str, list[str]] = attrs.Factory(dict[str, list[str]])
    """What each agent said, as it was heard."""
    written: dict[str, list[str]] = attrs.Factory(dict[str, list[str]])
    """What each agent said, as its transcript on the disk has it."""
    moves: tuple[bool, ...] = ()
    """What the move to the background returned, twice."""
    at_move: TaskSnapshot | None = None
    """What the foreground call returned."""
    lead: TaskSnapshot | None = None
    """The lead at its end."""
    watched: frozenset[int] | None = None
    """The processes that were seen while the watcher watched, with its command."""
    command: int | None = None
    """The process of the watcher's command, as that printed it."""
    after_stop: frozenset[int] | None = None
    """Those that were seen when its stop had returned."""
    stopped: tuple[str, ...] = ()
    """The own tasks that the stop says it has ended."""
    survivors: tuple[str, ...] | None = None
    killed: TaskSnapshot | None = None
    """The watcher when it was stopped."""
    resumed: TaskSnapshot | None = None
    """The watcher at its end."""

    def hear(self, name: str, event: AgentEvent) -> None:
        """Note what an agent has said."""
        if isinstance(event, AssistantMessage) and event.text:
            self.said.setdefault(name, []).append(event.text)


Problem = str | None


def _moved_in_the_same_run(facts: AgentFacts) -> Problem:
    if facts.moves != (True, False):
        return f"the move returned {facts.moves}"
    if facts.at_move is None or facts.at_move.status.is_terminal:
        return "the foreground call returned only at the end"
    if facts.lead is None or facts.lead.run_id != facts.at_move.run_id:
        return f"it was {facts.at_move.run_id}, and then {facts.lead and facts.lead.run_id}"
    return None


def _told_of_everything(facts: AgentFacts) -> Problem:
    for name in ("lead", "helper"):
        heard, wanted = facts.said.get(name), SAID[name]
        # Asked once more, for what came beside its last words, it repeats them.
        if heard is None or tuple(heard) not in (wanted, (*wanted, wanted[-1])):
            return f"{name} said {heard}"
    return None


def _ended_last(facts: AgentFacts) -> Problem:
    names = ("the tests", "helper", "the sum")
    if not facts.own.keys() >= {*names} or "lead" not in facts.ids:
        return f"its own tasks were {sorted(facts.own)}"
    order = [
        place
        for task_id in (*(facts.own[name] for name in names), facts.ids["lead"])
        for place, ended in enumerate(facts.ended)
        if ended == task_id
    ]
    if len(order) != len(names) + 1:
        return f"they ended {len(order)} times in all"
    return None if order[-1] == max(order) else "one of them ended after it"


def _stop_ends_the_subtree(facts: AgentFacts) -> Problem:
    if facts.command is None or facts.command not in (facts.watched or ()):
        return f"its command {facts.command} was never seen"
    if facts.after_stop is None:
        return "the stop did not return"
    if facts.command in facts.after_stop:
        return f"process {facts.command} still there"
    if facts.own.get("the log") not in facts.stopped or facts.survivors != ():
        return f"the stop names {facts.stopped}, and as survivors {facts.survivors}"
    if facts.killed is None or facts.killed.status is not TaskStatus.KILLED:
        return "the agent was not killed"
    return None


def _resumed_where_it_was(facts: AgentFacts) -> Problem:
    if facts.killed is None or facts.resumed is None:
        return "it was not resumed"
    if facts.resumed.id != facts.killed.id:
        return f"it was {facts.killed.id}, and then {facts.resumed.id}"
    if facts.resumed.run_id == facts.killed.run_id:
        return "it is the same run"
    if facts.resumed.status is not TaskStatus.COMPLETED:
        return f"it ended as {facts.resumed.status.value}"
    heard = tuple(facts.said.get("watcher", ()))
    return None if heard == SAID["watcher"] else f"it said {heard}"


def _written_down(facts: AgentFacts) -> Problem:
    for name in SAID:
        written = facts.written.get(name)
        if written is None or written != facts.said.get(name):
            return f"of {name} there is {written}"
    return None


AGENT_CLAIMS: dict[str, Callable[[AgentFacts], Problem]] = {
    "the agent was moved to the background while it worked, and went on in the same run": (
        _moved_in_the_same_run
    ),
    "it got its message between two rounds, and heard of the end of each of its tasks": (
        _told_of_everything
    ),
    "it ended after its own tasks": _ended_last,
    "seen from outside, the stop of the other agent ended its command as well": (
        _stop_ends_the_subtree
    ),
    "resumed, that one went on where it was, under its old id and in a new run": (
        _resumed_where_it_was
    ),
    "the transcripts hold what the agents said, word for word": _written_down,
}
