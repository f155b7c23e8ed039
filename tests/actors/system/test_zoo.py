"""The zoo: whatever tries to outlive its task, in every way a task can end.

The processes are real, and who says what is left of them is another process,
which reads ``/proc`` and nothing of ours: see `bench.zoo`, which also runs this
many times and prints a table.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actors.shell import Shell
from bench import zoo
from bench._animals import Animal, Specimen
from bench._kinds import ANIMALS, ATTACKERS, PLAIN, WILD
from bench._observer import open_observer
from supervisor.runtime import open_runtime
from tests.actors.process_trees import chain, unused_seconds

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.limit(130),
]

PATIENCE = 120


@pytest.fixture(scope="module")
def beasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is compiled for the zoo is kept from one test to the next."""
    return tmp_path_factory.mktemp("beasts")


async def meet(
    way: str, animals: list[Animal], directory: Path, beasts: Path
) -> list[zoo.Meeting]:
    with trio.fail_after(PATIENCE):
        async with open_observer(beasts) as observer:
            return await zoo.meet(way, animals, observer, directory)


@pytest.mark.parametrize("way", zoo.WAYS)
@pytest.mark.parametrize("animal", PLAIN, ids=lambda animal: animal.name)
async def test_nothing_is_left_and_the_truth_is_told(
    tmp_path: Path, beasts: Path, animal: Animal, way: str
) -> None:
    """P1, P2, SH13, SH15: no process; the status, the code or the signal, and no
    survivor."""
    (meeting,) = await meet(way, [animal], tmp_path, beasts)
    assert meeting.misses == ()


@pytest.mark.parametrize("way", zoo.WAYS)
async def test_all_of_them_at_once_are_ended_too(
    tmp_path: Path, beasts: Path, way: str
) -> None:
    """P1, P2: beside each other, in one runtime."""
    meetings = await meet(way, PLAIN, tmp_path, beasts)
    assert [meeting.animal for meeting in meetings] == [it.name for it in PLAIN]
    assert [meeting.misses for meeting in meetings if meeting.misses] == []


@pytest.mark.parametrize("way", ["stop", "kill -9 of the runtime"])
async def test_the_wilder_ones_are_ended_too(
    tmp_path: Path, beasts: Path, way: str
) -> None:
    """P1, P2: those that this machine has the tools for; `bench.zoo` says which."""
    animals = [animal for animal in WILD if animal.missing() is None]
    meetings = await meet(way, animals, tmp_path, beasts)
    assert [meeting for meeting in meetings if meeting.misses] == []


@pytest.mark.parametrize("way", ["stop", "kill -9 of the runtime"])
@pytest.mark.parametrize("animal", ATTACKERS, ids=lambda animal: animal.name)
async def test_who_attacks_the_guardian_is_ended_too(
    tmp_path: Path, beasts: Path, animal: Animal, way: str
) -> None:
    """P1: whoever stops, traces or kills the process that would end it."""
    if reason := animal.missing():
        pytest.skip(reason)
    (meeting,) = await meet(way, [animal], tmp_path, beasts)
    assert meeting.misses == ()


def test_what_cannot_be_let_loose_here_says_why() -> None:
    lacking = [
        Animal(name="a", setup="true", others=0, needs=("a-tool-that-is-not",)),
        Animal(name="b", setup="true", others=0, needs=("sh",)),
    ]
    reasons = [animal.missing() for animal in lacking]
    assert reasons == ["there is no a-tool-that-is-not", None]
    assert len({animal.name for animal in ANIMALS}) == len(ANIMALS)


ESCAPES = {
    "env -i setsid": {"session", "marker"},
    "a double fork": {"session", "parent", "marker"},
    "ignored TERM, HUP, INT": {"session", "SIGTERM"},
    "a grandchild on the pipe": {"session", "parent"},
    "an overwritten environment": {"session", "parent", "marker"},
    "a fork chain": {"session", "marker"},
    "a stopped child": {"stopped", "SIGTERM"},
    "a sub-shell in the background": {"SIGTERM"},
}


async def test_the_animals_escape_as_they_should(tmp_path: Path, beasts: Path) -> None:
    """Or ending them would prove nothing."""
    missing = {(animal, way) for animal, ways in ESCAPES.items() for way in ways}
    # The observer may look at one that is still on its way out.
    for attempt in range(5):
        if missing:
            for meeting in await meet("stop", PLAIN, tmp_path / str(attempt), beasts):
                missing -= {(meeting.animal, way) for way in meeting.escaped}
    assert missing == set()


@pytest.mark.parametrize("animal", PLAIN, ids=lambda animal: animal.name)
async def test_a_stop_touches_no_other_task(
    tmp_path: Path, beasts: Path, animal: Animal
) -> None:
    """P8: not even one of the same kind."""
    with trio.fail_after(PATIENCE):
        async with (
            open_observer(beasts) as observer,
            open_runtime(tmp_path) as runtime,
        ):
            one, other = await zoo.let_loose(
                runtime,
                [Specimen(animal, tmp_path), Specimen(animal, tmp_path)],
                observer,
            )
            await runtime.stop(one.task.id)
            assert (await observer.look([one.specimen.word]))[one.specimen.word] == []
            assert not one.specimen.is_held()
            # Who is not seen need not be gone; a look may be torn.
            while not await observer.sees(other.specimen):
                pass
            assert not other.task.status.is_terminal


async def test_what_is_left_is_seen(tmp_path: Path, beasts: Path) -> None:
    """The observer would tell of a miss, and ends what it finds."""
    specimen = Specimen(PLAIN[0], tmp_path)
    stray = await trio.lowlevel.open_process(["sleep", specimen.word])
    try:
        with trio.fail_after(PATIENCE):
            async with open_observer(beasts) as observer:
                await observer.check_gone([specimen])
            (miss,) = specimen.misses
            assert f"'pid': {stray.pid}" in miss
            assert await stray.wait() == -9
    finally:
        stray.kill()
        with trio.CancelScope(shield=True):
            await stray.wait()


async def test_a_chain_is_seen_at_each_look(beasts: Path) -> None:
    """Though each of its links lives for less than a look takes."""
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    word = unused_seconds()
    with trio.fail_after(PATIENCE):
        async with open_observer(beasts) as observer:
            await trio.run_process([observer.beast, "chain", word])
            try:
                seen = [len((await observer.look([word]))[word]) for _ in range(10)]
                assert min(seen) > 0
            finally:
                while left := (await observer.look([word]))[word]:
                    for process in left:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process["pid"], signal.SIGKILL)


async def test_a_thousand_forks_a_second_do_not_keep_a_stop_waiting(
    tmp_path: Path,
    beasts: Path,
) -> None:
    """P1: as many generations as the machine can make, without any pause."""
    word = unused_seconds()
    with trio.fail_after(PATIENCE):
        async with (
            open_observer(beasts) as observer,
            open_runtime(tmp_path) as runtime,
        ):
            command = (
                f"env -i {sys.executable} -S -c '{chain()}' {word} & exec sleep {word}"
            )
            task = await runtime.launch(Shell(command, grace=0.2))
            while len((await observer.look([word]))[word]) < 3:
                pass
            result = await runtime.stop(task.id)
            assert (await observer.look([word]))[word] == []
            assert result.survivors == ()


def test_the_table_has_a_line_for_each_animal_and_way() -> None:
    meetings = [
        zoo.Meeting(
            animal=animal.name,
            way=way,
            escaped=("session",),
            ended_by="SIGTERM",
            seconds=seconds,
            misses=misses,
        )
        for animal in ANIMALS
        for way in zoo.WAYS
        for seconds, misses in ((0.01, ()), (0.02, ("left",)), (0.09, ()))
    ]
    lines = zoo.format_meetings(meetings).splitlines()
    assert len(lines) == 2 + len(ANIMALS) * len(zoo.WAYS)
    assert (
        lines[2] == "| a plain command | stop | session | SIGTERM | 3 | 20 | 90 | 1 |"
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.zoo", *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rounds", "0"], "--rounds must be 1 or more, not 0"),
        (["--busy", "-1"], "--busy must be 0 or more, not -1"),
        (["--kinds", "a unicorn"], "no kind 'a unicorn', only a plain command; "),
        (["--ways", "stop,flee"], "no way 'flee', only stop; stop now; "),
    ],
)
def test_what_makes_no_zoo_is_refused_by_name(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        zoo.main(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_slow_guardians_beside_a_busy_loop_miss_nothing() -> None:
    """P1: the switches are the zoo's, and the guardian's delays are real."""
    ways = "stop,kill -9 of the runtime"
    done = command(
        "--rounds",
        "1",
        "--slow",
        "--busy",
        "1",
        "--kinds",
        "double fork",
        "--ways",
        ways,
    )
    assert "left out" in done.stdout
    assert "missed: 0 of " in done.stdout
    assert done.returncode == 0, done.stdout


def test_how_many_meetings_there_were_bounds_the_misses() -> None:
    assert zoo.format_bound(0, 300) == "0 of 300: below 1 % at 95 %"
    assert zoo.format_bound(0, 41) == "0 of 41: below 7.1 % at 95 %"
    assert zoo.format_bound(2, 211) == "2 of 211: below 3 % at 95 %"
    assert zoo.format_bound(3, 3) == "3 of 3: below 1e+02 % at 95 %"
    assert zoo.bound(0, 20) == pytest.approx(1 - 0.05 ** (1 / 20))


async def test_a_process_that_no_look_can_name_is_seen_by_its_pipe(
    tmp_path: Path,
) -> None:
    specimen = Specimen(PLAIN[0], tmp_path)
    specimen.command(leader_ends=False)
    assert not specimen.is_held()
    stray = await trio.lowlevel.open_process(
        ["sh", "-c", f"exec 9>{specimen.pipe}; kill -STOP $$"]
    )
    try:
        with trio.fail_after(PATIENCE):
            while not specimen.is_held():
                await trio.sleep(0.005)
        stray.kill()
        await stray.wait()
        assert not specimen.is_held()
    finally:
        stray.kill()
        specimen.close()
        with trio.CancelScope(shield=True):
            await stray.wait()


def test_what_was_missed_is_found_by_its_mark() -> None:
    """However it is called and whatever it has given up."""
    program = (
        "import subprocess\n"
        "from bench._observer import bear_mark, end_marked\n"
        "mark = bear_mark()\n"
        "stray = subprocess.Popen('env -i setsid sleep 150 & exec sleep 150', shell=True)\n"
        "while len(found := end_marked(mark)) < 1: pass\n"
        "assert stray.wait() == -9\n"
        "assert end_marked(mark) == []\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        check=True,
        timeout=PATIENCE,
    )
