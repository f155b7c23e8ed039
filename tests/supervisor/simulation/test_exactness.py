"""Small things that the simulator does exactly so. Each was changed once, and no other
test saw it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio

from actors.testing import DiskStep, FakeDisk
from supervisor.simulation import (
    Campaign,
    Deviation,
    Fault,
    NotDeterministic,
    Sim,
    Tape,
    TapeDoesNotFit,
    explore,
    simulate,
    wrong_in,
)
from supervisor.simulation._search.losses import left, ways
from supervisor.simulation._search.shrink import shrink
from supervisor.simulation._search.swarm import ERRORS, INTERRUPT, drawn, with_errors
from supervisor.simulation._steering.run import HELD
from supervisor.simulation._steering.tape import CHECKPOINT
from supervisor.simulation.campaign import Spent
from supervisor.simulation.log import Entry, Log
from supervisor.simulation.network import ALONE

A, B = Path("/a"), Path("/b")

# ---- Many runs -------------------------------------------------------------------------


def test_all_schedules_are_tried_and_none_twice() -> None:
    orders: set[str] = set()

    async def program(_: Sim) -> None:
        order: list[str] = []

        async def one(name: str) -> None:
            await trio.lowlevel.checkpoint()
            order.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(one, name)
        orders.add("".join(order))

    found = explore(program, seeds=1_000, policy="exhaustive")
    assert found.runs == found.distinct
    assert len(orders) == 24


def test_later_runs_are_done_twice_too() -> None:
    runs: list[None] = []

    async def program(sim: Sim) -> None:
        runs.append(None)
        sim.log(len(runs) if len(runs) > 10 else 0)
        await trio.lowlevel.checkpoint()

    with pytest.raises(NotDeterministic):
        explore(program, seeds=30)


def test_what_is_as_large_is_not_smaller() -> None:
    tape = Tape((Deviation(5, 1),))
    assert shrink(tape, lambda _: Tape((Deviation(7, 1),)))[0] == tape


def test_the_place_of_a_deviation_becomes_the_lowest_that_does() -> None:
    tape = Tape((Deviation(5, 3),))
    assert str(shrink(tape, lambda it: it if it.deviations else None)[0]) == "5:1"


def test_a_point_is_struck_once_in_a_run() -> None:
    point = Fault("raise", "get", "blocked", 1)
    assert {len(drawn([point], ["*"], seed)) for seed in range(50)} == {1}


def test_what_a_program_prints_in_a_process_is_no_result(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def program(_: Sim) -> None:
        os.write(1, b"hello\n")
        await trio.lowlevel.checkpoint()

    explore(program, seeds=2, jobs=2)
    assert capfd.readouterr().out == ""


# ---- One run ---------------------------------------------------------------------------


def test_a_run_may_take_all_of_its_limit() -> None:
    async def program(_: Sim) -> None:
        await trio.sleep(10)

    assert simulate(program, limit=10).error is None


def test_who_is_held_back_goes_on_where_others_run_for_ever() -> None:
    async def work(done: trio.Event) -> None:
        try:
            await trio.sleep_forever()
        finally:
            done.set()

    async def program(_: Sim) -> None:
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, done)
            while not done.is_set():
                await trio.lowlevel.checkpoint()

    run = simulate(program, tape="cancel work late 1")
    assert run.error is None
    assert HELD <= run.steps < HELD + 50


def test_who_was_no_target_when_one_was_named_is_none() -> None:
    async def early() -> None:
        await trio.sleep(2)
        await trio.sleep(2)

    async def program(sim: Sim) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(early)
            await trio.sleep(1)
            nursery.start_soon(sim.target(trio.sleep), 1)

    simulate(program, tape="cancel early blocked 1")
    with pytest.raises(TapeDoesNotFit, match="no point at which to cancel early"):
        simulate(program, tape="cancel early blocked 2")


def test_of_few_runs_no_more_than_all_may_fail() -> None:
    for runs, bound in ((1, 1.0), (3, 1.0), (30, 0.1)):
        spent = Spent(Campaign(runs, runs, []), 1.0, runs, 1, complete=True)
        assert spent.bound == pytest.approx(bound)
    assert Spent(Campaign(9, 9, [], failed=1), 1.0, 9, 1, complete=True).bound is None


def test_a_deadline_that_was_kept_is_forgotten_when_the_machine_sleeps() -> None:
    async def program(sim: Sim) -> None:
        with sim.within(60):
            await trio.lowlevel.checkpoint()
        sim.suspend(1)
        await trio.sleep_forever()

    assert "a deadlock at 1 virtual seconds" in str(simulate(program).error)


def test_a_log_that_has_failed_once_is_told_nothing_more() -> None:
    heard: list[Entry] = []

    def hear(entry: Entry) -> None:
        heard.append(entry)
        raise OSError("full")

    async def main() -> None:
        with Log(hear) as log:
            await trio.lowlevel.checkpoint()
        assert str(log.failure) == "full"

    trio.run(main)
    assert len(heard) == 1


def _send_by(way: str, *sent: bytes) -> list[bytes]:
    """Return what comes of what is sent, where the first send goes wrong."""
    got: list[bytes] = []

    async def program(sim: Sim) -> None:
        net = sim.network()
        sim.fault("network.send", way)

        async def handler(stream: trio.abc.Stream) -> None:
            await trio.sleep(1)
            try:
                while data := await stream.receive_some():
                    got.append(bytes(data))
            except trio.BrokenResourceError:
                pass
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(net.serve_tcp, handler, 80)
            await trio.sleep(0.5)
            stream = await net.open_tcp_stream("localhost", 80)
            try:
                for data in sent:
                    await stream.send_all(data)
                    await trio.sleep(2)
            except trio.BrokenResourceError:
                pass
            await stream.aclose()
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    run = simulate(program)
    assert run.error is None, run.error
    return got


def test_of_a_send_that_is_cut_the_first_half_comes() -> None:
    assert _send_by("cut", b"abcdef") == [b"abc"]


def test_only_the_bytes_of_the_send_that_goes_wrong_come_alone() -> None:
    assert _send_by("bytes", b"abc", b"xyz") == [b"a", b"b", b"c", b"xyz"]


def test_bytes_come_alone_up_to_the_end_of_the_send_and_so_many_at_most() -> None:
    async def program(sim: Sim) -> list[int]:
        got: list[int] = []
        net = sim.network()
        (listener,) = await net.open_tcp_listeners(80)
        stream = await net.open_tcp_stream("localhost", 80)
        other = await listener.accept()
        await listener.aclose()
        for call, sizes in ((2, (3, 4, 5)), (5, (10, 300))):
            sim.fault("network.send", "bytes", call=call)
            for size in sizes:
                await stream.send_all(b"x" * size)
            while other.is_readable:
                got.append(len(await other.receive_some()))
        await stream.aclose()
        await other.aclose()
        return got

    run = simulate(program)
    assert run.value == [*[1] * 7, 5, *[1] * ALONE, 310 - ALONE]


def test_a_sender_that_is_cut_off_hears_of_no_end() -> None:
    async def program(sim: Sim) -> None:
        net = sim.network()
        (listener,) = await net.open_tcp_listeners(80)
        stream = await net.open_tcp_stream("localhost", 80)
        other = await listener.accept()
        await listener.aclose()
        net.partition("localhost")
        await other.aclose()
        await stream.send_all(b"x")
        net.heal("localhost")
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")
        await stream.aclose()

    assert simulate(program).error is None


def test_a_port_that_is_asked_for_as_any_is_another_one_each_time() -> None:
    async def program(sim: Sim) -> set[int]:
        listeners = [await sim.network().open_tcp_listeners(0) for _ in range(3)]
        return {it.port for [it] in listeners}

    assert len(simulate(program).value) == 3


def test_who_accepts_hears_that_the_listener_was_closed() -> None:
    async def program(sim: Sim) -> None:
        (listener,) = await sim.network().open_tcp_listeners(80)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.aclose)
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

    assert simulate(program).error is None


def test_who_connects_waits_for_the_second_heal_too() -> None:
    async def program(sim: Sim) -> float:
        net = sim.network()
        await net.open_tcp_listeners(80)
        for _ in range(2):
            net.partition("localhost")
            sim.at(5, net.heal)
            (await net.open_tcp_stream("localhost", 80)).close()
        return trio.current_time()

    assert simulate(program).value == 10


def test_only_what_a_fault_has_broken_is_no_mistake_of_the_program() -> None:
    async def program(sim: Sim, *, lose: bool) -> None:
        net = sim.network()
        (listener,) = await net.open_tcp_listeners(80)
        stream = await net.open_tcp_stream("localhost", 80)
        other = await listener.accept()
        await other.aclose()
        if lose:
            net.lose()
        try:
            await stream.send_all(b"x")
        finally:
            stream.close()
            listener.close()

    for lose in (False, True):
        run = simulate(partial(program, lose=lose))
        assert isinstance(run.error, trio.BrokenResourceError)
        assert bool(wrong_in(run)) != lose


def test_an_error_of_the_world_names_what_it_is_about() -> None:
    async def program(sim: Sim) -> None:
        env = sim.env({"true": 0})
        sim.fault("files.replace", "ENOSPC")
        with pytest.raises(OSError, match="No space left") as raised:
            env.files.replace(A, b"x")
        assert raised.value.filename == str(A)
        sim.fault("processes.spawn", "EMFILE")
        with pytest.raises(OSError, match="Too many open files") as raised:
            await env.processes.spawn(["true"], cwd=None, env={}, marker="M")
        assert raised.value.filename == "true"

    assert simulate(program).error is None


# ---- The disk --------------------------------------------------------------------------


def test_bytes_written_after_a_cut_are_not_synced() -> None:
    disk = FakeDisk()
    inode = disk.create(A)
    disk.write(A, inode, b"0123456789")
    disk.sync(A, inode)
    disk.cut(A, inode, 4)
    disk.write(A, inode, b"abcd")
    after = disk.image().unpowered(names=True).file(A)
    assert after is not None
    assert after.data == b"0123"


def test_a_cut_does_not_change_an_image() -> None:
    disk = FakeDisk()
    inode = disk.create(A)
    disk.write(A, inode, b"0123456789")
    image = disk.image()
    disk.cut(A, inode, 4)
    after = image.killed().file(A)
    assert after is not None
    assert after.data == b"0123456789"


def test_a_sync_of_a_directory_forgets_a_name_for_sure() -> None:
    disk = FakeDisk()
    disk.create(A)
    disk.sync_directory(Path("/"))
    disk.remove(A)
    assert disk.image().unpowered(names=False).file(A) is not None
    disk.sync_directory(Path("/"))
    assert disk.image().unpowered(names=False).file(A) is None


def test_a_disk_is_synced_when_its_names_and_contents_are() -> None:
    disk = FakeDisk()
    inode = disk.create(A)
    assert not disk.image().is_synced()
    disk.sync_directory(Path("/"))
    assert disk.image().is_synced()
    disk.write(A, inode, b"x")
    assert [*disk.image().unsynced()] == [A]
    disk.sync(A, inode)
    assert [*disk.image().unsynced()] == []
    disk.create(B)
    assert disk.image().unpowered(names=True).image().is_synced()


def test_a_loss_of_power_has_three_names_where_only_a_name_is_not_synced() -> None:
    """So a tape that has one of them goes on to mean something."""
    disk = FakeDisk()
    inode = disk.create(A)
    disk.write(A, inode, b"x")
    disk.sync(A, inode)
    image = disk.image()
    names = [*ways(image, None, ("power",))]
    assert names == ["power", "power-names", "power-data"]
    assert [left(image, None, it).file(A) is None for it in names] == [
        True,
        False,
        True,
    ]


def test_only_a_ctrl_c_is_drawn_at_a_checkpoint() -> None:
    points = [Fault("raise", "it", way, 1) for way in ("blocked", CHECKPOINT)]
    drawn_there = {(it.arrival, it.error) for it in with_errors(points)}
    assert drawn_there == {
        *(("blocked", error) for error in ERRORS),
        (CHECKPOINT, INTERRUPT),
    }


def test_a_loss_of_power_may_lose_or_keep_one_of_two_files() -> None:
    disk = FakeDisk()
    for path in (A, B):
        disk.write(path, disk.create(path), b"x")
    image = disk.image()
    assert {"lost:/a", "kept:/a"} <= {*ways(image, None, ("power",))}
    lengths = {
        way: [len(it.data) for it in map(left(image, None, way).file, (A, B)) if it]
        for way in ("lost:/a", "kept:/a")
    }
    assert lengths == {"lost:/a": [0, 1], "kept:/a": [1, 0]}


def test_a_tape_can_name_any_file_that_is_lost() -> None:
    disk = FakeDisk()
    odd = Path("/one, two/a b")
    for path in (A, odd):
        disk.write(path, disk.create(path), b"x")
    image = disk.image()
    for way in ways(image, None, ("power",)):
        tape = Tape((), (Fault("crash", "end", way, 1),))
        assert Tape.parse(str(tape)) == tape
        kept = left(image, None, way).file(odd)
        if way.startswith(("lost:", "kept:")):
            assert (kept is not None and kept.data == b"x") == (
                way.startswith("lost:") == way.endswith("/a")
            )


def test_a_write_of_one_byte_is_never_torn() -> None:
    disk = FakeDisk()
    inode = disk.create(A)
    step = DiskStep("write", A, inode, b"x")
    assert [*ways(disk.image(), step, ("torn",))] == []
