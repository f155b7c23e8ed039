"""Sweeps: one fault at each point, on small programs with one bug each."""

from __future__ import annotations

import random
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from supervisor.simulation import (
    Deadlock,
    NotDeterministic,
    NothingToStrike,
    ProgramFailed,
    Sim,
    SimulationFailed,
    SweepReport,
    cancel_everywhere,
    fault_everywhere,
    raise_everywhere,
    simulate,
)

Program = Callable[[Sim], Awaitable[Any]]


def replayed_by(line: str) -> str:
    """The tape of the line that replays it: of a command, or of a call."""
    return shlex.split(line)[-1].removeprefix("tape=").removesuffix(")")


def swept(program: Program, **options: Any) -> SweepReport:
    """The report of a sweep of which each row can be had again."""
    report = cancel_everywhere(program, check=False, **options)
    assert not report.never_fired
    for row in report.rows:
        run = simulate(program, tape=row.tape)
        assert run.error is not None or run.findings, row
        again = simulate(program, tape=replayed_by(row.replay))
        assert again.digest == run.digest
    return report


def arrivals(report: SweepReport) -> set[str]:
    return {row.arrival for row in report.rows}


def kinds(report: SweepReport) -> set[str]:
    return {row.error.partition(":")[0] for row in report.rows}


# ---- Correct programs ------------------------------------------------------------


async def hold(limiter: trio.Semaphore | trio.Lock) -> None:
    async with limiter:
        await trio.sleep(1)


async def correct(sim: Sim) -> None:
    lock, slots = trio.Lock(), trio.Semaphore(1)
    async with trio.open_nursery() as nursery:
        for limiter in (lock, slots, lock, slots):
            nursery.start_soon(hold, limiter)
    with sim.within(10):
        await hold(lock)
        await hold(slots)


def test_a_correct_program_is_clean() -> None:
    report = cancel_everywhere(correct)
    assert report.rows == []
    assert (report.skipped, report.never_fired) == (0, [])
    assert report.points > 100
    # A clean run, and one to compare with it, under each schedule.
    assert report.runs == report.points + 6
    assert "nothing is wrong" in str(report)


def test_a_sweep_is_the_same_each_time() -> None:
    assert cancel_everywhere(correct) == cancel_everywhere(correct)


def test_an_error_of_ours_is_not_wrong() -> None:
    """Nor is what the program makes of it; the program must not hang on it."""

    async def raises_from(sim: Sim) -> None:
        async def work() -> None:
            try:
                await trio.sleep(1)
            except OSError as error:
                raise LookupError("lost") from error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)

    for program in (correct, raises_from):
        assert raise_everywhere(program, OSError).rows == []
    assert raise_everywhere(correct, KeyboardInterrupt).rows == []
    assert raise_everywhere(correct, lambda: trio.BrokenResourceError("x")).rows == []


def test_a_sweep_without_a_target_is_refused() -> None:
    """It would prove nothing."""

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)

    with pytest.raises(
        NothingToStrike, match=r"none that `sim.target` was given is called"
    ):
        cancel_everywhere(program)
    with pytest.raises(NothingToStrike, match=r"one of the names get\*, put"):
        cancel_everywhere(correct, targets=["get*", "put"])


def test_one_violation_is_one_row_wherever_trio_has_raised_it() -> None:
    """An error that trio puts into who waits comes through a library that trio uses."""

    async def produce(channel: trio.MemorySendChannel[int]) -> None:
        async with channel:
            for number in range(3):
                await channel.send(number)

    async def consume(channel: trio.MemoryReceiveChannel[int]) -> None:
        async with channel:
            async for _ in channel:
                pass

    async def program(sim: Sim) -> None:
        send, receive = trio.open_memory_channel[int](1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, send)
            nursery.start_soon(consume, receive)

    report = cancel_everywhere(program, check=False)
    where = [(row.site, row.arrival) for row in report.rows]
    assert len({*where}) == len(where)
    for row in report.rows:
        assert "outcome" not in row.error


def test_points_can_be_drawn() -> None:
    report = cancel_everywhere(correct, max_points=10)
    assert report.points == 10
    assert report.skipped > 100
    assert f"{report.skipped} points were left out" in str(report)


def test_a_program_that_fails_by_itself_is_not_swept() -> None:
    async def fails(sim: Sim) -> None:
        await trio.sleep(1)
        raise LookupError("broken")

    with pytest.raises(
        ProgramFailed, match="round robin: LookupError: broken"
    ) as raised:
        cancel_everywhere(fails)
    assert isinstance(raised.value.__cause__, LookupError)


@pytest.mark.parametrize(
    "options",
    [
        {"arrivals": ["soon"]},
        {"arrivals": []},
        {"schedules": 0},
        {"max_points": 0},
        {"max_points": -1},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cancel_everywhere(correct, **options)
    with pytest.raises(ValueError, match="no name strikes nobody"):
        cancel_everywhere(correct, targets=[])
    with pytest.raises(ValueError, match="no arrival 'woken'"):
        raise_everywhere(correct, OSError, arrivals=["woken"])


def test_an_arrival_counts_once_in_whatever_it_is_given() -> None:
    report = cancel_everywhere(correct, schedules=1, arrivals=["late"])
    twice: Any = iter(("late", "late"))
    assert cancel_everywhere(correct, schedules=1, arrivals=twice) == report
    once: Any = iter(("late",))
    assert raise_everywhere(correct, OSError, arrivals=once).arrivals == ["late"]


def test_a_group_that_is_put_in_is_no_fault_of_the_program() -> None:
    """Who splits it makes new groups of what is in it."""

    async def splits(sim: Sim) -> None:
        async def work() -> None:
            try:
                await trio.sleep(1)
            except* LookupError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)

    def several() -> BaseException:
        return ExceptionGroup("ours", [OSError(), ExceptionGroup("", [KeyError()])])

    assert raise_everywhere(splits, several).points > 5
    assert raise_everywhere(correct, several).rows == []


# ---- What no tape decides, where only a fault leads ----------------------------------


async def dice(sim: Sim) -> None:
    async def work() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            if random.random() < 0.5:
                raise AssertionError("by chance") from None
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)


def test_chance_after_a_fault_is_no_finding() -> None:
    before, noticed = random.getstate(), 0
    try:
        for seed in range(20):
            random.seed(seed)
            with pytest.raises((NotDeterministic, SimulationFailed)) as raised:
                cancel_everywhere(dice)
            noticed += isinstance(raised.value, NotDeterministic)
    finally:
        random.setstate(before)
    # Some luck is left: both runs of each that are compared may end alike.
    assert noticed >= 18


def changing(runs_that_fail: Callable[[int], bool]) -> Program:
    struck: list[None] = []

    async def work() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            struck.append(None)
            assert not runs_that_fail(len(struck)), "this time"
            raise

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.target(work))

    return program


@pytest.mark.parametrize("once", [1, 2, 3], ids="only strike {}".format)
def test_what_fails_once_is_not_deterministic(once: int) -> None:
    """The first strike is done twice, and what is found is run again as it is told."""
    with pytest.raises(NotDeterministic) as raised:
        cancel_everywhere(changing(once.__eq__), schedules=1)
    assert "nothing is wrong" not in str(raised.value).splitlines()[0]
    assert "AssertionError" in str(raised.value)


def test_the_tape_that_is_told_is_replayed() -> None:
    """It fails when it is struck, compared, run again and made smaller; then no more."""
    with pytest.raises(NotDeterministic, match=r"the tape is cancel work blocked 1"):
        cancel_everywhere(changing((4).__gt__), schedules=1, arrivals=["blocked"])


# ---- Whom it strikes ----------------------------------------------------------------


async def struck(sim: Sim, *, choose: bool) -> list[str]:
    async def one() -> None:
        await trio.sleep(1)

    async def two() -> None:
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(sim.target(two) if choose else two)
        nursery.start_soon(two)
        nursery.start_soon(trio.sleep, 1)
    return []


def targets_of(program: Program, **options: Any) -> set[str]:
    seen: set[str] = set()

    async def wrapped(sim: Sim) -> None:
        await program(sim)
        seen.update(str(it[2]).split()[1] for it in sim._driver.log if it[1] == "fault")

    cancel_everywhere(wrapped, schedules=1, **options)
    return seen


def test_every_task_of_the_programs_own_is_a_target() -> None:
    """Not the main task, and none that runs a function of trio's."""

    async def program(sim: Sim) -> None:
        await struck(sim, choose=False)

    assert targets_of(program) == {"one", "two", "two#2"}
    assert targets_of(program, targets="two*") == {"two", "two#2"}
    assert targets_of(program, targets=["one"]) == {"one"}


def test_what_a_task_is_called_stays() -> None:
    """Also of a partial, which has no name of its own."""

    async def work(number: int) -> None:
        await trio.sleep(number)

    async def program(sim: Sim) -> list[str]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(work, 1))
            nursery.start_soon(work, 1)
            nursery.start_soon(sim.target(partial(work, 1)))
            nursery.start_soon(work, 1, name="other")
            names = sorted(task.name for task in nursery.child_tasks)
        return [name.rpartition(".")[2] for name in names]

    assert simulate(program).value == ["other", "work", "work", "work"]


def test_a_target_that_is_chosen_is_the_only_one() -> None:
    async def program(sim: Sim) -> None:
        await struck(sim, choose=True)

    assert targets_of(program) == {"two"}


def test_a_task_that_is_being_started_is_left_to_its_starter() -> None:
    """A cancel of it alone would be one that nobody could have made."""

    async def server(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep(1)
        task_status.started()
        await trio.sleep(1)

    async def starter() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server)
            nursery.start_soon(starter)

    assert swept(program).rows == []


# ---- Planted bugs ---------------------------------------------------------------------


class Tokens:
    """A semaphore that loses a token: it is given to one that was cancelled."""

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting: list[trio.Event] = []

    async def acquire(self) -> None:
        if self.free:
            self.free -= 1
            return
        event = trio.Event()
        self.waiting.append(event)
        try:
            await event.wait()
        except trio.Cancelled:
            if event in self.waiting:
                self.waiting.remove(event)
            raise

    def release(self) -> None:
        if self.waiting:
            self.waiting.pop(0).set()
        else:
            self.free += 1


async def losing(sim: Sim) -> None:
    tokens = Tokens(1)

    async def use() -> None:
        await tokens.acquire()
        try:
            await trio.sleep(1)
        finally:
            tokens.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        nursery.start_soon(sim.target(use))
    with sim.within(10):
        await use()


def test_a_token_that_is_given_to_a_cancelled_task_is_found() -> None:
    """Only where the cancel comes before the token, and the target runs after it. Held
    back, it does so without a seed."""
    report = swept(losing, schedules=1)
    assert "late" in arrivals(report)
    assert not arrivals(report) & {"blocked", "woken"}
    assert not swept(losing, schedules=3, arrivals=["blocked", "woken"]).rows
    row = next(it for it in report.rows if it.arrival == "late")
    assert row.tape.deviations == ()
    assert " acquire" in row.site
    assert "it took more than 10 virtual seconds" in row.error


def test_a_lock_that_leaks_between_acquire_and_try_is_found() -> None:
    async def leak(lock: trio.Lock) -> None:
        await lock.acquire()
        await trio.sleep(1)
        try:
            await trio.sleep(1)
        finally:
            lock.release()

    async def program(sim: Sim) -> None:
        lock = trio.Lock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leak, lock)

    report = swept(program)
    assert kinds(report) == {"held"}
    assert {"blocked", "woken"} <= arrivals(report)
    assert "a Lock is held by leak, which has ended; taken at test_sweeps.py:" in str(
        report
    )


def test_a_token_of_a_limiter_that_leaks_is_found() -> None:
    async def leak(limiter: trio.CapacityLimiter) -> None:
        await limiter.acquire()
        await trio.sleep(1)
        limiter.release()

    async def program(sim: Sim) -> None:
        limiter = trio.CapacityLimiter(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leak, limiter)

    assert kinds(swept(program)) == {"held"}


def test_who_holds_tokens_is_told_in_the_same_order_each_time() -> None:
    """trio has them in a set."""

    async def take(limiter: trio.CapacityLimiter) -> None:
        await limiter.acquire()

    async def program(sim: Sim) -> None:
        limiter = trio.CapacityLimiter(30)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(take, limiter)

    texts = [it.text for it in simulate(program).findings]
    names = ["take", *(f"take#{it}" for it in range(2, 21))]
    assert [it.removeprefix("a CapacityLimiter is held by ") for it in texts] == [
        f"{name}, which has ended; taken at {texts[0].rpartition('at ')[2]}"
        for name in names
    ]


def test_a_cancel_that_is_swallowed_is_found() -> None:
    async def swallow() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            pass

    async def catches_its_own() -> None:
        with trio.move_on_after(0.5):
            await trio.sleep(1)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow)
            nursery.start_soon(catches_its_own)

    report = swept(program)
    assert kinds(report) == {"swallowed"}
    assert {row.tape.faults[0].target for row in report.rows} == {"swallow"}


def test_a_task_that_is_left_behind_is_found() -> None:
    """In a nursery that is an argument, or an attribute of one; after a return it may
    stay, since that is what such a function is for."""

    class Owner:
        def __init__(self, nursery: trio.Nursery) -> None:
            self.nursery = nursery

    async def beat() -> None:
        await trio.sleep(30)

    async def leave(owner: Owner | trio.Nursery) -> None:
        nursery = owner.nursery if isinstance(owner, Owner) else owner
        nursery.start_soon(beat)
        await trio.sleep(1)

    for wrap in (Owner, lambda it: it):

        async def program(sim: Sim, wrap: Any = wrap) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sim.target(leave), wrap(nursery))

        report = swept(program)
        assert kinds(report) == {"left"}
        assert "leave has ended and left beat" in str(report)


def test_a_generator_that_is_dropped_with_something_to_await_is_found() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            await trio.lowlevel.checkpoint()

    async def bare() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def drops(make: Callable[[], AsyncIterator[int]]) -> None:
        async for _ in make():
            await trio.sleep(1)

    async def program(sim: Sim, make: Callable[[], AsyncIterator[int]]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drops, make)
        await trio.sleep(1)

    report = swept(lambda sim: program(sim, numbers))
    assert kinds(report) == {"generators"}
    assert "numbers was dropped with something left to await" in str(report)
    assert not swept(lambda sim: program(sim, bare)).rows


def test_a_stream_that_nobody_closes_is_found() -> None:
    async def echo(stream: Any) -> None:
        async for data in stream:
            await stream.send_all(data)

    async def talk(network: Any, *, closes: bool) -> None:
        stream = await network.open_tcp_stream("localhost", 7)
        await stream.send_all(b"x")
        if closes:
            async with stream:
                await stream.receive_some()
        else:
            await stream.receive_some()
            await stream.aclose()

    async def program(sim: Sim, *, closes: bool) -> None:
        network = sim.network()
        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve_tcp, echo, 7)
            async with trio.open_nursery() as talkers:
                talkers.start_soon(lambda: talk(network, closes=closes))
            nursery.cancel_scope.cancel()

    report = swept(lambda sim: program(sim, closes=False))
    assert kinds(report) == {"streams"}
    assert "localhost:7 #1 is closed by nobody; it was got by" in str(report)
    # It is open for one send before anybody would close it.
    sites = {row.site for row in swept(lambda sim: program(sim, closes=True)).rows}
    assert len(sites) == 1


def test_an_invariant_can_be_switched_off() -> None:
    async def swallow() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            pass

    async def program(sim: Sim) -> None:
        sim.ignore("swallowed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow)

    assert not cancel_everywhere(program).rows
    with pytest.raises(ValueError, match="'sleep' is no invariant"):
        simulate_ignoring("sleep")


def simulate_ignoring(name: str) -> None:
    async def program(sim: Sim) -> None:
        sim.ignore(name)

    error = simulate(program).error
    assert error is not None
    raise error


def test_a_deadlock_after_a_cancel_is_found() -> None:
    async def program(sim: Sim) -> None:
        done = trio.Event()

        async def work() -> None:
            await trio.sleep(1)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await done.wait()

    report = swept(program)
    assert kinds(report) == {"Deadlock"}
    assert isinstance(simulate(program, tape=report.rows[0].tape).error, Deadlock)


def test_an_error_that_the_clean_up_raises_is_found() -> None:
    """Beside ours: a failed assert, also where it was raised from ours."""

    async def program(sim: Sim) -> None:
        async def work() -> None:
            done = False
            try:
                await trio.sleep(1)
                done = True
            finally:
                assert done, "not done"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)

    report = raise_everywhere(program, OSError, check=False)
    assert kinds(report) == {"AssertionError"}
    assert report.kind == "raise OSError"
    run = simulate(program, tape=report.rows[0].replay.split('"')[1])
    assert isinstance(run.error, ExceptionGroup)


def test_what_is_wrong_is_raised_with_the_table() -> None:
    with pytest.raises(SimulationFailed) as raised:
        cancel_everywhere(losing)
    report = raised.value.report
    assert isinstance(report, SweepReport)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("cancel: ")
    assert lines[0].endswith("1 site is wrong")
    (row,) = report.rows[:1]
    assert f"      replay: {row.replay}" in lines
    assert row.replay.startswith("trio-supervisor sim replay ")
    assert row.replay.endswith(f"test_sweeps.py:losing '{row.tape}'")
    assert "shrunk: round robin, cancel use#2 after step" in str(raised.value)


# ---- Faults of the network ---------------------------------------------------------------


async def echo_lines(stream: Any) -> None:
    async for data in stream:
        await stream.send_all(data)


def asking(ask: Callable[[Any], Awaitable[bytes]]) -> Program:
    """A program that asks an echo for two lines, for each again if it is refused."""

    async def program(sim: Sim) -> None:
        network = sim.network()

        async def client() -> bytes:
            async with await network.open_tcp_stream("localhost", 7) as stream:
                await stream.send_all(b"hello\n")
                return await ask(stream)

        async def serve(stream: Any) -> None:
            try:
                await echo_lines(stream)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve_tcp, serve, 7)
            got: list[bytes] = []
            for _ in range(3):
                try:
                    got.append(await client())
                except (OSError, trio.BrokenResourceError, EOFError):
                    pass  # There is one fault in each run.
            assert got[:2] == [b"hello\n"] * 2
            nursery.cancel_scope.cancel()

    return program


async def ask_well(stream: Any) -> bytes:
    got = b""
    while not got.endswith(b"\n"):
        data = await stream.receive_some()
        if not data:
            raise EOFError("the end came in the middle")
        got += data
    return got


async def ask_once(stream: Any) -> bytes:
    return bytes(await stream.receive_some())


async def ask_for_ever(stream: Any) -> bytes:
    got = b""
    while not got.endswith(b"\n"):
        got += await stream.receive_some()
    return got


def test_a_client_that_minds_all_faults_is_clean() -> None:
    report = fault_everywhere(asking(ask_well))
    assert report.kind == "fault"
    assert report.points > 15
    assert set(report.arrivals) == {
        *("refused", "unreachable", "reset", "cut", "end", "byte"),
        *("slow", "lost", "half", "bytes", "apart"),
    }


@pytest.mark.limit(240)  # What goes on for ever does so twice, for all its steps.
@pytest.mark.parametrize(
    ("ask", "way", "kind"),
    [(ask_once, "byte", "AssertionError"), (ask_for_ever, "end", "Hang")],
    ids=["once", "for ever"],
)
def test_a_client_that_forgets_a_fault_is_found(
    ask: Callable[[Any], Awaitable[bytes]], way: str, kind: str
) -> None:
    program = asking(ask)
    options: dict[str, Any] = {"seams": "network.receive", "schedules": 1}
    report = fault_everywhere(program, check=False, **options)
    rows = [row for row in report.rows if row.arrival == way]
    assert rows
    assert f" {ask.__name__}" in " ".join(row.site for row in rows)
    for row in rows:
        assert row.error.startswith(kind)
        assert row.tape.faults[0].target == "network.receive"
        assert simulate(program, tape=str(row.tape)).error is not None
        assert f"of network.receive goes wrong ({way})" in row.tape.words()


def test_what_has_no_such_operation_is_refused() -> None:
    with pytest.raises(NothingToStrike, match=r"names network\.listen"):
        fault_everywhere(asking(ask_well), seams=["network.listen"])
