"""Who answers when an agent asks whether it may make a call: the person at the
terminal, or the program that reads our JSON."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import attrs
import orjson
import trio
from rich.cells import chop_cells

from ..runtime import Approval, ApprovalAnswered, ApprovalRequested, Runtime
from ..tree import Event, Gap
from ._listening import Listening
from ._stdin import Stdin
from ._stdout import Stdout

_SHOWN = 20_000
"""Characters shown of one argument; a note says how many more there are."""
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}
_FIELDS = {"approval_id", "allow", "reason"}
_EVENTS_KEPT = 10_000
_BESIDE = "  | "
"""Stands before each line of a call, so that nothing in it passes for ours."""


@attrs.frozen
class AnswerRefused(Event):
    """A line of standard input has answered nothing."""

    text: str
    """Why not."""


class Questions:
    """What agents ask, as the events of a runtime tell of it."""

    def __init__(self, runtime: Runtime) -> None:
        self.approvals = runtime.approvals
        self._events = runtime.events.subscribe(_EVENTS_KEPT)
        self._changed = trio.lowlevel.ParkingLot()
        self._is_over = False

    async def listen(self) -> None:
        """Take in what happens until the runtime has ended."""
        async for event in self._events:
            if isinstance(event, ApprovalRequested | ApprovalAnswered | Gap):
                self._changed.unpark_all()
        self._is_over = True
        self._changed.unpark_all()

    async def wait_asked(self) -> Approval | None:
        """Wait until something is asked, and return the oldest question; None when
        nothing can be asked any more."""
        while not (pending := self.approvals.pending()):
            if self._is_over:
                return None
            await self._changed.park()
        return pending[0]

    async def wait_withdrawn(self, id: str) -> None:
        """Wait until a question waits for no answer any more."""
        while any(approval.id == id for approval in self.approvals.pending()):
            await self._changed.park()


class TerminalAsker:
    """Shows each question on the terminal and takes y or n for an answer.

    While one is shown nothing else is: ``quiet`` is what whoever else writes holds.
    """

    def __init__(
        self, runtime: Runtime, stdout: Stdout, quiet: trio.Lock, listening: Listening
    ) -> None:
        self._questions = Questions(runtime)
        self._stdout = stdout
        self._quiet = quiet
        self._listening = listening
        self._stdin = Stdin()

    async def answer(self) -> None:
        """Answer every question until the runtime has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._questions.listen)
            while (approval := await self._questions.wait_asked()) is not None:
                # What led to it stands above it.
                await self._listening.wait_heard()
                async with self._quiet:
                    await self._ask(approval)

    async def _ask(self, approval: Approval) -> None:
        self._stdin.forget()
        text = question(approval, self._stdout.width or 80)
        await self._stdout.write(text)
        while (answer := await self._read_answer(approval.id)) is not None:
            if answer in _ANSWERS:
                self._questions.approvals.answer(approval.id, _ANSWERS[answer])
                return
            await self._stdout.write("y allows it, n refuses it: ")
        await self._stdout.write("\nIt is not asked any more.\n")

    async def _read_answer(self, id: str) -> str | None:
        """Return what was typed; None if the question was withdrawn meanwhile."""
        lines: list[bytes | None] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._questions.wait_withdrawn(id)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            lines.append(await self._stdin.read_line())
            nursery.cancel_scope.cancel()
        for line in lines:
            if line is None:
                # Ctrl+D, or the terminal is gone: nobody has allowed it.
                await self._stdout.write("\n")
                return "n"
            return line.decode(errors="replace").strip().lower()
        return None


class JsonAsker:
    """Takes the answers from standard input, a JSON object on each line, to
    questions that stand among the events on standard output::

        {"approval_id": TEXT, "allow": true or false, "reason": TEXT}

    The reason may be left out. The event `AnswerRefused` reports a line that answers
    nothing. When the input has ended, what is still asked is refused.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._questions = Questions(runtime)
        self._events = runtime.events
        self._stdin = Stdin()

    async def answer(self) -> None:
        """Answer every question until the runtime has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self._questions.listen()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        while (line := await self._stdin.read_line()) is not None:
            if line.strip() and (why := self._take(line)) is not None:
                self._events.emit(AnswerRefused, why)
        while (approval := await self._questions.wait_asked()) is not None:
            why = "standard input has ended, so nobody can answer"
            self._questions.approvals.answer(approval.id, False, why)

    def _take(self, line: bytes) -> str | None:
        """Take one answer; return what is wrong with it, if anything is."""
        try:
            fields: object = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return f"an answer must be a JSON object on one line: {error}"
        shape = '{"approval_id": TEXT, "allow": true or false, "reason": TEXT}'
        if not isinstance(fields, dict) or not (
            {"approval_id", "allow"} <= fields.keys() <= _FIELDS
        ):
            return f"an answer must be {shape}; the reason may be left out"
        given = cast("dict[str, Any]", fields)
        try:
            is_taken = self._questions.approvals.answer(
                given["approval_id"], given["allow"], given.get("reason")
            )
        except TypeError as error:
            return f"an answer must be {shape}: {error}"
        if not is_taken:
            return f"no call waits for an answer to {given['approval_id']!r}"
        return None


def question(approval: Approval, width: int) -> str:
    """Return the text that asks for an answer: all of the call, each character of
    it visible, in lines that a terminal of ``width`` does not break."""
    use = approval.tool_use
    who = f"{approval.agent_id} ({visible(approval.agent_type)})"
    lines = ["", f"Agent {who} asks whether it may call {visible(use.name)}:"]
    for name, value in use.input.items():
        lines += _beside(f"{visible(name)}: {_shown(value)}", width)
    if not use.input:
        lines += _beside("(without arguments)", width)
    return "\n".join([*lines, "Allow it? y or n: "])


def _shown(value: object) -> str:
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, default=repr)
        except (TypeError, ValueError, RecursionError):
            return "(cannot be shown)"
    if len(value) <= _SHOWN:
        return visible(value)
    more = f"\n(and {len(value) - _SHOWN:,} characters more, which are NOT SHOWN)"
    return visible(value[:_SHOWN]) + more


def _beside(text: str, width: int) -> list[str]:
    room = max(10, width - len(_BESIDE))
    return [
        _BESIDE + piece
        for line in text.split("\n")
        for piece in chop_cells(line, room) or [""]
    ]


def visible(text: str) -> str:
    """Return ``text`` with an escape in the place of every character that shows
    nothing or moves others, but for the newline: nothing is left out, and nothing
    speaks to the terminal."""
    return re.sub(r"[^\n]", _escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
