"""The keys of a directory that two runtimes have open: nothing is begun twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.runtime import KeyElsewhere, open_runtime
from tests.supervisor.jobs import returns
from tests.supervisor.runtime.test_journal_shared import HERE, LONG, beside, first_of


async def makes_for_ever(program: Program) -> int:
    await trio.sleep_forever()


async def test_the_second_refuses_keys_until_it_knows_those_of_the_first(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it ends what the first has left when it crashed: what that had begun
    with a key is entered only then."""
    env = fake_env({"make": makes_for_ever})
    other, ending, may_end = beside(env), trio.Event(), trio.Event()

    async def end_orphans(
        program: str, prefixes: Collection[str]
    ) -> tuple[int, list[int]]:
        ending.set()
        await may_end.wait()
        return 0, []

    monkeypatch.setattr(other.processes, "end_orphans", end_orphans)
    with trio.fail_after(LONG):
        async with (
            first_of(HERE, env) as (one, end),
            open_runtime(HERE, env=other) as two,
        ):
            done = await one.launch(returns("x"), key="k", owner="main")
            await done.wait()
            makes = await one.launch(Shell("make"), key="l")

            async def refuses(key: str, owner: str | None = None) -> KeyElsewhere:
                with pytest.raises(KeyElsewhere) as caught:
                    await two.launch(returns("x"), key=key, owner=owner)
                return caught.value

            await refuses("k", "main")
            error = await refuses("new", "main")
            assert str(error) == (
                "it cannot be told here what the key 'new' of main has begun: "
                f"{error.holder} keeps the journal of the directory, and its keys. "
                "Launch it there, or here when that has ended"
            )
            assert two.tasks() == []
            # The file as a crash leaves it, within the second after the first has gone.
            left = env.files.read_at(HERE / "journal.jsonl", 0, 2**20)
            await end()
            env.files.replace(HERE / "journal.jsonl", left)
            await ending.wait()
            await refuses("k", "main")
            await refuses("l")
            assert two.tasks() == []
            may_end.set()
            await anext(two.notifications)
            again = await two.launch(returns("x"), key="k", owner="main")
            assert again.id == done.id
            lost = await two.launch(Shell("make"), key="l")
            assert lost.id == makes.id and lost.status is TaskStatus.FAILED
            new = await two.launch(returns("x"), key="new", owner="main")
            assert (await new.wait()).result == "x"


DEPLOYS = """
import sys, trio
from actors.shell import Shell
from supervisor.runtime import KeyElsewhere, open_runtime

async def ask(runtime, found):
    try:
        task = await runtime.launch(Shell("echo ran >> " + sys.argv[2]), key="deploy")
    except KeyElsewhere as error:
        found.add("elsewhere")
    else:
        await task.wait()
        found.add(task.id)

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        print("open", flush=True)
        while (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            found = set()
            async with trio.open_nursery() as nursery:
                for _ in range(25):
                    nursery.start_soon(ask, runtime, found)
            print(*found, flush=True)

trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="locks of single bytes")
async def test_of_fifty_launches_with_one_key_in_two_processes_one_runs(
    tmp_path: Path,
) -> None:
    """And once the first was killed, the second finds what it has run."""
    ran = tmp_path / "ran"
    processes: list[trio.Process] = []

    async def hear(process: trio.Process) -> str:
        assert process.stdout is not None
        said = b""
        while not said.endswith(b"\n"):
            said += (more := await process.stdout.receive_some())
            assert more, "it has died"
        return said.decode().strip()

    async def ask(process: trio.Process, told: dict[trio.Process, str]) -> None:
        assert process.stdin is not None
        await process.stdin.send_all(b"go\n")
        told[process] = await hear(process)

    with trio.fail_after(LONG):
        try:
            for _ in range(2):
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-c", DEPLOYS, str(tmp_path / "tasks"), str(ran)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                processes.append(process)
                assert await hear(process) == "open"
            told: dict[trio.Process, str] = {}
            async with trio.open_nursery() as nursery:
                for process in reversed(processes):
                    nursery.start_soon(ask, process, told)
            first, second = processes
            assert told[second] == "elsewhere"
            assert len(told[first].split()) == 1 and told[first] != "elsewhere"
            assert ran.read_text() == "ran\n"
            first.kill()
            await first.wait()
            found = told[first]
            # It may take over while it is being asked.
            while "elsewhere" in told[second]:
                await ask(second, told)
            assert told[second] == found
            assert ran.read_text() == "ran\n", "it was deployed twice"
        finally:
            with trio.CancelScope(shield=True):
                for process in processes:
                    process.kill()
                    await process.wait()
