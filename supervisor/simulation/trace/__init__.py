"""What the tasks of a trio program did, and when: of a real run or of a simulated one.

    trace = Trace()
    trio.run(main, instruments=[trace])
    trace.save("trace.json")                 # for ui.perfetto.dev, or chrome://tracing
    print(trace.table())                     # per task: steps, wake-ups, busy time, ...
    print(mermaid(trace.nodes()))            # the tree of tasks; also `dot` and `tree`

    run, trace = traced(program, seed=7)     # of a simulated run: the same each time
    timeline(log.read(lines))                # of what a recorded log tells

A trace keeps numbers and names, and no task after its end. It watches, and so it never
raises into the run. With it, a program that only passes messages takes 1.7 times as
long.
"""

from __future__ import annotations

from .._public import publish as _publish
from ._drawing import Node, dot, mermaid, tree
from ._instrument import Cancelling, Trace, Traced, traced
from ._rows import csv_text, manifest
from ._told import supervision, timeline

__all__ = [
    "Cancelling",
    "Node",
    "Trace",
    "Traced",
    "csv_text",
    "dot",
    "manifest",
    "mermaid",
    "supervision",
    "timeline",
    "traced",
    "tree",
]

_publish(globals())
