"""Programs whose loop is another one than trio's: told what to do, or served."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors import ActorError, NotInTrio
from actors.testing import fake_env
from supervisor.runtime import open_runtime
from supervisor.tree import child, open_dynamic_supervisor, open_supervisor

OPENED: dict[str, Callable[[Path], AbstractAsyncContextManager[Any]]] = {
    "open_runtime": open_runtime,
    "open_supervisor": lambda _: open_supervisor(),
    "open_dynamic_supervisor": lambda _: open_dynamic_supervisor(),
}


@pytest.mark.parametrize("name", OPENED)
def test_asyncio_is_told_what_it_lacks_and_nothing_is_opened(
    name: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with OPENED[name](tmp_path / "tasks"):
            raise AssertionError("not reached")

    with pytest.raises(NotInTrio, match=rf"^{name} works in trio only") as caught:
        asyncio.run(main())
    said = str(caught.value)
    for way in ("trio.run(main)", 'backend="trio"', "guest mode"):
        assert way in said
    assert isinstance(caught.value, ActorError) and isinstance(
        caught.value, RuntimeError
    )
    assert list(tmp_path.iterdir()) == []


def test_no_loop_at_all_is_told_likewise() -> None:
    block = open_supervisor()
    with pytest.raises(NotInTrio):
        block.__aenter__().send(None)


def test_anyio_with_trio_below_it_works(tmp_path: Path) -> None:
    """As README says; with anyio's own task groups and timeouts round it."""
    anyio = pytest.importorskip("anyio")

    async def actor(ctx: Any, answer: list[int]) -> None:
        answer.append(await ctx.mailbox.receive())

    async def main() -> None:
        from actors.shell import Shell

        answer: list[int] = []
        env = fake_env({"make": 2})
        with anyio.fail_after(30):
            async with open_supervisor([child("a", actor, answer)]) as supervisor:
                (info,) = supervisor.which_children()
                info.ref.tell(5)
                while not answer:
                    await anyio.sleep(0)
            async with open_runtime(tmp_path / "tasks", env=env) as runtime:
                async with anyio.create_task_group() as group:
                    group.start_soon(runtime.run, Shell("make"))
                    done = await runtime.run(Shell("make"))
                assert done.exit_code == 2
        assert answer == [5]

    anyio.run(main, backend="trio")
    with pytest.raises(NotInTrio):
        anyio.run(main, backend="asyncio")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")
def test_a_guest_of_asyncio_leaves_nothing_when_its_host_is_interrupted(
    tmp_path: Path,
) -> None:
    """With the code of the example, and a failure in the block."""
    root = Path(__file__).parents[3]
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(root / "examples")!r})
from asyncio_host import open_tasks
from actors.shell import Shell

async def main():
    async with open_tasks({str(tmp_path / "tasks")!r}) as tasks:
        running = asyncio.ensure_future(tasks.run(Shell("echo up >up; sleep 600")))
        while not __import__("os").path.exists("up"):
            await asyncio.sleep(0.02)
        raise OSError("the host fails")

try:
    asyncio.run(main())
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("the host fails\n", "")
