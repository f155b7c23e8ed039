"""Traces of simulated and of real runs, against what can be computed by hand."""

from __future__ import annotations

import csv
import gc
import io
import json
import threading
import weakref
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
import trio

from actors import Context
from supervisor.runtime import Notified, TaskEnded, TaskRestarted, TaskStarted
from supervisor.simulation import Sim, cancel_everywhere, simulate
from supervisor.simulation.trace import (
    Node,
    Trace,
    csv_text,
    dot,
    manifest,
    mermaid,
    supervision,
    timeline,
    traced,
    tree,
)
from supervisor.tree import (
    ChildExited,
    ChildStarted,
    RestartScheduled,
    SupervisorEnded,
    child,
    open_supervisor,
)


async def deaf() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(2)
    await trio.sleep(9)


async def quick() -> None:
    await trio.sleep(99)


async def tidy() -> None:
    try:
        await trio.sleep(99)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5)


async def program(sim: Sim | None = None) -> None:
    """After a second three tasks are cancelled; each ends in its own way."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deaf)
        nursery.start_soon(quick)
        nursery.start_soon(tidy)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    if sim is not None:
        sim.log("all have ended")


def test_the_metrics_are_those_that_a_hand_computes() -> None:
    """deaf is cancelled at 1 and told at 2, tidy is told at 1 and ends at 1.5."""
    run, trace = traced(program)
    assert run.error is None
    assert trace.seconds == 2.0
    tasks = {it.name: it for it in trace.tasks()}
    # Begun and asleep; told; each that sleeps in a shield wakes once more.
    assert {name: tasks[name].steps for name in ("main", "deaf", "quick", "tidy")} == {
        "main": 3,
        "deaf": 3,
        "quick": 2,
        "tidy": 3,
    }
    assert all(it.busy == it.queued == it.longest == 0 for it in tasks.values())
    # Nobody else was cancelled: that a sleep is over is no cancel.
    assert [
        (name, it.requested, it.ended, it.latency, it.shielded, it.own_steps, it.whole)
        for name, task in tasks.items()
        for it in task.cancels
    ] == [
        ("main", 1.0, 2.0, 1.0, 0.0, 1, False),
        ("deaf", 1.0, 2.0, 1.0, 1.0, 2, True),
        ("quick", 1.0, 1.0, 0.0, 0.0, 1, True),
        ("tidy", 1.0, 1.5, 0.5, 0.5, 2, True),
    ]
    # quick and tidy are told, tidy ends, deaf wakes, is told and ends, and main goes on.
    assert [it.steps for it in trace.cancels()][-1] == 6
    assert trace.row()["cancel_latency"] == 1.0
    assert trace.row()["shielded"] == 1.5


def test_the_table_tells_how_long_each_task_lived() -> None:
    lines = [it.split() for it in traced(program)[1].table().splitlines()]
    head = "task began lived steps wakes cancel in steps shielded".split()
    assert lines[0] == head  # In virtual time no step takes any.
    rows = {it[0]: it[1:] for it in lines[1:]}
    assert [round(float(it), 3) for it in rows["tidy"][:2]] == [0.0, 1.5]
    assert rows["tidy"][2:] == ["3", "3", "0.500000", "3", "0.500000"]
    assert len(rows["main"]) == len(rows["tidy"])


def test_the_trace_of_a_simulated_run_is_the_same_each_time() -> None:
    texts = {traced(program, seed=3)[1].text("perfetto", {}) for _ in range(5)}
    assert len(texts) == 1
    assert traced(program, seed=3)[0].digest == simulate(program, seed=3).digest


def test_the_order_in_which_a_set_is_gone_through_does_not_show() -> None:
    async def many(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(quick)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    kept: list[object] = []
    texts: set[str] = set()
    for size in range(6):
        kept += [bytearray(size * 97) for _ in range(50)]  # So addresses differ.
        texts.add(traced(many)[1].text("perfetto", {}))
    assert len(texts) == 1


def test_what_a_cancel_cancels_in_turn_is_no_cancel_of_its_own() -> None:
    async def nested() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(quick)
            await trio.sleep_forever()

    async def outer(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nested)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    _, trace = traced(outer)
    names = {it.number: it.name for it in trace.tasks()}
    told = [(names[it.task], it.steps) for it in trace.cancels()]
    assert told == [("quick", 2), ("nested", 3), ("main", 4)]

    async def within_itself(sim: Sim) -> None:
        with trio.move_on_after(1):
            await nested()

    _, trace = traced(within_itself)
    # main is told, quick is told and ends, and main goes on.
    assert [it.steps for it in trace.cancels()] == [2, 3]


def require_format(told: dict[str, Any]) -> None:
    """What the format of trace events asks for, and that spans nest."""
    assert set(told) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert told["displayTimeUnit"] in ("ms", "ns")
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    open_spans: dict[tuple[str, int], float] = {}
    tracks = {it["tid"] for it in told["traceEvents"] if it["ph"] == "M"}
    for event in told["traceEvents"]:
        assert isinstance(event["name"], str) and event["pid"] == 1
        assert event["tid"] in tracks
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[0].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        else:
            assert event["ph"] in ("b", "e") and event["cat"]
            key = event["cat"], event["id"]
            if event["ph"] == "b":
                assert key not in open_spans
                open_spans[key] = event["ts"]
            else:
                assert open_spans.pop(key) <= event["ts"]
    assert open_spans == {}
    # One task runs at a time, so no two steps of a run overlap.
    ordered = sorted(spans[0])
    for (_, ended), (begun, _) in pairwise(ordered):
        assert ended <= begun


@pytest.mark.parametrize("is_real", [False, True])
def test_the_json_follows_the_rules_of_the_format(is_real: bool) -> None:
    async def main() -> None:
        with trio.move_on_after(0.02):
            await quick()

    if is_real:
        trace = Trace()
        trio.run(main, instruments=[trace])
    else:
        _, trace = traced(program, seed=5)
    told = json.loads(trace.text("perfetto"))
    require_format(told)
    assert told["otherData"]["trio"] == trio.__version__
    names = [it["name"] for it in told["traceEvents"] if it["ph"] in "iX"]
    assert {"spawn", "exit", "wake", "step", "cancel"} <= {*names}


def test_the_faults_and_the_log_of_a_run_are_instants() -> None:
    async def struck(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quick)
            sim.log("here")

    report = cancel_everywhere(struck, schedules=1, max_points=1)
    assert report.points == 1
    run, trace = traced(struck, tape="cancel quick blocked 1")
    assert len(run.faults) == 1
    events = json.loads(trace.text("perfetto"))["traceEvents"]
    told = {it["name"]: it["args"]["fields"] for it in events if "fields" in str(it)}
    assert told["fault"][0] == "cancel quick blocked 1"
    assert told["log"] == ["main", "'here'"]
    (cancelling,) = trace.cancels()
    assert (cancelling.own_steps, cancelling.whole) == (1, False)


def test_a_real_run_is_measured() -> None:
    async def spin() -> None:
        deadline = trio.current_time() + 0.02
        while trio.current_time() < deadline:
            pass
        await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin)
            nursery.start_soon(trio.lowlevel.checkpoint)

    trace = Trace()
    trio.run(main, instruments=[trace])
    tasks = {it.name: it for it in trace.tasks()}
    assert 0.02 <= tasks["spin"].longest <= tasks["spin"].busy
    assert tasks["spin"].steps == 2
    assert trace.seconds >= tasks["spin"].busy
    assert trace.cancels() == []
    head, *rows = [it.split() for it in trace.table().splitlines()]
    (row,) = (it for it in rows if it[0] == "spin")
    told = dict(zip(head[:8], row, strict=True))
    assert head[5:8] == ["busy", "longest", "queued"]
    assert 0.02 <= float(told["busy"]) <= float(told["lived"]) + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_each_step_of_trio_has_one_wake_up(seed: int) -> None:
    trace = traced(program, seed=seed)[1]
    tasks, row = trace.tasks(), trace.row()
    assert [it.wakes for it in tasks] == [it.steps for it in tasks]
    assert row["wakes"] == row["steps"] > 0


def test_at_the_edges_of_a_trace_wake_ups_are_counted_and_not_steps() -> None:
    trace = Trace()

    def counted() -> tuple[int, int]:
        (it,) = (it for it in trace.tasks() if it.name == "wakes_twice")
        return it.steps, it.wakes

    async def wakes_twice() -> None:
        for event in events:
            await event.wait()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wakes_twice)
            await trio.testing.wait_all_tasks_blocked()
            events[0].set()
            trio.lowlevel.add_instrument(trace)
            await trio.testing.wait_all_tasks_blocked()
            assert counted() == (1, 0)
            events[1].set()
            assert counted() == (1, 1)

    events = [trio.Event(), trio.Event()]
    trio.run(main)
    assert counted() == (2, 1)


def test_no_task_is_kept_after_its_end() -> None:
    trace = Trace()
    ended: list[weakref.ref[Any]] = []

    async def short() -> None:
        ended.append(weakref.ref(trio.lowlevel.current_task()))
        with trio.move_on_after(0):
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(short)
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gc.collect()
        assert [it() for it in ended] == [None, None, None]

    trio.run(main, instruments=[trace])
    assert len(trace.tasks()) >= 5


def test_a_trace_may_begin_in_the_middle_of_a_run() -> None:
    trace = Trace()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quick)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(trace)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main)
    tasks = {it.name: it for it in trace.tasks()}
    assert tasks["main"].steps == 2 and tasks["quick"].steps == 1
    assert [it.task for it in trace.cancels()] == [
        tasks["quick"].number,
        tasks["main"].number,
    ]
    require_format(trace.perfetto())


def test_a_trace_that_is_removed_lets_go_of_its_run_and_of_trio() -> None:
    trace = Trace()
    real = trio.CancelScope._cancel  # type: ignore[attr-defined]
    main_task: list[weakref.ref[Any]] = []

    async def main() -> None:
        main_task.append(weakref.ref(trio.lowlevel.current_task()))
        trio.lowlevel.add_instrument(trace)
        await trio.sleep(0.001)
        trio.lowlevel.remove_instrument(trace)
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.lowlevel.checkpoint()

    trio.run(main)
    gc.collect()
    assert trio.CancelScope._cancel is real  # type: ignore[attr-defined]
    assert main_task[0]() is None
    assert trace.cancels() == []
    assert trace.seconds > 0
    require_format(trace.perfetto())


def test_runs_of_other_threads_are_not_heard() -> None:
    inside, go = threading.Event(), threading.Event()
    traces = [Trace(), Trace()]

    async def waits() -> None:
        with trio.CancelScope() as scope:
            inside.set()
            await trio.to_thread.run_sync(go.wait)
            scope.cancel()
            await trio.lowlevel.checkpoint()

    other = threading.Thread(
        target=lambda: trio.run(waits, instruments=[traces[0]]), daemon=True
    )
    other.start()
    assert inside.wait(10)

    async def cancels() -> None:
        for _ in range(3):
            with trio.CancelScope() as scope:
                scope.cancel()
                await trio.lowlevel.checkpoint()

    trio.run(cancels, instruments=[traces[1]])
    go.set()
    other.join(10)
    assert [len(it.cancels()) for it in traces] == [1, 3]
    # Nothing of it is left in trio.
    assert trio.CancelScope._cancel.__module__ == "trio"


def test_a_task_that_is_born_cancelled_is_so_from_its_birth() -> None:
    async def late(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.cancel()
            nursery.start_soon(quick)

    _, trace = traced(late)
    (quick_task,) = (it for it in trace.tasks() if it.name == "quick")
    (cancelling,) = quick_task.cancels
    assert (cancelling.latency, cancelling.own_steps) == (0.0, 2)


def test_the_tree_of_tasks_is_told_in_three_ways() -> None:
    nodes = traced(program)[1].nodes()
    (root,) = tree(nodes)
    (main,) = (it for it in root["children"] if it["name"] == "main")
    assert [it["name"] for it in main["children"]] == ["deaf", "quick", "tidy"]
    ids = {it.name: it.id for it in nodes}
    drawn = mermaid(nodes).splitlines()
    assert drawn[0] == "graph TD"
    assert f"  {ids['main']} --> {ids['deaf']}" in drawn
    assert f'  "{ids["main"]}" -> "{ids["tidy"]}";' in dot(nodes).splitlines()


def test_the_tree_is_the_same_whichever_event_tells_of_a_supervisor_first() -> None:
    """Who subscribes late hears of ends alone."""
    late = [
        ChildExited(1, 2.0, "top/pool", "worker", 1, "failed", "", abnormal=True),
        ChildStarted(2, 2.0, "top/pool", "worker", 2),
        SupervisorEnded(3, 3.0, "top/pool", "stopped", ""),
        SupervisorEnded(4, 4.0, "top", "stopped", ""),
    ]
    nodes = supervision(late)
    parents = {it.id: it.name for it in nodes}
    assert [(it.name, parents.get(it.parent or ""), it.ended) for it in nodes] == [
        ("top", None, 4.0),
        ("pool", "top", 3.0),
        ("worker", "pool", 2.0),
        ("worker (2)", "pool", None),
    ]


def test_a_name_cannot_break_out_of_a_drawing() -> None:
    nodes = [Node(id="a", name='x"]; end & "')]
    assert '"x#quot;]; end #amp; #quot;"' in mermaid(nodes)
    assert r'[label="x\"]; end & \""]' in dot(nodes)


def test_the_tree_of_supervisors_is_read_from_their_events() -> None:
    async def fails(ctx: Context[None]) -> None:
        await trio.sleep(1)
        raise LookupError

    async def above(ctx: Context[None]) -> None:
        async with open_supervisor([child("worker", fails)], name="pool"):
            ctx.started()
            await trio.sleep_forever()

    async def main(sim: Sim) -> list[Any]:
        told: list[Any] = []
        async with open_supervisor([], name="top") as sup:
            with sup.events.subscribe() as events:
                spec = child("above", above, shutdown="infinity", kind="supervisor")
                await sup.start_child(spec)
                await trio.sleep(1.5)
                told = events.drain()
        return told

    nodes = supervision(simulate(main).value)
    (top,) = tree(nodes)
    names = {it["name"]: it["children"] for it in top["children"]}
    assert top["name"] == "top" and {*names} == {"above", "pool"}
    assert [
        (it["name"], it["began"], it["ended"], it["exit"]) for it in names["pool"]
    ] == [("worker", 0.0, 1.0, "failed"), ("worker (2)", 1.0, None, "")]


def test_the_timeline_has_a_track_for_each_task_from_its_start_to_its_end() -> None:
    told = timeline(
        [
            ChildStarted(1, 10.0, "top/pool", "b1", 1),
            TaskStarted(2, 10.0, "b1", "r1", "shell", "make", None),
            ChildExited(3, 12.0, "top/pool", "b1", 1, "failed", "", abnormal=True),
            RestartScheduled(4, 12.0, "top/pool", "b1", 0.5),
            ChildStarted(5, 12.5, "top/pool", "b1", 2),
            TaskRestarted(6, 12.5, "b1", "r2"),
            ChildStarted(7, 12.5, "top/other", "b1x", 1),
            ChildExited(8, 13.0, "top/pool", "b1", 2, "completed", "", abnormal=False),
            TaskEnded(9, 13.0, "b1", "completed", 0, None, None),
            TaskEnded(10, 13.0, "b2", "killed", None, None, None),
            Notified(11, 13.0, "n1", "b1"),
            SupervisorEnded(12, 14.0, "top", "stopped", ""),
        ],
        {"seed": 7},
    )
    assert told["otherData"] == {"seed": 7}
    events = told["traceEvents"]
    named = {it["tid"]: it["args"]["name"] for it in events if it["ph"] == "M"}
    assert len(named) == len([it for it in events if it["name"] == "thread_name"])
    spans = [
        (named[it["tid"]], it["name"], it["ts"], it["dur"], it["args"]["exit"])
        for it in events
        if it["ph"] == "X"
    ]
    assert spans == [
        ("top", "top", 0, 4e6, "stopped"),
        ("pool", "pool", 0, 4e6, "not told"),
        ("b1: make", "b1: make", 0, 2e6, "failed"),
        ("b1: make", "b1: make (2)", 2.5e6, 0.5e6, "completed"),
        ("other", "other", 2.5e6, 1.5e6, "not told"),
        ("b1x", "b1x", 2.5e6, 1.5e6, "not told"),
    ]
    instants = [
        (named[it["tid"]], it["name"], it["ts"]) for it in events if it["ph"] == "i"
    ]
    assert instants == [
        ("b1: make", "TaskStarted", 0),
        ("b1: make", "RestartScheduled", 2e6),
        ("b1: make", "TaskRestarted", 2.5e6),
        ("b1: make", "TaskEnded", 3e6),
        ("b2", "TaskEnded", 3e6),
        ("b1: make", "Notified", 3e6),
    ]
    status = [it["args"].get("status") for it in events if it["name"] == "TaskEnded"]
    assert status == ["completed", "killed"]
    assert timeline([], {})["traceEvents"]  # Of nothing, too.


def test_two_children_of_one_name_have_a_track_each() -> None:
    both = [ChildStarted(it, 1.0, f"top/{it}", "worker", 1) for it in range(2)]
    events = timeline(both)["traceEvents"]
    tracks = [it["tid"] for it in events if it["ph"] == "X" and it["name"] == "worker"]
    assert len({*tracks}) == 2


def test_a_row_has_the_manifest_and_is_csv() -> None:
    rows = [
        {**traced(program, seed=seed)[1].row(), **manifest(seed=seed)}
        for seed in range(2)
    ]
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [it["seed"] for it in read] == ["0", "1"]
    assert {"python", "trio", "trio_supervisor", "command", "tasks"} <= {*read[0]}
    assert csv_text([{"a": 1}, {"b": "x,y"}]) == 'a,b\n1,\n,"x,y"\n'


def test_a_format_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ValueError, match="perfetto, mermaid, dot, json, csv; not 'svg'"
    ):
        traced(program)[1].text("svg")  # type: ignore[arg-type]
