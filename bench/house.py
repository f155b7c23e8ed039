"""``python -m bench.house``: how the house is built, and how far an event travels in it.

The floor plan is read from the source: circles of imports, entries of the two rooms at
the top, public names, lines of code. The journeys are run on a fake world, so that the
figures are those of the code and not of the machine: which files of ours a call enters,
and how often it changes from one to another.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import logging
import random
import statistics
import sys
import tokenize
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import trio
import trio.testing

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage, FinalResult
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.runtime import open_runtime
from supervisor.tree import child, open_supervisor

ROOT = Path(__file__).parent.parent
PACKAGES = ("actors", "supervisor")

# ---- The floor plan ---------------------------------------------------------


@attrs.frozen
class Import:
    """One module of ours imports another."""

    module: str
    line: int
    imported: str
    kind: str
    """``run`` at the top of the file; ``types`` for type checkers alone; ``lazy``
    inside a function."""


def modules() -> dict[str, Path]:
    """Return the file of every module of ours, by name."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(files: Mapping[str, Path]) -> list[Import]:
    """Return what the modules import of each other."""
    return [arrow for name in files for arrow in _imports_of(name, files)]


def _imports_of(name: str, files: Mapping[str, Path]) -> Iterator[Import]:
    path = files[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def walk(node: ast.AST, kind: str) -> Iterator[Import]:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.Import | ast.ImportFrom):
                for target in dict.fromkeys(_targets(part, package, files)):
                    if target != name:
                        yield Import(name, part.lineno, target, kind)
            yield from walk(part, _kind_below(part, kind))

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "run")


def _kind_below(node: ast.AST, kind: str) -> str:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return "types"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "run":
        return "lazy"
    return kind


def _targets(
    node: ast.Import | ast.ImportFrom, package: str, files: Mapping[str, Path]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        parents = package.split(".")
        parents = parents[: len(parents) - node.level + 1] if node.level else []
        origin = ".".join([*parents, *([node.module] if node.module else [])])
        names = [f"{origin}.{alias.name}" for alias in node.names]
        names = [name if name in files else origin for name in names]
    yield from (name for name in names if name in files)


def circles(arrows: list[Import]) -> list[list[str]]:
    """Return the modules that import each other in a circle, the largest first."""
    below: dict[str, set[str]] = {}
    for arrow in arrows:
        below.setdefault(arrow.module, set()).add(arrow.imported)
    reached = {module: _reach(module, below) for module in below}
    found: list[list[str]] = []
    for module in sorted(below):
        if any(module in circle for circle in found):
            continue
        circle = [m for m in reached[module] if module in reached.get(m, set())]
        if circle:
            found.append(sorted({module, *circle}))
    return sorted(found, key=len, reverse=True)


def _reach(module: str, below: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = [*below.get(module, ())]
    while left:
        at = left.pop()
        if at not in seen:
            seen.add(at)
            left += below.get(at, ())
    return seen


def entries(package: str) -> list[str]:
    """Return what stands at the top of a package."""
    return sorted(
        path.name
        for path in (ROOT / package).iterdir()
        # A folder that has moved leaves its bytecode.
        if path.is_file() or any(path.glob("**/*.py"))
    )


def public_names(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return what each module that nobody calls private lists in ``__all__``."""
    found: dict[str, list[str]] = {}
    for name in files:
        if not any(part.startswith("_") for part in name.split(".")):
            module = importlib.import_module(name)
            if listed := list(getattr(module, "__all__", ())):
                found[name] = sorted(listed)
    return found


def code_lines(source: str) -> int:
    """Return how many lines hold code, and not only comments or docstrings."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                texts.update(range(node.lineno, (node.end_lineno or 0) + 1))
            case _:
                pass
    empty = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


# ---- The journeys -----------------------------------------------------------


@attrs.define
class Journey:
    """The files of ours that were entered, in order."""

    visits: list[str] = attrs.Factory(list[str])
    """A file for each run of calls in it."""

    @property
    def files(self) -> set[str]:
        """The files, each once."""
        return set(self.visits)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Note what is entered while the block runs."""
        seen: list[FrameType] = []  # Kept: an id of a frame that has gone comes again.
        ids: set[int] = set()

        def see(frame: FrameType, event: str, argument: object) -> None:
            if event != "call" or id(frame) in ids:
                return
            ids.add(id(frame))
            seen.append(frame)
            if frame.f_code.co_name not in ("__get__", "__set__"):
                self._enter(frame.f_code.co_filename)

        sys.setprofile(see)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _enter(self, path: str) -> None:
        name = path.removeprefix(f"{ROOT}/")
        if not name.startswith(PACKAGES) or "/testing/" in name:
            return
        if not self.visits or self.visits[-1] != name:
            self.visits.append(name)


async def launch_to_note(journey: Journey) -> None:
    """A shell task, from the call of `launch` to the text of its notification."""
    async with open_runtime("tasks", env=fake_env({"true": ""})) as runtime:
        notes = aiter(runtime.notifications)
        for watched in (False, True):
            with _watching(journey, watched):
                await runtime.launch(Shell("true"))
                note = await anext(notes)
                assert "completed" in note.xml
            note.ack()


async def stop_a_tree(journey: Journey) -> None:
    """A stop of an agent that has a shell, and a sub-agent that has a shell too."""

    async def serve(program: Program) -> None:
        await trio.sleep_forever()

    async with open_runtime("tasks", env=fake_env({"serve": serve})) as runtime:

        async def lead(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await runtime.launch(Shell("serve"))
            await runtime.launch(Agent(worker, "Work."))
            yield AssistantMessage("I wait.")
            await trio.sleep_forever()

        async def worker(context: AgentContext) -> AsyncIterator[AgentEvent]:
            await runtime.launch(Shell("serve"))
            yield AssistantMessage("I work.")
            await trio.sleep_forever()

        for watched in (False, True):
            task = await runtime.launch(Agent(lead, "Lead."))
            await trio.testing.wait_all_tasks_blocked()
            running = [t for t in runtime.tasks() if not t.status.is_terminal]
            assert len(running) == 4
            with _watching(journey, watched):
                await runtime.stop(task)
            for note in runtime.notifications.drain():
                note.ack()


async def revive(journey: Journey) -> None:
    """A message to an agent that has ended, until it has ended again."""

    async def answer(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("I answer.")
        await trio.lowlevel.checkpoint()
        yield FinalResult("answered")

    async with open_runtime("tasks", env=fake_env()) as runtime:
        task = await runtime.launch(Agent(answer, "Go."))
        await task.wait()
        for watched in (False, True):
            with _watching(journey, watched):
                await runtime.send(task.id, "And now this.")
                ended = await runtime.handle(task.id).wait()
                assert ended.result == "answered"
            for note in runtime.notifications.drain():
                note.ack()


async def rest_for_one(journey: Journey) -> None:
    """The failure of the first of three children, until all of them run again."""
    started: list[str] = []
    again = trio.Event()

    async def serve(ctx: Context[str], name: str) -> None:
        nonlocal again
        started.append(name)
        if len(started) % 3 == 0:
            again.set()
        async for _ in ctx.mailbox:
            raise RuntimeError("it fails")

    names = ("first", "second", "third")
    children = [child(name, serve, name) for name in names]
    async with open_supervisor(
        children=children, strategy="rest_for_one", intensity=5
    ) as supervisor:
        await trio.testing.wait_all_tasks_blocked()
        first = next(c.ref for c in supervisor.which_children() if c.id == "first")
        for watched in (False, True):
            again = trio.Event()
            with _watching(journey, watched):
                first.tell("now")
                await again.wait()


@contextmanager
def _watching(journey: Journey, watched: bool) -> Generator[None]:
    # The first round is there to warm what is made once.
    if not watched:
        yield
        return
    with journey.watched():
        yield


JOURNEYS: Mapping[str, Callable[[Journey], Awaitable[None]]] = {
    "launch to note.xml": launch_to_note,
    "stop of an agent, its shell, its sub-agent": stop_a_tree,
    "a message that revives an agent": revive,
    "a failure under rest_for_one": rest_for_one,
}


def travel(journey: Callable[[Journey], Awaitable[None]], seed: int) -> Journey:
    """Run a journey once, with the order of trio's steps fixed by ``seed``."""
    made = Journey()
    order: Any = importlib.import_module("trio._core._run")
    before, order._r = order._r, random.Random(seed)
    try:
        trio.run(journey, made, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        order._r = before
    return made


# ---- The table --------------------------------------------------------------


def measure(seeds: int) -> dict[str, object]:
    """Return every figure, ready for JSON."""
    files = modules()
    arrows = imports(files)
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    public = public_names(files)
    figures: dict[str, object] = {
        "modules": len(files),
        "imports of each other": len(arrows),
        "circles at run time": _sizes([a for a in arrows if a.kind == "run"]),
        "circles with types and lazy imports": _sizes(arrows),
        "public names": sum(map(len, public.values())),
        "lines of code": sum(map(code_lines, texts.values())),
        "files over 550 lines": {
            name: lines
            for name, text in texts.items()
            if (lines := text.count("\n")) > 550
        },
    }
    for package in PACKAGES:
        figures[f"entries of {package}/"] = len(entries(package))
    for name, journey in JOURNEYS.items():
        trips = [travel(journey, seed) for seed in range(seeds)]
        files_entered = statistics.median_high(len(trip.files) for trip in trips)
        visits = statistics.median_high(len(trip.visits) for trip in trips)
        figures[name] = f"{files_entered} files, {visits} visits"
    return figures


def _sizes(arrows: list[Import]) -> list[int]:
    return [len(circle) for circle in circles(arrows)]


def main(arguments: list[str] | None = None) -> None:
    """Measure how the house is built."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.house", description=main.__doc__
    )
    parser.add_argument("--seeds", type=int, default=9, metavar="N", help="orders (9)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--show",
        metavar="TEXT",
        help="print the visits of the journeys, and the circles, that have TEXT in "
        "their name",
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, not {options.seeds}")
    if options.show is not None:
        _show(options.show)
        return
    logging.disable()  # A child fails on purpose.
    try:
        figures = measure(options.seeds)
    finally:
        logging.disable(logging.NOTSET)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        print(f"{name:44} {figure}")


def _show(text: str) -> None:
    if text in "circles":
        for circle in circles(imports(modules())):
            print(len(circle), *circle)
    for name, journey in JOURNEYS.items():
        if text in name:
            print(f"{name}:", *travel(journey, 0).visits, sep="\n  ")


if __name__ == "__main__":
    main()
