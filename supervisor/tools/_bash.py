"""Bash: running a command, in the foreground or in the background."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from actors import TaskStatus
from actors.shell import Shell
from actors.text import clean_text, one_line

from .._life.telling import leftovers
from .._tasks.errors import UnknownTask
from .._tasks.snapshot import TaskSnapshot
from ..agents._inherited import inherited
from ..lowlevel import life_of
from ..settings import Settings
from ..tree._errors import SupervisorError
from ._arguments import Field, Refused, optional, unfit
from ._host import host_processes
from ._owned import ending, takes_over
from ._self_kill import ends_host, killed_process
from ._task_monitor import check_only, monitored, told_lines
from ._task_output import OutputEnd, end_of, read_end, whole
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime, TaskHandle

_REFUSAL_SHOWN: Final = 300
_PATH_SHOWN: Final = 4096
_NO_DIRECTORY: Final = {
    "FileNotFoundError": "the directory '{}' does not exist",
    "NotADirectoryError": "'{}' is not a directory",
}
_HOSTS: Final = ("python", "python3", "trio-supervisor")

_DESCRIPTION: Final = """\
Runs a command with bash (with sh where there is no bash) and returns its output.

- Each call is a shell of its own: a cd or a variable does not last until the next. Use cwd, or absolute paths.
- stdout and stderr come together, in the order in which they were written, without colours. Of long output only the END is returned, at most {length} characters, after a line that names the file with all of it.
- The first line of the answer is the exit code, or how else the command ended, and other remarks; all that follows is output. A command that does not exit with 0 is an error.
"""
_INPUT_CLOSED: Final = """\
- The command has no input: it reads the end of it at once. Pass options that keep it from asking.
"""
_IN_BACKGROUND: Final = """\
- The command has no input, unless stdin is true: it reads the end of it at once. Pass options that keep it from asking, or set stdin and answer with TaskWrite.
- A foreground command that has not ended after timeout milliseconds is not stopped: it moves to the background, and the answer says so. The user may move it, too.
- With run_in_background the answer comes at once, with the id of the task and the file that its output goes to. Use it for servers, and for what takes longer than you want to wait. You are told when the task ends; do other work meanwhile. TaskOutput reads its output or waits for its end, TaskStop stops it. There is no need for an & at the end.
- With monitor the command runs in the background, and what it prints is told to you line by line while it runs, at most one note a second, or only the lines that hold the text monitor_only. Use it for what you must react to before it ends, such as a watcher or a long build; let the command itself print only what matters (grep --line-buffered). It is stopped after 10 notes in a row that nobody has read or reacted to.
- An & at the end of a command is dropped: without run_in_background the call waits for the command all the same.
- When a command ends, what it has started in the background itself is ended, too, and the answer says so: start servers with run_in_background, not with &.
"""
_FOREGROUND_ONLY: Final = """\
- A command that has not ended after timeout milliseconds is stopped.
- An & at the end of a command is dropped, and the call waits for the command all the same.
- When a command ends, what it has started in the background is ended, too, and the answer says so.
"""

_Moved = Literal["request", "timeout", "user"]


def bash(runtime: Runtime, owner: str | None, settings: Settings) -> Tool:
    """Return the tool for ``owner``."""
    description = _DESCRIPTION.format(length=settings.max_output_length)
    if settings.background_tasks:
        description += _IN_BACKGROUND
    else:
        description += _INPUT_CLOSED + _FOREGROUND_ONLY

    async def act(call: Call) -> ToolResult:
        return await _Bash(runtime, owner, settings, call).act()

    return Tool("Bash", description, _fields(settings), act)


def _fields(settings: Settings) -> list[Field]:
    fields = [
        Field("command", "The command to run."),
        optional(
            "description",
            "What the command does, in 5 to 10 words, for people and for lists.",
        ),
        Field(
            "timeout",
            "The most milliseconds that the call may take in the foreground.",
            "integer",
            default=settings.bash_default_timeout,
            minimum=1,
            maximum=settings.bash_max_timeout,
        ),
        optional("cwd", "The directory to run the command in, if it is not yours."),
    ]
    if settings.background_tasks:
        fields += [
            Field(
                "run_in_background",
                "Whether to return at once while the command goes on.",
                "boolean",
                default=False,
            ),
            Field(
                "stdin",
                "Whether to keep the input of the command open, for TaskWrite.",
                "boolean",
                default=False,
            ),
            Field(
                "monitor",
                "Whether to run it in the background and be told the lines that it "
                "prints, as they come.",
                "boolean",
                default=False,
            ),
            optional(
                "monitor_only",
                "Text that a line must hold to be told, as it stands: it is no regular "
                "expression.",
            ),
        ]
    return fields


class _Bash:
    """One call."""

    def __init__(
        self, runtime: Runtime, owner: str | None, settings: Settings, call: Call
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._arguments = call.arguments
        self._milliseconds: int = call.arguments["timeout"]
        self._order: dict[str, Any] = {
            "description": call.arguments["description"],
            "owner": owner,
            "tool_use_id": call.tool_use_id,
        }

    async def act(self) -> ToolResult:
        shell = self._shell()
        only = check_only(self._arguments.get("monitor_only"), "monitor_only")
        if self._arguments.get("monitor"):
            monitor = await monitored(self._runtime.monitor(shell, only, **self._order))
            task = self._runtime.handle(monitor.task_id)
            answer = self._answer(task.snapshot(), shell, "request")
            return told_lines(answer, monitor)
        if only is not None:
            raise unfit("Nothing was run: monitor_only is given, and monitor is not.")
        if self._arguments.get("run_in_background"):
            task = await self._runtime.launch(shell, **self._order)
            # If it has ended, there was no file for its output.
            return self._answer(task.snapshot(), shell, "request")
        if self._settings.background_tasks:
            return await self._run(shell)
        return self._ended(await self._runtime.run(shell, **self._order), shell)

    def _shell(self) -> Shell:
        command: str = self._arguments["command"]
        if name := ends_host(command, (*_HOSTS, _program())):
            raise Refused(
                "ends_host",
                f"Nothing was run: this would end every {name} process, and with them "
                "the program that runs your tasks. Use TaskStop to end a task, or kill "
                "with the id of one process.",
            )
        if pid := killed_process(command, host_processes):
            whom = "every process there is" if pid < 0 else f"process {pid}"
            raise Refused(
                "ends_host",
                f"Nothing was run: this would signal {whom}, and so the program that "
                "runs your tasks. Use TaskStop to end a task, or kill with the id of "
                "one of its processes.",
            )
        may_go_on = self._settings.background_tasks
        try:
            return Shell(
                command,
                cwd=self._directory(self._arguments["cwd"]),
                stdin="pipe" if self._arguments.get("stdin") else None,
                deadline=None if may_go_on else self._milliseconds / 1000,
            )
        except (TypeError, ValueError) as error:
            raise unfit(
                f"Nothing was run: {one_line(str(error), _REFUSAL_SHOWN)}."
            ) from None

    def _directory(self, given: str | None) -> str | None:
        # An agent may have one of its own, and then names others from there.
        own = inherited(life_of(self._runtime).table, self._order["owner"]).cwd
        if own is None or given is None:
            return given or own
        return os.path.join(own, given)

    async def _run(self, shell: Shell) -> ToolResult:
        """Run it in the foreground until it ends or its time is over."""
        answer: ToolResult | None = None
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            mover = _Mover(nursery, self._runtime, self._milliseconds / 1000)
            try:
                snapshot = await self._runtime.run(
                    shell, **self._order, task_status=mover
                )
                # Before anybody else runs, who could tell of its end as well.
                by: _Moved = "timeout" if mover.moved else "user"
                answer = self._answer(snapshot, shell, by)
            except (SupervisorError, KeyboardInterrupt, SystemExit) as error:
                # Raised below: the nursery would wrap it.
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert answer is not None
        return answer

    def _output(self, snapshot: TaskSnapshot) -> OutputEnd:
        limit = self._settings.max_output_length
        try:
            task = self._runtime.handle(snapshot.id)
        except UnknownTask:
            # Many others have ended since, and it is forgotten.
            return end_of(snapshot.result or "", limit)
        return read_end(self._runtime, task, limit)

    def _answer(self, snapshot: TaskSnapshot, shell: Shell, by: _Moved) -> ToolResult:
        """Return the answer that tells of the end of a task, after which no
        notification will. If it has not ended, or one has told, say where it is."""
        if snapshot.status.is_terminal:
            # Made first: what is consumed may be forgotten, and its output with it.
            answer = self._ended(snapshot, shell)
            if takes_over(self._runtime, self._order["owner"], snapshot):
                return answer
        return self._moved(snapshot, by)

    def _ended(self, snapshot: TaskSnapshot, shell: Shell) -> ToolResult:
        end = self._output(snapshot)
        how = _without_directory(snapshot, shell) or ending(snapshot)
        timed_out = (
            not self._settings.background_tasks
            and snapshot.error is not None
            and snapshot.error.type == "TimeoutError"
        )
        if timed_out:
            how = f"was stopped, because it did not end within {self._milliseconds} ms"
        # All on one line, after which there is nothing but output: what a command
        # prints cannot pass for it.
        said = [how[0].upper() + how[1:]]
        data: dict[str, Any] = {
            "task_id": snapshot.id,
            "status": snapshot.status.value,
            "exitCode": snapshot.exit_code,
            "signal": snapshot.signal,
            "interrupted": snapshot.status is TaskStatus.KILLED or timed_out,
            "output": end.text,
        }
        if leftover := leftovers(snapshot.left_behind):
            data["leftBehind"] = snapshot.left_behind
            if self._settings.background_tasks:
                leftover += "; use run_in_background for what is to go on"
            said.append(leftover)
        if end.is_cut:
            data |= end.cut()
            said.append(f"Only the end of its {whole(data)} follows")
        return ToolResult(
            f"{'. '.join(said)}\n{end.text or '(no output)'}",
            is_error=snapshot.status is not TaskStatus.COMPLETED,
            data=data,
        )

    def _moved(self, snapshot: TaskSnapshot, by: _Moved) -> ToolResult:
        id = snapshot.id
        # A name that is not UTF-8 cannot be shown.
        file = clean_text(str(snapshot.output_file))
        if by == "request":
            text = f"The command runs in the background as task {id}."
        elif by == "timeout":
            text = (
                f"The command did not end within {self._milliseconds} ms. It was not "
                f"stopped: it was moved to the background and goes on there as task {id}."
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
            # That of the call, which has done what it was to do: the command has none.
            "code": 0,
            "backgroundTaskId": id,
            "outputFile": file,
            "interrupted": False,
        }
        if by != "request":
            data[f"backgroundedBy{by.capitalize()}"] = True
            end = self._output(snapshot)
            if end.text:
                data["output"] = end.text
                what = "Output so far"
                if end.is_cut:
                    data |= end.cut()
                    what = f"The end of the {whole(data)} so far"
                text += f"\n\n{what}:\n{end.text}"
        return ToolResult(text, data=data)


def _without_directory(snapshot: TaskSnapshot, shell: Shell) -> str | None:
    """Return a sentence if the command could not begin because of its directory."""
    error = snapshot.error
    if shell.cwd is None or error is None or error.type not in _NO_DIRECTORY:
        return None
    if not error.message.endswith(f": {str(shell.cwd)!r}"):
        return None
    path = one_line(str(shell.cwd), _PATH_SHOWN)
    return f"{_NO_DIRECTORY[error.type].format(path)}: nothing was run"


class _Mover:
    """Moves a command to the background when its time is over."""

    def __init__(self, nursery: trio.Nursery, runtime: Runtime, seconds: float) -> None:
        self._nursery = nursery
        self._runtime = runtime
        self._seconds = seconds
        self.moved = False

    def started(self, value: TaskHandle | None = None) -> None:
        """Called by `Runtime.run` as soon as the task has its id."""
        assert value is not None
        self._nursery.start_soon(self._move, value.id)

    async def _move(self, task_id: str) -> None:
        await trio.sleep(self._seconds)
        self.moved = self._runtime.background(task_id)


def _program() -> str:
    """Return the name of the program that this is."""
    return sys.executable.rpartition("/")[2] or "python"
