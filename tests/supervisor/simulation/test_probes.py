"""What the probes of a program tell in a run and in a campaign, and buggify's faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actors import Context, probe
from actors.probe import always, buggify, reachable, sometimes
from supervisor.simulation import (
    Sim,
    Tape,
    explore,
    fault_everywhere,
    simulate,
)
from supervisor.tree import Backoff, child, open_supervisor


async def workers(sim: Sim) -> None:
    """Three at once, of which one may be slow."""
    running = 0

    async def work() -> None:
        nonlocal running
        running += 1
        sometimes("three run", running == 3)
        sometimes("four run", running == 4)
        if buggify("slow-worker"):
            await trio.sleep(5)
        await trio.sleep(1)
        running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    always("none is left", running == 0)
    if running:
        reachable("some are left")
    probe.reachable("the end")


def test_a_campaign_tells_what_never_happened_and_what_did() -> None:
    table = {it.name: it for it in explore(workers, seeds=80).probes}
    assert table["four run"].missed == "never true, of 240 times"
    assert table["some are left"].missed == "never reached"
    assert table["some are left"].site.startswith("test_probes.py:")
    three = table["three run"]
    assert (three.passed, three.true, three.runs, three.seed) == (240, 80, 80, 0)
    assert three.site.endswith(" work") and not three.missed
    assert table["the end"].passed == table["none is left"].true == 80
    slow = table["slow-worker"]
    assert 0 < slow.true < 40 and 0 < slow.armed < 40 and slow.seed != 0


def test_the_text_has_what_never_happened_first() -> None:
    lines = str(explore(workers, seeds=2)).splitlines()[1:]
    never = ["never" in line for line in lines]
    assert never == sorted(never, reverse=True) and len({*never}) == 2
    place = lines[-1].partition(" at ")[2].partition(":")[0]
    assert place == "test_probes.py"


def test_a_buggify_that_was_armed_and_never_fired_is_told() -> None:
    async def asks_once(sim: Sim) -> None:
        buggify("rare-thing")

    seeds = [it for it in range(60) if simulate(asks_once, seed=it).probes[0].armed]
    idle = [it for it in seeds if not simulate(asks_once, seed=it).faults]
    assert idle and len(idle) < len(seeds) < 30
    (reach,) = (it for it in explore(asks_once, seeds=idle[:2]).probes if it.passed)
    assert reach.missed == "armed in 2 runs, and never fired"
    (reach,) = (it for it in explore(asks_once, seeds=[0]).probes if it.passed)
    assert reach.missed == "never armed, and never fired"


def test_an_always_that_does_not_hold_is_a_finding_of_its_own() -> None:
    async def breaks(sim: Sim) -> None:
        for number in range(3):
            always("small", number < 1)

    (finding,) = simulate(breaks).findings
    assert finding.kind == "always"
    assert finding.text.startswith("'small' does not hold at test_probes.py:")
    campaign = explore(breaks, seeds=3, check=False)
    assert (campaign.failed, len(campaign.failures)) == (3, 1)

    async def breaks_and_knows(sim: Sim) -> None:
        sim.ignore("always")
        await breaks(sim)

    assert simulate(breaks_and_knows).findings == []


async def fails_if_slow(sim: Sim) -> None:
    slow = False
    for _ in range(3):
        buggify("of-no-matter")
        slow = buggify("slow-disk")
        await trio.lowlevel.checkpoint()
    if slow:
        raise LookupError("too slow")


def test_a_buggify_is_on_the_tape_so_it_replays_and_shrinks() -> None:
    campaign = explore(fails_if_slow, seeds=200, check=False)
    (failure,) = campaign.failures
    assert str(failure.tape) == "fault buggify.slow-disk fires 3"
    run = simulate(fails_if_slow, tape=str(failure.tape))
    assert isinstance(run.error, LookupError)
    assert [str(it) for it in run.faults] == [str(failure.tape)]
    again = simulate(fails_if_slow, seed=failure.seed)
    assert isinstance(again.error, LookupError), "a seed is a run"
    assert simulate(fails_if_slow, tape=again.tape).digest == again.digest


def test_nothing_fires_under_round_robin_or_a_tape_that_has_none() -> None:
    for run in (simulate(workers), simulate(workers, tape=Tape(seed=9))):
        assert not any(it.true for it in run.probes if it.kind == "buggify")
        assert run.faults == []


def test_a_sweep_lets_each_call_of_a_buggify_fire() -> None:
    report = fault_everywhere(fails_if_slow, schedules=1, check=False)
    assert report.points == 6
    (row,) = report.rows
    assert str(row.tape) == "fault buggify.slow-disk fires 3"


@pytest.mark.parametrize("name", ["slow disk", "a,b", ""])
def test_a_name_that_no_tape_could_have_is_refused(name: str) -> None:
    async def asks(sim: Sim) -> None:
        buggify(name)

    error = simulate(asks).error
    assert isinstance(error, ValueError) and "one word" in str(error)


def test_other_threads_are_not_heard() -> None:
    async def asks_elsewhere(sim: Sim) -> object:
        return await trio.to_thread.run_sync(lambda: always("here", False))

    run = simulate(asks_elsewhere)
    assert run.findings == [] and run.probes == []


async def fails_after(ctx: Context[None], seconds: float) -> None:
    await trio.sleep(seconds)
    raise LookupError


def test_our_own_tree_comes_by_its_rare_places() -> None:
    """Each needs a time, or a schedule, that is met seldom."""

    async def two_fail(sim: Sim) -> None:
        specs = [
            child(name, fails_after, sim.random.choice([0.5, 1, 1.5]), backoff=backoff)
            for name, backoff in (("first", None), ("second", Backoff(0.5, 0.5)))
        ]
        with trio.move_on_after(3):
            async with open_supervisor(specs, strategy="rest_for_one", intensity=99):
                await trio.sleep_forever()

    table = {it.name: it for it in explore(two_fail, seeds=40).probes}
    assert table["a child fails while a group is restarted"].true > 0
    widened = table["a group that waits is widened by one that begins at once"]
    assert widened.true > 0


def test_a_program_without_probes_does_not_load_them() -> None:
    program = (
        "import sys; from supervisor.simulation import explore\n"
        "async def program(sim): pass\n"
        "explore(program, seeds=2)\n"
        "print(*(it for it in sys.modules if 'probe' in it or 'reached' in it))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (
            "simulate(program, tape='fault buggify.rare fires 1').findings[0].text",
            "'holds' does not hold at parts.py:4 come_by",
        ),
        (
            "explore(program, seeds=1).probes[0]",
            "buggify 'rare' at parts.py:4 come_by: never armed, and never fired",
        ),
        ("(simulate(program), sys.meta_path == before)[1]", "True"),
        (
            "(simulate(program), sys.modules['actors.probe'])[1].__spec__.loader.path",
            probe.__file__,
        ),
    ],
)
def test_probes_that_are_imported_in_the_first_run_are_heard_in_it(
    tmp_path: Path, do: str, told: str
) -> None:
    tmp_path.joinpath("parts.py").write_text(
        "from actors.probe import always, buggify, sometimes\n"
        "def come_by():\n"
        "    sometimes('seen', True)\n"
        "    always('holds', not buggify('rare'))\n"
    )
    program = (
        "import sys; from supervisor.simulation import explore, simulate\n"
        "async def program(sim):\n"
        "    import parts\n"
        "    parts.come_by()\n"
        "before = [*sys.meta_path]\n"
        f"print({do})"
    )
    path = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **path},
    )
    assert done.stdout.strip() == told
