"""A process tree in memory."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, cast

import attrs
import trio

from ..env import Process, ProcessExit, ProcessUsage, Terminal
from ._faults import Ways, goes_wrong
from ._pipe import CAPACITY, Pipe
from ._program import Program, Script

if TYPE_CHECKING:
    from ._processes import FakeProcesses

_PATIENCE = 5.0
"""Seconds that closing waits for a script that shields itself."""


_SLOW_RECEIVE = 1.0
_SLOW_KILL = 2 * _PATIENCE
_ORPHANED = 10.0
_FLOOD = b"flood\n" * (2 * CAPACITY // 6)

_TAKEN = "somebody else has taken its exit code"

SEAMS: Mapping[str, Ways] = {
    "process.receive": {
        "byte": "one byte comes alone",
        "killed": "somebody else has killed the whole tree",
        "slow": "it takes a virtual second",
    },
    "process.receive_stderr": {
        "byte": "one byte comes alone",
        "slow": "it takes a virtual second",
    },
    "process.send": {"broken": "its input is closed, by the program"},
    "process.send_eof": {"broken": "its input is closed, by the program"},
    "process.usage": {"unknown": "it cannot be read"},
    "process.wait_exit": {"lost": "somebody else has taken the exit code"},
    "process.terminate": {"deaf": "no program heeds it"},
    "process.kill": {"slow": "they end ten virtual seconds later"},
}
"""What can go wrong by itself with each operation of a process."""


@attrs.define(eq=False, repr=False, slots=False, kw_only=True)
class FakeProcess(Process):
    """A process tree in memory; see `actors.env.Process`."""

    _world: FakeProcesses = attrs.field(alias="world")
    command: str
    """The command line."""
    argv: tuple[str, ...]
    cwd: str | None
    env: Mapping[str, str]
    marker: str
    stdin: Literal["null", "pipe"]
    stderr: Literal["stdout", "pipe"]
    terminal: Terminal | None
    nice: int | None
    rlimits: Mapping[str, int]

    ends_by: str = attrs.field(default="", init=False)
    """The fault by which its leader will end otherwise than its script says: ``code`` or
    ``signal``; "" for none."""
    leader: Program = attrs.field(init=False)
    """The first process of the tree."""

    def __attrs_post_init__(self) -> None:
        self._living: dict[int, Program] = {}
        self._nursery: trio.Nursery | None = None
        self._unborn: list[tuple[Program, Script]] = []
        # Those that the nursery will start when it is open.
        self._cpu_of_ended = 0.0
        self._stopped = False
        self._killed = False
        self._dies_slowly = False
        self._exit_lost = False
        self._closed = False
        self._exit: ProcessExit | None = None
        self._news = trio.lowlevel.ParkingLot()
        self._has_input = self.stdin == "pipe" or self.terminal is not None
        self._input_open = self._has_input
        self._input_broken = False
        self._end_was_read = False
        self._input = Pipe(
            has_reader=lambda: (
                self._exit is None and not self._closed and not self._input_broken
            ),
            # A terminal tells its end once; whoever reads on waits for ever.
            has_writer=lambda: (
                not self._input_broken
                and (
                    self._input_open
                    or (self.terminal is not None and self._end_was_read)
                )
            ),
        )
        self._output = self._errors = self._output_pipe()
        if self.stderr == "pipe":
            self._errors = self._output_pipe()

    def _output_pipe(self) -> Pipe:
        return Pipe(
            has_reader=lambda: not self._closed,
            has_writer=lambda: any(p.holds_output for p in self._living.values()),
        )

    def __repr__(self) -> str:
        return f"<FakeProcess {self.pid} {self.command!r}>"

    @property
    def pid(self) -> int:
        return self.leader.pid

    @property
    def is_closed(self) -> bool:
        """Whether its descriptors were given back."""
        return self._closed

    @property
    def has_living(self) -> bool:
        """Whether a process of it lives."""
        return bool(self._living)

    # What users of the protocol see

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self._read(self._output, self._way_to_receive(), max_bytes)

    async def receive_or_exit(self, max_bytes: int) -> bytes | ProcessExit | None:
        way = self._way_to_receive()

        def has_exited() -> bool:
            return self._exit is not None

        if data := await self._read(self._output, way, max_bytes, has_exited):
            return data
        return await self.wait_exit()

    def _way_to_receive(self) -> str:
        way = self._goes_wrong("process.receive")
        if way == "killed":
            for program in self._living.values():
                program.end_by(9)
        return way

    @property
    def is_over(self) -> bool:
        return not self._living and self._output.is_empty

    async def receive_stderr(self, max_bytes: int = 65_536) -> bytes:
        if self._errors is self._output:
            raise trio.ClosedResourceError("stderr is not a stream of its own")
        way = self._goes_wrong("process.receive_stderr")
        return await self._read(self._errors, way, max_bytes)

    async def _read(
        self,
        pipe: Pipe,
        way: str,
        max_bytes: int,
        until: Callable[[], bool] = lambda: False,
    ) -> bytes:
        if way == "slow":
            await trio.sleep(_SLOW_RECEIVE)
        data = await pipe.read(1 if way == "byte" else max_bytes, until)
        if self._closed:
            raise trio.ClosedResourceError
        return data

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed or not self._input_open:
            raise trio.ClosedResourceError
        self._meet_broken_input("process.send")
        await self._write(data)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed or not self._has_input:
            raise trio.ClosedResourceError
        if self._input_open:
            self._meet_broken_input("process.send_eof")
            await self._write(b"")
            self._input_open = False
            self._input.changed()

    async def _write(self, data: bytes) -> None:
        try:
            await self._input.write(data)
        except trio.BrokenResourceError:
            if self._closed:
                raise trio.ClosedResourceError from None
            raise

    def _meet_broken_input(self, operation: str) -> None:
        if self._goes_wrong(operation):
            self._input_broken = True
            self._input.changed()

    def usage(self) -> ProcessUsage | None:
        """Return what the scripts say of themselves."""
        if self._goes_wrong("process.usage"):
            return None
        living = self._living.values()
        return ProcessUsage(
            cpu_seconds=self._cpu_of_ended + sum(p.cpu_seconds for p in living),
            memory_bytes=sum(p.memory_bytes for p in living),
            processes=len(living),
        )

    async def wait_exit(self) -> ProcessExit:
        if self._goes_wrong("process.wait_exit"):
            self._lose_exit()
        await self._wait_until(lambda: self._exit is not None)
        assert self._exit is not None
        return self._exit

    async def wait_gone(self) -> None:
        await self._wait_until(lambda: not self._living)

    def terminate(self) -> None:
        if not self._living:
            return
        self._stopped = True
        if self._goes_wrong("process.terminate"):
            return
        for program in self._living.values():
            program.receive_sigterm()

    def kill(self) -> None:
        if not self._living or self._dies_slowly:
            return
        self._stopped = self._killed = True
        if self._goes_wrong("process.kill") and self._nursery is not None:
            self._dies_slowly = True
            self._nursery.start_soon(self._die_slowly)
        else:
            self._die()

    async def _die_slowly(self) -> None:
        await trio.sleep(_SLOW_KILL)
        self._die()

    def _die(self) -> None:
        for program in self._living.values():
            program.end_by(9)

    async def members(self) -> tuple[int, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(self._living)

    async def aclose(self) -> None:
        self.kill()
        with trio.move_on_after(_PATIENCE, shield=True):
            if not self._closed:
                await self.wait_gone()
        self._closed = True
        self._input_open = False
        self._output.close()
        self._errors.close()
        self._input.close()
        self._news.unpark_all()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # What its programs do

    def going_wrong(self, script: Script, way: str) -> Script:
        """Return what the leader does that goes wrong so."""
        self.ends_by = way if way in ("code", "signal") else ""

        async def floods(program: Program) -> int | None:
            await program.print(_FLOOD)
            return await script(program)

        async def leaves(program: Program) -> int | None:
            program.fork(self._outlive)
            return await script(program)

        return {"flood": floods, "orphan": leaves}.get(way, script)

    async def _outlive(self, _: Program) -> None:
        while self._exit is None:
            await self._news.park()
        await trio.sleep(_ORPHANED)

    def start(self, script: Script, *, prints: bool, pid: int | None = None) -> Program:
        """Start a process of this tree."""
        program = Program(self, pid or self._world.next_pid(), prints=prints)
        self._living[program.pid] = program
        if self._killed and not self._dies_slowly:
            program.end_by(9)
        if self._nursery is not None:
            self._play(self._nursery, program, script)
        else:
            self._unborn.append((program, script))
            if len(self._unborn) == 1:
                self._world.start_task(self._keep, name=f"tree {program.pid}")
        return program

    async def _keep(self) -> None:
        """Hold the nursery of its scripts, until all have ended."""
        async with trio.open_nursery() as self._nursery:
            # What cancels the test ends no script: the runtime does, by signals.
            self._nursery.cancel_scope.shield = self._world.is_entered
            for program, script in self._unborn:
                self._play(self._nursery, program, script)
            self._unborn.clear()

    def _play(self, nursery: trio.Nursery, program: Program, script: Script) -> None:
        nursery.start_soon(self._run, program, script, name=f"program {program.pid}")

    def _lose_exit(self) -> None:
        self._exit_lost = True
        if self._exit is not None:
            self._exit = attrs.evolve(self._exit, code=None, signal=None, lost=_TAKEN)

    async def print(self, data: bytes, *, to_stderr: bool = False) -> None:
        """Write to the output."""
        if self.terminal is not None:
            data = data.replace(b"\n", b"\r\n")
        await (self._errors if to_stderr else self._output).write(data)

    def output_changed(self) -> None:
        """Look again who holds the output."""
        self._output.changed()
        self._errors.changed()

    async def read_input(self, max_bytes: int) -> bytes:
        """Read what was sent."""
        data = await self._input.read(max_bytes)
        if not data:
            self._end_was_read = True
        return data

    # A real Ctrl+C is for the test, and not for the script that happens to run.
    @trio.lowlevel.enable_ki_protection
    async def _run(self, program: Program, script: Script) -> None:
        code = 1
        mistake = None
        try:
            code = await program.run(script)
        except SystemExit as error:
            # As in a real program.
            code = self._code_of(error)
        except BaseException as error:  # noqa: ASYNC103 - `aclose` raises the rest
            cancelled, wrong = _without_cancelled(error)
            if wrong is not None:
                # The boundary: it is the test that is wrong, and not the command.
                # `FakeProcesses.aclose` raises it. An interrupt, for one, is for
                # whoever runs the test.
                self._world.add_mistake(wrong)
            if isinstance(wrong, KeyboardInterrupt):
                code = -signal.SIGINT
            elif wrong is not None:
                mistake = f"its script raised {type(wrong).__name__}: {wrong}"
                self._output.put(traceback.format_exc().encode(errors="replace"))
            if cancelled is not None:
                raise cancelled from None  # noqa: ASYNC104
        finally:
            self._end(program, code, mistake)

    def _code_of(self, error: SystemExit) -> int:
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        self._errors.put(f"{error.code}\n".encode(errors="replace"))
        return 1

    def _end(self, program: Program, code: int, mistake: str | None) -> None:
        del self._living[program.pid]
        self._cpu_of_ended += program.cpu_seconds
        if not self._living:
            self._nursery = None  # It ends now. What is forked later gets another one.
        if program is self.leader:
            if self.ends_by == "code":
                code = 1 if code == 0 else 0
            elif self.ends_by == "signal":
                code = -signal.SIGSEGV
            number = program.signal or (-code if code < 0 else None)
            lost = mistake or (_TAKEN if self._exit_lost else None)
            self._exit = ProcessExit(
                code=None if number or lost else code,
                signal=None if lost else number,
                lost=lost,
                after_stop=self._stopped,
                cpu_seconds=program.cpu_seconds,
            )
            self._input.changed()
        self.output_changed()
        self._news.unpark_all()

    def _goes_wrong(self, operation: str) -> str:
        faults = self._world.faults
        return "" if faults is None else goes_wrong(faults, operation, self.command)

    async def _wait_until(self, happened: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while not happened():
            if self._closed:
                raise trio.ClosedResourceError
            await self._news.park()


def _without_cancelled(
    error: BaseException,
) -> tuple[BaseException | None, BaseException | None]:
    """Return what of an error is trio's own, and the rest."""
    if isinstance(error, trio.Cancelled):
        return error, None
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(trio.Cancelled)
    return None, error
