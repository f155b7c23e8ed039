"""One budget for a conversation, however often and wherever it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import ResumeRefused, Runtime, Warned, open_runtime

DIRECTORY = Path("/tasks")


async def spends(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Use ten tokens each second, in a round of tools, for ever."""
    number = len(context.history)
    while True:
        number += 1
        use = ToolUse(f"t{number}", "Look")
        yield TokensUsed(input_tokens=10)
        yield AssistantMessage("", (use,))
        await trio.sleep(1)
        yield UserMessage(tool_answers=(ToolAnswer(use.id, "seen"),), origin="tools")
        context.inbox.take()


async def warnings(runtime: Runtime, into: list[str]) -> None:
    with runtime.events.subscribe() as events:
        async for event in events:
            text = event.text if isinstance(event, Warned) else ""
            part, found, _ = text.partition(" of its budget is used")
            into += [part] * bool(found)


POLICY = AgentPolicy(run=spends)
RUNS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["same", "next"])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(RUNS, st.sampled_from(["alone", "part", "below"]))
def test_the_runs_of_a_conversation_share_one_budget_and_are_warned_once(
    runs: list[tuple[int, str]], whose: str
) -> None:
    """AG33, HL15: stopped and resumed any number of times, here and elsewhere; alone,
    with a budget of its own below another agent's, and with only that."""
    limit = 100
    env = fake_env()
    heard: list[str] = []
    agent_id = ""
    rounds = 0
    over = False

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal agent_id
        own = Budget(limit) if whose == "part" else None
        agent_id = (await context.launch(Agent(spends, "below", budget=own))).id
        await trio.sleep_forever()
        yield FinalResult("never")

    async def begin(runtime: Runtime) -> None:
        nonlocal agent_id
        if whose == "alone":
            task = await runtime.launch(Agent(spends, "go", budget=Budget(limit)))
            agent_id = task.id
            return
        budget = Budget(1000 if whose == "part" else limit)
        await runtime.launch(Agent(above, "go", budget=budget))
        await trio.testing.wait_all_tasks_blocked()

    async def main() -> None:
        nonlocal rounds, over
        waiting = list(runs)
        while waiting and not over:
            async with open_runtime(DIRECTORY, env=env, agents=POLICY) as runtime:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(warnings, runtime, heard)
                    await trio.testing.wait_all_tasks_blocked()
                    where = "same"
                    while waiting and where == "same" and not over:
                        seconds, where = waiting.pop(0)
                        if agent_id:
                            await runtime.resume(agent_id)
                        else:
                            await begin(runtime)
                        await trio.sleep(seconds - 0.5)
                        rounds += seconds
                        if rounds * 10 >= limit:
                            over = True
                            done = runtime.get(agent_id)
                            assert done.terminate == "budget"
                        else:
                            await runtime.stop(agent_id)
                    if over:
                        with pytest.raises(ResumeRefused, match="budget"):
                            await runtime.resume(agent_id)
                    nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    wanted = ["50%"] * (rounds >= 5) + ["80%"] * (rounds >= 8)
    # Below another agent, that one is told as well.
    count = 2 if whose == "below" else 1
    for part in ("50%", "80%"):
        assert heard.count(part) <= count * wanted.count(part)
        assert (part in heard) == (part in wanted)


async def test_an_own_task_whose_parent_has_ended_stays_a_part_of_its_budget(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG33: the host goes on with it, in the same program."""
    budget = Budget(100)
    ids: list[str] = []

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await context.launch(Agent(spends, "below"))
        ids.append(task.id)
        await trio.sleep(3.5)
        await task.stop()
        yield FinalResult("enough")

    async with open_runtime(DIRECTORY, env=fake_env(), agents=POLICY) as runtime:
        await runtime.run(Agent(above, "go", budget=budget))
        assert budget.used_tokens == 40
        began = trio.current_time()
        done = await (await runtime.resume(ids[0])).wait()
        assert done.terminate == "budget"
        assert budget.used_tokens == 100
        assert trio.current_time() - began == pytest.approx(5)


async def test_who_was_warned_in_its_last_round_hears_it_when_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Once in the whole conversation, whatever follows."""

    async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
        told = [it for it in context.history if isinstance(it, UserMessage)]
        heard.append([it.text for it in told if "of your budget" in it.text])
        yield TokensUsed(input_tokens=60 if len(heard) == 1 else 1)
        # For the watch of the budget.
        await trio.sleep(1)
        yield FinalResult("done")

    heard: list[list[str]] = []
    policy = AgentPolicy(run=answers)
    async with open_runtime("tasks", env=fake_env(), agents=policy) as runtime:
        task = await runtime.launch(Agent(answers, "go", budget=Budget(100)))
        for _ in range(2):
            await task.wait()
            task = await runtime.resume(task.id, "more")
        await task.wait()
    first, second, third = heard
    assert first == [] and len(second) == 1 and third == second
    assert second[0].startswith("50% of your budget is used")
    assert "40 tokens left" in second[0]
