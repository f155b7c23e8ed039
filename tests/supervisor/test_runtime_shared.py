"""Two runtimes on one directory: no agent runs in both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors.agent import Agent, AgentContext, AgentEvent, AssistantMessage
from actors.env import Env, real_env
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import ResumeRefused, open_runtime
from tests.supervisor.jobs import returns
from tests.supervisor.talkers import answers, completed

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="nothing tells there who else is in a directory"
)

POLICY = AgentPolicy(run=answers)
LONG = 30.0


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("at work")
    await trio.sleep_forever()


@pytest.fixture(params=["real", "fake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Env:
    return real_env() if request.param == "real" else fake_env()


def another(env: Env) -> Env:
    """The same world, with processes of its own."""
    return Env(
        clock=env.clock, ids=env.ids, processes=fake_env().processes, files=env.files
    )


async def test_the_second_runtime_says_so_and_touches_no_agent_of_the_first(
    world: Env, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TR6, TR8: and the other way round; both go on with what is their own."""
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=world, agents=POLICY) as first:
            assert caplog.messages == []
            mine = await first.launch(Agent(works, "go"))
            async with open_runtime(
                tmp_path, env=another(world), agents=POLICY
            ) as second:
                (said,) = caplog.messages
                assert "another runtime has the directory" in said
                theirs = await second.launch(Agent(works, "go"))
                for runtime in (first, second):
                    await runtime.transcripts.flush()
                for runtime, other in ((first, theirs), (second, mine)):
                    assert runtime.unfinished_agents() == []
                    assert not runtime.abandon_agent(other.id)
                    with pytest.raises(ResumeRefused, match="another runtime has the"):
                        await runtime.resume(other.id)
                    assert other.snapshot().status.value == "running"
                done = await completed(second)
                assert (await (await second.resume(done)).wait()).error is None
                assert (await second.run(returns(1))).result == "1"
            # It has ended, and what it has left is there to be gone on with.
            assert [meta.agent_id for meta in first.unfinished_agents()] == [theirs.id]
            again = await first.resume(theirs.id)
            assert (await again.wait()).status.value == "completed"


_HOLDS = """
import sys, time
from pathlib import Path
from actors.env import real_env
share = real_env().files.share(Path(sys.argv[1]))
print(share.is_alone(), flush=True)
time.sleep(600)
"""


async def test_a_killed_process_has_a_directory_in_use_no_longer(
    tmp_path: Path,
) -> None:
    """P1: the kernel takes the lock back, and nothing is left in the directory."""
    with trio.fail_after(LONG):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert (await process.stdout.receive_some()).strip() == b"True"
            share = real_env().files.share(tmp_path)
            assert not share.is_alone()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        await process.stdout.aclose()
        assert share.is_alone()
        assert real_env().files.names(tmp_path) == []
        share.close()
        share.close()


async def test_a_runtime_that_has_ended_leaves_the_directory(tmp_path: Path) -> None:
    """P1: also when its block fails."""
    with pytest.raises(ZeroDivisionError):
        async with open_runtime(tmp_path):
            raise ZeroDivisionError
    share = real_env().files.share(tmp_path)
    assert share.is_alone()
    share.close()
