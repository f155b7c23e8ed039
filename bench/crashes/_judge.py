"""What must hold after programs were killed: pure, of what they had said.

- Each task has exactly one terminal state, or is an agent that can go on.
- Each notification was taken at least once, and is the same each time.
- What was acknowledged comes never again, and what was not comes again.
- No process is left, and each output file ends with a whole line of its task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import attrs

Line: TypeAlias = dict[str, Any]
"""What a program has said: ``say`` has what it is about."""

TERMINAL: Final = frozenset({"completed", "failed", "killed"})
_LEAST: Final = 3
"""Programs of a moment in which no recovery died."""
_CRASH: Final = "<ended-by>crash</ended-by>"
_NUMBERED: Final = re.compile(r"line (\d+) of (\w+)")
_BY_KIND: Final = {
    "shell well": {"completed"},
    "shell bad": {"failed"},
    "shell never": set[str](),
    "job well": {"completed"},
    "job bad": {"failed"},
    "job never": set[str](),
}
"""How a task of that kind may end, if nobody ends it."""


@attrs.frozen(kw_only=True)
class Life:
    """One program."""

    part: str
    lines: list[Line]
    code: int
    is_killed: bool
    """Whether it was killed from outside."""
    is_whole: bool
    """Whether it was to end by itself."""

    def said(self, what: str) -> Iterator[Line]:
        """Return the lines about that."""
        return (it for it in self.lines if it["say"] == what)


@attrs.frozen(kw_only=True)
class Found:
    """All that is known of a moment."""

    lives: list[Life]
    outputs: dict[str, bytes]
    """What the output files hold at the end, by task."""
    journal: bytes
    survivors: list[str]
    mode: str = "inline"

    def said(self, what: str) -> Iterator[Line]:
        """Return the lines about that, of all lives."""
        return (line for life in self.lives for line in life.said(what))

    def launched(self) -> dict[str, Line]:
        """Return what was launched, by task."""
        return {it["task"]: it for it in self.said("launched")}

    def seen(self) -> dict[str, list[Line]]:
        """Return the takings of each end's notification, by its id."""
        notes: dict[str, list[Line]] = {}
        for line in self.said("seen"):
            if line["kind"] == "task":
                notes.setdefault(line["note"], []).append(line)
        return notes


def judge(found: Found) -> list[str]:
    """Return what is wrong, a line each."""
    return [
        *_programs(found),
        *_survivors(found),
        *_states(found),
        *_notes(found),
        *_acks(found),
        *_outputs(found),
        *_journal(found),
    ]


def _programs(found: Found) -> Iterator[str]:
    for life in found.lives:
        if life.is_whole and (life.code != 0 or life.is_killed):
            yield f"the program {life.part!r} ended with {life.code}, {life.lines[-1:]}"
        elif not life.is_whole and life.code != -9:
            yield f"the program {life.part!r} ended by itself with {life.code}"


def _survivors(found: Found) -> Iterator[str]:
    for text in found.survivors:
        yield f"it survives: {text}"


def _agents(found: Found) -> set[str]:
    """Return the agents that can go on at the end."""
    *_, last = found.lives
    left = set[str]()
    for line in [*last.said("opened"), *last.said("there")]:
        left.update(line["unfinished"])
        left.update(it["task"] for it in line["tasks"] if it["status"] == "paused")
    return left


def _states(found: Found) -> Iterator[str]:
    launched, resumed = found.launched(), {it["task"] for it in found.said("resumed")}
    told: dict[str, dict[str, str]] = {it: {} for it in launched}
    if found.mode == "inline":
        # Otherwise an event may come before its record is written.
        for line in found.said("started"):
            told.setdefault(line["task"], {})
    for life in found.lives:
        for line in life.lines:
            what = line["say"]
            if what in ("returned", "waited", "seen"):
                if line.get("kind", "task") == "task":
                    told.setdefault(line["task"], {})[line["status"]] = (
                        f"{what} in {life.part}"
                    )
            elif what in ("opened", "there"):
                for it in line["tasks"]:
                    if it["status"] in TERMINAL:
                        told.setdefault(it["task"], {})[it["status"]] = (
                            f"{what} in {life.part}"
                        )
    go_on = _agents(found)
    # It tells of an end before that is recorded, so another one may count.
    seen_to_end = {it["task"] for it in found.said("ended")}
    for task, states in told.items():
        what = launched.get(task, {}).get("kind", "not launched by the program")
        if len(states) > 1 and task not in resumed and task not in go_on:
            yield f"task {task} ({what}) has ended in more than one way: {states}"
        parent = launched.get(task, {}).get("parent")
        if states or task in seen_to_end or {task, parent} & go_on:
            continue
        # Nobody hears of the end of some. It may have come in the very last moment, or
        # in a recovery that died.
        if len(found.lives) > _LEAST:
            continue
        wanted = launched.get(task, {}).get("lines")
        if wanted is None or found.outputs.get(task, b"").count(b"\n") < wanted:
            yield f"task {task} ({what}) has no end"
    *_, last = found.lives
    for line in last.said("opened"):
        for it in line["tasks"]:
            if it["status"] not in TERMINAL and it["task"] not in go_on:
                yield f"task {it['task']} is {it['status']} at the end"


def _notes(found: Found) -> Iterator[str]:
    notes, launched = found.seen(), found.launched()
    by_task: dict[str, set[str]] = {}
    for note, takings in notes.items():
        by_task.setdefault(takings[0]["task"], set()).add(note)
        for key in ("task", "owner", "status", "xml"):
            values = {it[key] for it in takings}
            if len(values) > 1:
                yield f"notification {note} comes again with another {key}: {values}"
    moved = {it["task"] for it in found.said("moved")}
    resumed = {it["task"] for it in found.said("resumed")}
    go_on = _agents(found)
    for task, it in launched.items():
        kind, ids = it["kind"], by_task.get(task, set())
        if it["parent"] is not None:
            continue  # It is its agent's.
        is_told = (it["way"] == "launch" and it["notify"] != "silent") or task in moved
        if is_told and not ids and task not in go_on:
            yield f"the end of task {task} ({kind}) was never told"
        if it["notify"] == "silent" and ids:
            yield f"the end of task {task} is told, and it is silent"
        if len(ids) > 1 and task not in resumed and task not in go_on:
            yield f"task {task} ({kind}) has {len(ids)} notifications: {sorted(ids)}"
        if kind not in _BY_KIND:
            continue
        for note in ids:
            taken = notes[note][0]
            if taken["status"] in _BY_KIND[kind] and _CRASH not in taken["xml"]:
                continue
            if taken["status"] != "failed" or _CRASH not in taken["xml"]:
                yield f"task {task} ({kind}) ended so: {taken['xml']}"


def _acks(found: Found) -> Iterator[str]:
    launched, go_on = found.launched(), _agents(found)
    acked, open_notes = set[str](), dict[str, Line]()
    for life in found.lives:
        seen = {it["note"]: it for it in life.said("seen") if it["kind"] == "task"}
        acking = {it["note"] for it in life.said("acking")}
        for note in seen:
            if note in acked:
                yield f"notification {note} was acknowledged and comes again"
        if life.is_whole:
            for note, line in open_notes.items():
                own = launched.get(line["task"], {}).get("parent")
                if note not in seen and own not in go_on | {line["task"]}:
                    yield f"notification {note} was not acknowledged and is missing"
            open_notes = {}
        acked |= {it["note"] for it in life.said("acked")}
        for note, line in seen.items():
            open_notes[note] = line
        for note in acking:
            # Whether it was is not known, or it was.
            open_notes.pop(note, None)


def _outputs(found: Found) -> Iterator[str]:
    launched, ends = found.launched(), dict[str, str]()
    for line in found.said("seen"):
        if line["kind"] == "task" and _CRASH not in line["xml"]:
            ends[line["task"]] = line["status"]
    for line in found.said("returned"):
        ends[line["task"]] = line["status"]
    for task, contents in found.outputs.items():
        text = contents.decode()
        if text and not text.endswith("\n"):
            yield f"the output of {task} ends within a line: {text[-80:]!r}"
        names = set[str]()
        for number, printed in enumerate(text.splitlines(), 1):
            match = _NUMBERED.fullmatch(printed)
            if match is None or int(match[1]) != number:
                yield f"line {number} of the output of {task} is {printed!r}"
                break
            names.add(match[2])
        count = text.count("\n")
        wanted = launched.get(task, {}).get("lines")
        if len(names) > 1:
            yield f"the output of {task} is of {sorted(names)}"
        if wanted is not None and count > wanted:
            yield f"the output of {task} has {count} lines of {wanted}"
        if wanted is not None and task in ends and count != wanted:
            yield f"{task} is {ends[task]} with {count} of {wanted} lines"
    for task, it in launched.items():
        is_shell = it["kind"].startswith("shell")
        if is_shell and it["lines"] != 0 and task not in found.outputs:
            yield f"the output of {task} ({it['kind']}) is gone"


def _journal(found: Found) -> Iterator[str]:
    """Read the lines by themselves: what the next program would find open."""
    go_on = _agents(found)
    begun, notes = dict[str, Line](), dict[str, str]()
    own: set[str] = set()
    for number, text in enumerate(found.journal.splitlines(keepends=True), 1):
        try:
            line: Line = json.loads(text)
        except ValueError:
            yield f"line {number} of the journal is torn: {text[-80:]!r}"
            continue
        match line["k"]:
            case "start":
                begun[line["r"]] = line
                if "a" in line:
                    # Its agent hears of it once it goes on.
                    own.add(line["r"])
            case "end":
                begun.pop(line["r"], None)
                if "n" in line:
                    notes[line["n"]] = line["r"]
            case "ack":
                notes.pop(line["n"], None)
            case _:
                pass
    for run, line in begun.items():
        if run.rpartition("-")[0] not in go_on and "a" not in line:
            yield f"run {run} has no end in the journal"
    for note, run in notes.items():
        if run in own:
            continue
        yield f"notification {note} of run {run} is open in the journal"
