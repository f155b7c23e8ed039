"""What the events of a tree tell of its supervisors and children: pure.

Events are those of `supervisor.tree` and `supervisor.runtime`, which are known here by
their names alone: who traces a plain trio program need not load them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import attrs

from ._chrome import instant, named
from ._drawing import Node
from ._rows import manifest

_ENDS = ("ChildExited", "SupervisorEnded")
_LIVES = ("ChildStarted", "Supervised", *_ENDS)
"""Who tells that something lives; a `timeline` shows all but ``Supervised`` as spans."""


def supervision(events: Iterable[Any]) -> list[Node]:
    """Return the tree of supervisors and children that the events of a tree tell of, as
    they come from ``sup.events``, or as the entries of a recorded log have them: one
    node for each incarnation, with its life. A task of a runtime has its description.
    """
    return [node for _, node in _lives([_event(it) for it in events])]


def timeline(
    events: Iterable[Any], about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the events of a tree tell, as `supervision` takes them, as Chrome's
    JSON has it, which Perfetto reads.

    Each supervisor, child and task is a track, on which each incarnation is a span that
    says how it ended. What else is told of it is an instant there, with its fields:
    restarts, stops, the status of a task, notifications. What is about none of them is
    on the track of the log. Times are in microseconds from the first event; what has
    not ended goes on to the last one. ``about`` is kept beside them.
    """
    told: Sequence[Any] = [_event(it) for it in events]
    first = min((it.time for it in told), default=0.0)
    last = max((it.time for it in told), default=0.0)
    tasks = {getattr(it, "task_id", None) for it in told}
    tracks: dict[str, int] = {}  # {id of a task, or the path of what is none: number}
    shown = [named("process_name", 0, "supervisor"), named("thread_name", 0, "log")]

    def track(path: str, name: str) -> int:
        # A task that waits for its place has no path yet, and may never have one.
        id = path.rpartition("/")[2]
        id = id if id in tasks else path
        if id not in tracks:
            tracks[id] = len(tracks) + 1
            shown.append(named("thread_name", tracks[id], name))
        return tracks[id]

    for path, node in _lives(told):
        ended = last if node.ended is None else node.ended
        span = {"ph": "X", "name": node.name, "pid": 1, "tid": track(path, node.name)}
        span |= {"ts": (node.began - first) * 1e6, "dur": (ended - node.began) * 1e6}
        shown.append({**span, "args": {"exit": node.exit or "not told"}})
    runs: dict[str, str] = {}  # {id of a run: that of its task}
    for event in told:
        kind = type(event).__name__
        if kind in _LIVES and kind != "Supervised":
            continue
        fields = {
            it.name: getattr(event, it.name)
            for it in attrs.fields(cast("Any", type(event)))
        }
        task = fields.get("task_id") or runs.get(fields.get("run_id", ""), "")
        if "run_id" in fields and task:
            runs[fields["run_id"]] = task
        path = task or "/".join(
            fields[it] for it in ("supervisor", "child") if it in fields
        )
        at = (event.time - first) * 1e6
        args = {name: str(it) for name, it in fields.items() if it is not None}
        shown.append(instant(kind, track(path, path) if path else 0, at))
        shown[-1]["args"] = args
    return {
        "traceEvents": shown,
        "displayTimeUnit": "ms",
        "otherData": dict(manifest() if about is None else about),
    }


def _event(told: Any) -> Any:
    """Return an event, of which the entry of a log has one."""
    return told if hasattr(told, "time") else told.event


def _lives(events: Sequence[Any]) -> list[tuple[str, Node]]:
    """Return each incarnation that lives, in the order of their births, with the path
    at which it lives."""
    nodes: list[tuple[str, Node]] = []
    latest: dict[str, int] = {}  # {path: which node was there last}
    described = {
        it.task_id: it.description
        for it in events
        if type(it).__name__ == "TaskStarted"
    }

    def add(path: str, began: float, again: str = "") -> None:
        above, _, name = path.rpartition("/")
        if above and above not in latest:
            add(above, began)
        parent = nodes[latest[above]][1].id if above else None
        latest[path] = len(nodes)
        text = f"{name}: {described[name]}" if name in described else name
        node = Node(id=f"n{len(nodes)}", name=text + again, parent=parent, began=began)
        nodes.append((path, node))

    for event in events:
        kind = type(event).__name__
        if kind == "Specified" and event.live:  # It was there when the log began.
            path = f"{event.supervisor}/{event.child}"
            if path not in latest:
                add(path, event.time)
        if kind not in _LIVES:
            continue
        path = event.supervisor
        if kind.startswith("Child"):
            path = f"{path}/{event.child}"
        number = getattr(event, "incarnation", 1)
        is_new = path not in latest or (
            kind == "ChildStarted" and nodes[latest[path]][1].ended is not None
        )
        if is_new:
            add(path, event.time, f" ({number})" if number > 1 else "")
        if kind in _ENDS:
            node = nodes[latest[path]][1]
            ended = attrs.evolve(node, ended=event.time, exit=event.exit)
            nodes[latest[path]] = path, ended
    return nodes
