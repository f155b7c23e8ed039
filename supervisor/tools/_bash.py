"""Bash: running a command, in the foreground or in the background."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from actors import Context, TaskStatus
from actors.envelope import clean_text
from actors.shell import Shell
from actors.work import Report

from .._errors import SupervisorError, UnknownTask
from .._line import one_line
from .._table import TaskSnapshot
from ..settings import Settings
from ._arguments import Field, Refused
from ._owned import ending
from ._self_kill import ends_host
from ._task_output import end_of, read_end
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

_REFUSAL_SHOWN: Final = 300
_STEPS: Final = 5
_HOSTS: Final = ("python", "python3", "trio-supervisor")

_DESCRIPTION: Final = """\
Runs a command with bash (with sh where there is no bash) and returns its output.

- Each call is a shell of its own: a cd or a variable does not last until the next. Use cwd, or absolute paths.
- stdout and stderr come together, in the order in which they were written, without colours. Of long output only the END is returned, at most {length} characters, after a line that names the file with all of it.
- The first line of the answer is the exit code, or how else the command ended; the output follows. A command that does not exit with 0 is an error.
"""
_INPUT_CLOSED: Final = """\
- The command has no input: it reads the end of it at once. Pass options that keep it from asking.
"""
_IN_BACKGROUND: Final = """\
- The command has no input, unless stdin is true: it reads the end of it at once. Pass options that keep it from asking, or set stdin and answer with TaskWrite.
- A foreground command that has not ended after timeout milliseconds is not stopped: it moves to the background, and the answer says so. The user may move it, too.
- With run_in_background the answer comes at once, with the id of the task and the file that its output goes to. Use it for servers, and for what takes longer than you want to wait. You are told when the task ends; do other work meanwhile. TaskOutput reads its output or waits for its end, TaskStop stops it. There is no need for an & at the end.
- When a command ends, what it has started in the background itself is ended, too: start servers with run_in_background, not with &.
"""
_FOREGROUND_ONLY: Final = """\
- A command that has not ended after timeout milliseconds is stopped.
- When a command ends, what it has started in the background is ended, too.
"""

_Moved = Literal["request", "timeout", "user"]


def bash(runtime: Runtime, owner: str | None, settings: Settings) -> Tool:
    """Return the tool for ``owner``."""
    description = _DESCRIPTION.format(length=settings.max_output_length)
    if settings.background_tasks:
        description += _IN_BACKGROUND
    else:
        description += _INPUT_CLOSED + _FOREGROUND_ONLY
    act = _Bash(runtime, owner, settings).act
    return Tool("Bash", description, _fields(settings), act)


def _fields(settings: Settings) -> list[Field]:
    fields = [
        Field("command", "string", "The command to run."),
        Field(
            "description",
            "string",
            "What the command does, in 5 to 10 words, for people and for lists.",
            required=False,
        ),
        Field(
            "timeout",
            "integer",
            "The most milliseconds that the call may take in the foreground.",
            required=False,
            default=settings.bash_default_timeout,
            minimum=1,
            maximum=settings.bash_max_timeout,
        ),
        Field(
            "cwd",
            "string",
            "The directory to run the command in, if it is not that of the host.",
            required=False,
        ),
    ]
    if settings.background_tasks:
        fields += [
            Field(
                "run_in_background",
                "boolean",
                "Whether to return at once while the command goes on.",
                required=False,
                default=False,
            ),
            Field(
                "stdin",
                "boolean",
                "Whether to keep the input of the command open, for TaskWrite.",
                required=False,
                default=False,
            ),
        ]
    return fields


class _Bash:
    def __init__(self, runtime: Runtime, owner: str | None, settings: Settings) -> None:
        self._runtime = runtime
        self._owner = owner
        self._settings = settings

    async def act(self, call: Call) -> ToolResult:
        arguments, tool_use_id = call.arguments, call.tool_use_id
        shell = self._shell(arguments)
        description: str | None = arguments["description"]
        if arguments.get("run_in_background"):
            return await self._launch(shell, description, tool_use_id, "request", 0)
        milliseconds: int = arguments["timeout"]
        if self._settings.background_tasks:
            return await self._run(shell, description, tool_use_id, milliseconds)
        snapshot = await self._runtime.run(
            shell, description=description, owner=self._owner, tool_use_id=tool_use_id
        )
        return self._ended(snapshot, milliseconds)

    def _shell(self, arguments: dict[str, Any]) -> Shell:
        command: str = arguments["command"]
        if name := ends_host(command, (*_HOSTS, _program())):
            raise Refused(
                "ends_host",
                f"Nothing was run: this would end every {name} process, and with them "
                "the program that runs your tasks. Use TaskStop to end a task, or kill "
                "with the id of one process.",
            )
        may_go_on = self._settings.background_tasks
        try:
            return Shell(
                command,
                cwd=arguments["cwd"],
                stdin="pipe" if arguments.get("stdin") else None,
                deadline=None if may_go_on else arguments["timeout"] / 1000,
            )
        except (TypeError, ValueError) as error:
            raise Refused(
                "invalid_arguments",
                f"Nothing was run: {one_line(str(error), _REFUSAL_SHOWN)}.",
            ) from None

    async def _launch(
        self,
        shell: Shell,
        description: str | None,
        tool_use_id: str | None,
        by: _Moved,
        milliseconds: int,
    ) -> ToolResult:
        task = await self._runtime.launch(
            shell, description=description, owner=self._owner, tool_use_id=tool_use_id
        )
        snapshot = task.snapshot()
        if snapshot.status.is_terminal:
            # It had no file for its output.
            return self._told(self._ended(snapshot, milliseconds))
        return self._moved(snapshot, by, milliseconds)

    async def _run(
        self,
        shell: Shell,
        description: str | None,
        tool_use_id: str | None,
        milliseconds: int,
    ) -> ToolResult:
        """Run it in the foreground until it ends or its time is over."""
        work = _Observed(shell)
        mover = _Mover(self._runtime, work, milliseconds / 1000)
        snapshot: TaskSnapshot | None = None
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mover.run)
            try:
                with mover.waiting:
                    snapshot = await self._runtime.run(
                        work,
                        description=description,
                        owner=self._owner,
                        tool_use_id=tool_use_id,
                    )
            except (SupervisorError, KeyboardInterrupt, SystemExit) as error:
                # Raised below: the nursery would wrap it.
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if snapshot is None:
            if work.task_id is not None:
                return _stopped_early(milliseconds)
            # Nothing of it has happened, so it may as well be another task.
            return await self._launch(
                shell, description, tool_use_id, "timeout", milliseconds
            )
        if snapshot.status.is_terminal:
            # It may have been moved in its last steps.
            return self._told(self._ended(snapshot, milliseconds))
        return self._moved(snapshot, "timeout" if mover.moved else "user", milliseconds)

    def _output(self, snapshot: TaskSnapshot) -> str:
        limit = self._settings.max_output_length
        try:
            task = self._runtime.handle(snapshot.id)
        except UnknownTask:
            # Many others have ended since, and it is forgotten.
            return end_of(snapshot.result or "", limit)
        return read_end(task, limit)

    def _ended(self, snapshot: TaskSnapshot, milliseconds: int) -> ToolResult:
        output = self._output(snapshot)
        how = ending(snapshot)
        timed_out = (
            not self._settings.background_tasks
            and snapshot.error is not None
            and snapshot.error.type == "TimeoutError"
        )
        if timed_out:
            how = f"was stopped, because it did not end within {milliseconds} ms"
        text = how[0].upper() + how[1:]
        return ToolResult(
            f"{text}\n{output or '(no output)'}",
            is_error=snapshot.status is not TaskStatus.COMPLETED,
            data={
                "task_id": snapshot.id,
                "status": snapshot.status.value,
                "exitCode": snapshot.exit_code,
                "signal": snapshot.signal,
                "interrupted": snapshot.status is TaskStatus.KILLED or timed_out,
                "output": output,
            },
        )

    def _told(self, result: ToolResult) -> ToolResult:
        """Return an answer that tells of the end of a task: no notification need
        do so. What was forgotten with that has been read before."""
        self._runtime.consume(result.data["task_id"])
        return result

    def _moved(
        self, snapshot: TaskSnapshot, by: _Moved, milliseconds: int
    ) -> ToolResult:
        id = snapshot.id
        # A name that is no UTF-8 cannot be told.
        file = clean_text(str(snapshot.output_file))
        if by == "request":
            text = f"The command runs in the background as task {id}."
        elif by == "timeout":
            text = (
                f"The command did not end within {milliseconds} ms. It was not stopped: "
                f"it was moved to the background and goes on there as task {id}."
            )
        else:
            text = (
                "The user moved the command to the background while it ran; it goes on "
                f"there as task {id}."
            )
        if snapshot.status is TaskStatus.PENDING:
            text += " It has not begun: it waits until other tasks have ended."
        text += (
            f"\nIts output goes to {file}\n"
            "You will be told when it ends. TaskOutput reads its output, or waits for "
            "its end; TaskStop stops it."
        )
        data: dict[str, Any] = {
            "status": "async_launched",
            "backgroundTaskId": id,
            "outputFile": file,
            "interrupted": False,
        }
        if by != "request":
            data[f"backgroundedBy{by.capitalize()}"] = True
            if output := self._output(snapshot):
                data["output"] = output
                text += f"\n\nOutput so far:\n{output}"
        return ToolResult(text, data=data)


class _Mover:
    """Moves a command to the background when its time is over."""

    def __init__(self, runtime: Runtime, work: _Observed, seconds: float) -> None:
        self._runtime = runtime
        self._work = work
        self._seconds = seconds
        self.waiting = trio.CancelScope()
        self.moved = False

    async def run(self) -> None:
        await trio.sleep(self._seconds)
        for _ in range(_STEPS):
            # One that has its place says so in its next steps.
            await trio.lowlevel.checkpoint()
        if self._work.task_id is None:
            # It has no place yet, and so no id that is known here.
            self.waiting.cancel()
        else:
            self.moved = self._runtime.background(self._work.task_id)


class _Observed:
    """A shell that says which task runs it. Nobody else can, before that ends."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.task_type = shell.task_type
        self.shutdown = shell.shutdown
        self.writes_output = shell.writes_output
        self.takes_input = shell.stdin is not None
        self.task_id: str | None = None

    def describe(self) -> str:
        return self._shell.describe()

    async def run(self, ctx: Context[object], report: Report) -> object:
        self.task_id = report.task_id
        return await self._shell.run(ctx, report)


def _stopped_early(milliseconds: int) -> ToolResult:
    return ToolResult(
        "The command was stopped as it began: before that, other tasks had held every "
        f"place for {milliseconds} ms. Run it again, or use run_in_background.",
        is_error=True,
        data={"error": "no_place", "interrupted": True},
    )


def _program() -> str:
    """Return the name of the program that this is."""
    return sys.executable.rpartition("/")[2] or "python"
