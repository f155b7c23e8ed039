"""Hooks round tool calls: before each, about a permission, and after it."""

from __future__ import annotations

import json
import shutil
import sys
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AgentFailed,
    FinalResult,
    ToolUse,
)
from actors.env import Env, real_env
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.hooks import Hook, Hooks
from supervisor.hooks._calls import AgentHooks, HookFacts
from supervisor.permissions import Mode, Permissions, Rule, ToolRequest, Verdict
from supervisor.runtime import Runtime, TaskSnapshot, Warned, open_runtime
from supervisor.settings_file import read_settings

real = pytest.mark.skipif(sys.platform != "linux", reason="bash")
Told = Mapping[str, Any]


class Says:
    """A hook that remembers what it was told, and answers always the same."""

    def __init__(self, answer: object = None) -> None:
        self.told: list[Told] = []
        self._answer = answer

    async def __call__(self, told: Told) -> Any:
        await trio.lowlevel.checkpoint()
        self.told.append(told)
        return self._answer


def of_call(**specific: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **specific}}


@attrs.frozen
class Played:
    """What has come of one agent."""

    end: TaskSnapshot
    answers: list[str]
    errors: list[bool]
    warned: list[str]


async def play(
    directory: Path,
    *uses: ToolUse,
    hooks: Hooks,
    permissions: Permissions | None = None,
    env: Env | None = None,
    **more: Any,
) -> Played:
    """Run an agent that makes these calls."""
    answers: list[str] = []
    errors: list[bool] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for use in uses:
            message = await context.use_tools([use])
            answers.append(message.tool_answers[0].text)
            errors.append(message.tool_answers[0].is_error)
            yield message
        yield FinalResult("done")

    policy = AgentPolicy(
        hooks=hooks, permissions=permissions or Permissions(mode="bypass")
    )
    with trio.fail_after(60):
        async with open_runtime(
            directory, env=env or fake_env({"make": "made\n"}), agents=policy
        ) as runtime:
            events = runtime.events.subscribe()
            task = await runtime.launch(Agent(loop, "go", **more))
            end = await task.wait()
            warned = [it.text for it in events.drain() if isinstance(it, Warned)]
    return Played(end, answers, errors, warned)


MAKE = ToolUse("1", "Bash", {"command": "make"})


# ---- Before each call ----------------------------------------------------------------


async def test_where_a_path_leads_is_looked_at_once_for_all_hooks() -> None:
    """A2."""
    followed: list[str] = []

    def look(path: str) -> str:
        followed.append(path)
        return path

    hooks = [Says(), Says(), Says()]
    texts = ["Read(a/*)", "Read(b/*)", "Read(a/b)"]
    listed = [
        Hook(hook, only=Rule("allow", text))
        for hook, text in zip(hooks, texts, strict=True)
    ]
    request = ToolRequest(
        agent_id="a",
        agent_type="t",
        depth=0,
        mode="bypass",
        tool_use=ToolUse("1", "Read", {"file_path": "a/b"}),
        cwd="/home",
        follow=look,
    )
    facts = HookFacts(agent_id="a", agent_type="t")
    async with AgentHooks(
        Hooks(pre_tool=listed), fake_env(), facts, on_warning=lambda text: None
    ) as agent_hooks:
        await agent_hooks.before_tool(request)
    assert [len(hook.told) for hook in hooks] == [1, 0, 1]
    assert followed
    assert len(followed) == len({*followed})


def meddle(value: Any) -> None:
    """Change all that there is in a value."""
    if isinstance(value, dict):
        for one in value.values():
            meddle(one)
        value.clear()
    elif isinstance(value, list):
        for one in value:
            meddle(one)
        value.clear()


async def meddles(told: Any) -> None:
    meddle(told)
    await trio.lowlevel.checkpoint()
    meddle(told)


@real
async def test_no_hook_changes_what_another_one_is_told() -> None:
    """Neither for a function nor for a command, before a call and after it."""
    guards = [Says(), Says()]
    env = real_env()
    deny = Hook("""grep -q '"edits": .{"old": "rm -rf /"}' && exit 2""")
    # They begin in any order.
    listed = [
        *[Hook(meddles)] * 6,
        Hook(guards[0]),
        deny,
        Hook(guards[1]),
        *[Hook(meddles)] * 6,
    ]
    request = ToolRequest(
        agent_id="a",
        agent_type="t",
        depth=0,
        mode="bypass",
        tool_use=ToolUse("1", "Patch", {"edits": [{"old": "rm -rf /"}]}),
    )
    data = {"files": [{"name": "a"}]}
    with trio.fail_after(30):
        hooks = AgentHooks(
            Hooks(pre_tool=listed, permission_request=listed, post_tool=listed),
            env,
            HookFacts(agent_id="a", agent_type="t"),
            on_warning=lambda text: None,
        )
        advice = await hooks.before_tool(request)
        verdict = await hooks.on_permission(request)
        await hooks.after_tool(request, "x", is_error=False, data=data, seconds=1)
        await env.processes.aclose()
    assert advice.decision is not None
    assert advice.decision.effect == "deny"
    assert verdict is not None
    assert not verdict.allowed
    for guard in guards:
        assert [told["tool_input"]["edits"] for told in guard.told] == [
            [{"old": "rm -rf /"}]
        ] * 3
        assert guard.told[2]["tool_response"]["files"] == [{"name": "a"}]
    assert request.tool_use.input == {"edits": [{"old": "rm -rf /"}]}
    assert data == {"files": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("permissions", "use"),
    [
        (Permissions(mode="bypass"), MAKE),
        (Permissions(rules=[Rule("allow", "Bash")]), MAKE),
        (Permissions(rules=[Rule("deny", "Bash")]), MAKE),
        (Permissions(mode="deny"), MAKE),
        (Permissions(), ToolUse("1", "TaskList", {})),
        (Permissions(mode="deny"), ToolUse("1", "TaskList", {})),
        (Permissions(mode="bypass"), ToolUse("1", "Bash", {})),
    ],
)
async def test_a_hook_is_called_before_each_call_whatever_decides_of_it(
    tmp_path: Path, permissions: Permissions, use: ToolUse
) -> None:
    """Also where nobody is asked."""
    hook = Says()
    played = await play(
        tmp_path, use, use, hooks=Hooks(pre_tool=[Hook(hook)]), permissions=permissions
    )
    assert [told["hook_event_name"] for told in hook.told] == ["PreToolUse"] * 2
    assert hook.told[0]["tool_name"] == use.name
    assert hook.told[0]["tool_input"] == use.input
    assert played.end.status is TaskStatus.COMPLETED


@pytest.mark.parametrize("mode", ["bypass", "default"])
async def test_a_guard_holds_whatever_is_allowed(tmp_path: Path, mode: Mode) -> None:
    """A2."""
    guard = Says(Verdict(False, "not today"))
    rules = [Rule("allow", "Bash")]
    played = await play(
        tmp_path,
        MAKE,
        ToolUse("2", "TaskList", {}),
        hooks=Hooks(pre_tool=[Hook(guard, "Bash")]),
        permissions=Permissions(rules=rules, mode=mode),
    )
    assert played.errors == [True, False]
    assert played.answers[0] == "Bash is not allowed: not today."
    assert len(guard.told) == 1


def request(mode: Mode, **input: Any) -> ToolRequest:
    return ToolRequest(
        agent_id="a1",
        agent_type="x",
        depth=0,
        mode=mode,
        tool_use=ToolUse("1", "Bash", input),
    )


async def test_what_a_hook_changes_is_judged_and_made(tmp_path: Path) -> None:
    """A2."""
    change = Says(of_call(updatedInput={"command": "make"}))
    rules = [Rule("allow", "Bash(make)"), Rule("deny", "Bash(rm *)")]
    permissions = Permissions(rules=rules)
    other = ToolUse("1", "Bash", {"command": "rm -rf x"})
    hooks = Hooks(pre_tool=[Hook(change)])
    played = await play(tmp_path / "1", other, hooks=hooks, permissions=permissions)
    assert (played.errors, "made" in played.answers[0]) == ([False], True)
    assert change.told[0]["tool_input"] == {"command": "rm -rf x"}
    # And the other way round, however much the hook allows it.
    change = Says(
        of_call(permissionDecision="allow", updatedInput={"command": "rm -rf x"})
    )
    hooks = Hooks(pre_tool=[Hook(change)])
    played = await play(tmp_path / "2", MAKE, hooks=hooks, permissions=permissions)
    # Or the model, and who reads along, would not know the call that it speaks of.
    (refusal,) = played.answers
    assert refusal == (
        "Bash is not allowed: the rule Bash(rm *) denies it. It was judged as a hook has"
        ' changed it: {"command": "rm -rf x"}'
    )


@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ([], True),
        ([Rule("deny", "Bash(make)")], False),
        ([Rule("ask", "Bash(make)")], False),
    ],
)
async def test_what_a_permission_changes_is_judged_again(
    tmp_path: Path, rules: list[Rule], runs: bool
) -> None:
    """A2."""
    change = Says(Verdict(True, "so", input={"command": "make"}))
    played = await play(
        tmp_path,
        ToolUse("1", "Bash", {"command": "other"}),
        hooks=Hooks(permission_request=[Hook(change)]),
        permissions=Permissions(rules=rules),
    )
    assert played.errors == [not runs]
    assert ("made" in played.answers[0]) == runs
    assert change.told[0]["hook_event_name"] == "PermissionRequest"


async def test_nobody_changes_a_call_but_by_saying_so(tmp_path: Path) -> None:
    """What a hook is told is a copy."""

    async def meddles(told: Told) -> None:
        await trio.lowlevel.checkpoint()
        told["tool_input"]["command"] = "other"

    played = await play(tmp_path, MAKE, hooks=Hooks(pre_tool=[Hook(meddles)]))
    assert "made" in played.answers[0]


async def test_the_strictest_hook_counts_and_all_of_them_are_heard() -> None:
    """A2."""
    words = [
        Says(of_call(permissionDecision="allow", additionalContext="one")),
        Says(of_call(permissionDecision="ask", permissionDecisionReason="hm")),
        Says({"systemMessage": "hello"}),
        Says(of_call(additionalContext="two")),
    ]
    warned: list[str] = []
    hooks = AgentHooks(
        Hooks(pre_tool=[Hook(word) for word in words]),
        fake_env(),
        HookFacts(agent_id="a1", agent_type="x"),
        on_warning=warned.append,
    )
    advice = await hooks.before_tool(request("default", command="make"))
    assert advice.decision is not None
    assert (advice.decision.effect, advice.decision.reason) == ("ask", "hm")
    assert advice.text == "one\n\ntwo"
    assert len(warned) == 1 and warned[0].endswith("says: hello")


async def test_a_call_that_cannot_be_told_of_is_not_made_without_its_guard() -> None:
    """A command is no guard of what JSON cannot hold."""
    hooks = AgentHooks(
        Hooks(pre_tool=[Hook("true")]),
        fake_env(),
        HookFacts(agent_id="a1", agent_type="x"),
        on_warning=lambda text: None,
    )
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for odd in (float("nan"), float("inf"), {1: {object: 2}}):
        advice = await hooks.before_tool(request("bypass", command=odd))
        assert advice.decision is not None
        assert advice.decision.effect == "deny"


# ---- Which hooks -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matcher", "names"),
    [
        ("Bash", ["Bash"]),
        ("Edit|Write", ["Edit", "Write"]),
        ("Edit, Write", ["Edit", "Write"]),
        ("Edit.*", ["Edit", "MultiEdit", "NotebookEdit"]),
        ("^Edit$", ["Edit"]),
        ("mcp__memory__.*", ["mcp__memory__read"]),
        ("mcp__.*__read", ["mcp__memory__read"]),
        (
            "*",
            ["Bash", "Edit", "MultiEdit", "NotebookEdit", "Write", "mcp__memory__read"],
        ),
        (
            "",
            ["Bash", "Edit", "MultiEdit", "NotebookEdit", "Write", "mcp__memory__read"],
        ),
    ],
)
def test_a_matcher_is_read_as_claude_code_reads_it(
    matcher: str, names: list[str]
) -> None:
    """HK1: a guard that is not called is none."""
    tools = ["Bash", "Edit", "MultiEdit", "NotebookEdit", "Write", "mcp__memory__read"]
    assert [name for name in tools if Hook("x", matcher).matches(name)] == names


async def test_a_hook_may_be_for_some_calls_only() -> None:
    hook = Says(Verdict(False, "no"))
    hooks = AgentHooks(
        Hooks(pre_tool=[Hook(hook, "Bash", only=Rule("allow", "Bash(rm *)"))]),
        fake_env(),
        HookFacts(agent_id="a1", agent_type="x"),
        on_warning=lambda text: None,
    )
    for command, called in [("ls", 0), ("true; rm x", 1), ("echo $(rm x)", 2)]:
        await hooks.before_tool(request("default", command=command))
        assert len(hook.told) == called
    with pytest.raises(ValueError, match="stop is not about tool calls"):
        Hooks(stop=[Hook("x", only=Rule("deny", "Bash"))])


@pytest.mark.parametrize("matcher", ["Task", "Agent", "^Task$", "Bash|Task"])
async def test_a_matcher_means_a_tool_by_any_of_its_names(matcher: str) -> None:
    """A2, A6."""
    hook = Says()
    hooks = AgentHooks(
        Hooks(pre_tool=[Hook(hook, matcher)]),
        fake_env(),
        HookFacts(agent_id="a1", agent_type="x"),
        on_warning=lambda text: None,
    )
    asked = request("default", prompt="x")
    for name in ("Agent", "Task"):
        use = ToolUse("1", name, {"prompt": "x"})
        await hooks.before_tool(attrs.evolve(asked, tool_use=use))
    assert len(hook.told) == 2


@pytest.mark.parametrize(
    ("matcher", "told"),
    [("bash", "write Bash"), ("Read|BASH", "write Bash"), ("Bash|Read", None)],
)
async def test_a_hook_that_is_never_called_is_told_of(
    tmp_path: Path, matcher: str, told: str | None
) -> None:
    """A2."""
    hooks = Hooks(pre_tool=[Hook(Says(), matcher)])
    warned = [
        text for text in (await play(tmp_path, hooks=hooks)).warned if "hook" in text
    ]
    assert len(warned) == (told is not None)
    assert told is None or warned[0].endswith(told)


async def test_the_hooks_of_a_kind_of_agents_are_called_for_these(
    tmp_path: Path,
) -> None:
    """Besides those of all agents, and also for one that is resumed."""
    everybody, guard = Says(), Says(Verdict(False, "not this kind"))
    stop = Says()
    guarded = AgentDefinition(
        name="guarded",
        description="x",
        prompt="x",
        hooks=Hooks(pre_tool=[Hook(guard, "Bash")], stop=[Hook(stop)]),
    )

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        message = await context.use_tools([MAKE])
        yield FinalResult(message.tool_answers[0].text)

    policy = AgentPolicy(
        definitions={"guarded": guarded},
        run=loop,
        hooks=Hooks(pre_tool=[Hook(everybody)]),
        permissions=Permissions(mode="bypass"),
    )
    with trio.fail_after(60):
        async with open_runtime(
            tmp_path, env=fake_env({"make": "made\n"}), agents=policy
        ) as runtime:
            tools = {tool.name: tool for tool in runtime.tools_for("main")}
            asked = {"description": "x", "prompt": "x"}
            refused = await tools["Agent"].call(asked | {"subagent_type": "guarded"})
            made = await tools["Agent"].call(asked)
            (first, *_) = [it for it in runtime.tasks() if it.type == "local_agent"]
            again = await (await runtime.resume(first.id, "again")).wait()
    assert "Bash is not allowed: not this kind." in refused.text
    assert "made" in made.text
    assert again.result == "Bash is not allowed: not this kind."
    assert [told["agent_type"] for told in guard.told] == ["guarded"] * 2
    assert [told["agent_type"] for told in stop.told] == ["guarded"] * 2
    assert len(everybody.told) == 3


async def test_a_guard_holds_for_those_that_its_agent_starts(tmp_path: Path) -> None:
    """Three generations, of which the first is guarded."""
    guard, stop = Says(Verdict(False, "not below it")), Says()
    guarded = AgentDefinition(
        name="guarded",
        description="x",
        prompt="x",
        hooks=Hooks(pre_tool=[Hook(guard, "Bash")], stop=[Hook(stop)]),
    )
    told: dict[str, str] = {}

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        message = await context.use_tools([MAKE])
        told[f"{context.depth}"] = message.tool_answers[0].text
        if context.depth < 2:
            below = {"description": "x", "prompt": "x"}
            await context.use_tools([ToolUse("2", "Agent", below)])
        yield FinalResult("done")

    policy = AgentPolicy(
        definitions={"guarded": guarded},
        run=loop,
        permissions=Permissions(mode="bypass"),
    )
    with trio.fail_after(60):
        async with open_runtime(
            tmp_path, env=fake_env({"make": "made\n"}), agents=policy
        ) as runtime:
            task = await runtime.launch(Agent(loop, "go", type="guarded"))
            await task.wait()
    assert told == dict.fromkeys("012", "Bash is not allowed: not below it.")
    assert [it["agent_type"] for it in stop.told] == ["guarded"]


@pytest.mark.parametrize("same_runtime", [True, False])
async def test_a_guard_holds_for_whom_its_agent_has_started_when_that_is_resumed(
    tmp_path: Path, same_runtime: bool
) -> None:
    """Also when the guarded agent itself has ended long ago."""
    guard = Says(Verdict(False, "not below it"))
    guarded = AgentDefinition(
        name="guarded",
        description="x",
        prompt="x",
        hooks=Hooks(pre_tool=[Hook(guard, "Bash")]),
    )
    ids: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if context.depth == 0:
            below = {"description": "x", "prompt": "x"}
            await context.use_tools([ToolUse("2", "Agent", below)])
        else:
            ids.append(context.agent_id)
        message = await context.use_tools([MAKE])
        yield FinalResult(message.tool_answers[0].text)

    def opened() -> AbstractAsyncContextManager[Runtime]:
        policy = AgentPolicy(
            definitions={"guarded": guarded},
            run=loop,
            permissions=Permissions(mode="bypass"),
        )
        env = fake_env({"make": "made\n"}) if same_runtime else real_env()
        return open_runtime(tmp_path, env=env, agents=policy)

    with trio.fail_after(60):
        async with opened() as runtime:
            task = await runtime.launch(Agent(loop, "go", type="guarded"))
            await task.wait()
            if same_runtime:
                await (await runtime.resume(ids[0], "again")).wait()
        if not same_runtime:
            async with opened() as runtime:
                await (await runtime.resume(ids[0], "again")).wait()
        end = runtime.get(ids[0])
    assert end.result == "Bash is not allowed: not below it."


# ---- After it ----------------------------------------------------------------------


async def test_hooks_after_a_call_tell_the_agent_of_it(tmp_path: Path) -> None:
    """And stand before the output, which could pass for them."""
    after = Says({"decision": "block", "reason": "run the linter"})
    failed = Says("it is not there")
    other = ToolUse("2", "Bash", {"command": "nothing-there"})
    played = await play(
        tmp_path,
        MAKE,
        other,
        hooks=Hooks(post_tool=[Hook(after)], post_tool_failure=[Hook(failed)]),
    )
    assert played.answers[0].startswith("A hook says: run the linter\n\n")
    assert played.answers[0].endswith("made\n") or "made" in played.answers[0]
    assert played.answers[1].startswith("A hook says: it is not there\n\n")
    assert played.errors == [False, True]
    (told,) = after.told
    assert told["hook_event_name"] == "PostToolUse"
    assert "made" in told["tool_response"]["text"]
    assert told["duration_ms"] >= 0
    (told,) = failed.told
    assert told["hook_event_name"] == "PostToolUseFailure"
    assert (told["tool_use_id"], bool(told["error"])) == ("2", True)


async def test_what_a_hook_hides_is_not_shown(tmp_path: Path) -> None:
    """A3."""
    hide = Says(
        {
            "hookSpecificOutput": {
                "hookEventName": "PostToolUse",
                "updatedToolOutput": {"stdout": "[redacted]"},
            }
        }
    )
    played = await play(tmp_path, MAKE, hooks=Hooks(post_tool=[Hook(hide)]))
    assert played.answers == ['{"stdout": "[redacted]"}']


@pytest.mark.parametrize("when", ["start", "pre_tool", "post_tool"])
async def test_a_hook_can_end_the_agent(tmp_path: Path, when: str) -> None:
    """Continue, false."""
    ends = Says({"continue": False, "stopReason": "enough"})
    lists: dict[str, Any] = {when: [Hook(ends)]}
    played = await play(tmp_path, MAKE, hooks=Hooks(**lists))
    assert played.end.status is TaskStatus.FAILED
    assert played.end.error is not None
    assert played.end.error.message == "a hook has ended the agent: enough"


async def test_one_that_may_end_ends_whoever_wants_it_to_go_on() -> None:
    """A3."""
    hooks = Hooks(
        stop=[
            Hook(Says({"decision": "block", "reason": "more"})),
            Hook(Says({"continue": False})),
        ]
    )
    facts = HookFacts(agent_id="a1", agent_type="x")
    one = AgentHooks(hooks, fake_env(), facts, on_warning=lambda text: None)
    assert await one.on_stop("x") is None


async def test_stop_hooks_of_the_main_agent_are_for_none_below_it() -> None:
    """A3."""
    main, below = Says("more"), Says("test it")
    hooks = Hooks(main_stop=[Hook(main)], stop=[Hook(below)])
    for is_main, wanted in [(True, "test it\n\nmore"), (False, "test it")]:
        facts = HookFacts(agent_id="a1", agent_type="x", is_main=is_main)
        one = AgentHooks(hooks, fake_env(), facts, on_warning=lambda text: None)
        assert await one.on_stop("x") == wanted
    assert [told["hook_event_name"] for told in main.told] == ["Stop"]


async def test_hooks_that_end_an_agent_are_named() -> None:
    ends = {"hookSpecificOutput": {"decision": {"behavior": "deny", "interrupt": True}}}
    hooks = Hooks(permission_request=[Hook(Says(ends))])
    facts = HookFacts(agent_id="a1", agent_type="x")
    one = AgentHooks(hooks, fake_env(), facts, on_warning=lambda text: None)
    with pytest.raises(AgentFailed, match="a hook has ended the agent"):
        await one.on_permission(request("default", command="make"))


# ---- What they are told -----------------------------------------------------------------


async def test_hooks_are_told_what_claude_code_tells_them(tmp_path: Path) -> None:
    """HK9: with real values."""
    hook = Says()
    hooks = Hooks(
        start=[Hook(hook)],
        pre_tool=[Hook(hook)],
        post_tool=[Hook(hook)],
        stop=[Hook(hook)],
        main_stop=[Hook(hook)],
    )
    played = await play(tmp_path / "r", MAKE, hooks=hooks, type="Explore")
    assert played.errors == [False]
    events = [told["hook_event_name"] for told in hook.told]
    assert events[:3] == ["SubagentStart", "PreToolUse", "PostToolUse"]
    assert sorted(events[3:]) == ["Stop", "SubagentStop"]
    for told in hook.told:
        assert told["session_id"] == told["agent_id"] == played.end.id
        assert told["agent_type"] == "Explore"
        assert told["cwd"] == "/"  # That of the host.
        assert Path(told["transcript_path"]).name == f"agent-{played.end.id}.jsonl"
        assert (told["permission_mode"], told["mode"]) == (
            "bypassPermissions",
            "bypass",
        )
    assert hook.told[-1]["last_assistant_message"] == "done"
    assert hook.told[-1]["agent_transcript_path"] == hook.told[-1]["transcript_path"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("src/a.py", "/srv/src/a.py"),
        ("./src/../a.py", "/srv/a.py"),
        ("/etc/../etc/hosts", "/etc/hosts"),
        ("~/.ssh/id", "/home/me/.ssh/id"),
        ("~", "/home/me"),
        ("", ""),
        (7, 7),
    ],
)
async def test_hooks_are_told_paths_in_one_spelling(path: Any, told: Any) -> None:
    """No other one passes a hook that looks at them."""
    hook = Says()
    hooks = AgentHooks(
        Hooks(pre_tool=[Hook(hook)]),
        fake_env(),
        HookFacts(agent_id="a1", agent_type="x"),
        on_warning=lambda text: None,
    )
    use = ToolUse("1", "Write", {"file_path": path, "content": "x"})
    asked = attrs.evolve(request("default"), tool_use=use, cwd="/srv", home="/home/me")
    await hooks.before_tool(asked)
    assert hook.told[0]["tool_input"] == {"file_path": told, "content": "x"}
    assert use.input["file_path"] == path


# ---- Real commands -------------------------------------------------------------------------


@asynccontextmanager
async def open_env() -> AsyncGenerator[Env, None]:
    env = real_env()
    with trio.fail_after(60):
        try:
            yield env
        finally:
            await env.processes.aclose()


@real
async def test_a_loud_hook_costs_no_memory() -> None:
    """M5, P7: 100 MiB on each, of which only the beginning is kept."""
    command = "head -c 104857600 /dev/zero | tee /dev/stderr"
    async with open_env() as env:
        hooks = AgentHooks(
            Hooks(start=[Hook(command)]),
            env,
            HookFacts(agent_id="a1", agent_type="x"),
            on_warning=lambda text: None,
        )
        tracemalloc.start()
        try:
            await hooks.on_start()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 * 2**20


SCRIPTS = {
    "block-rm.sh": """\
        #!/usr/bin/env bash
        # Exit code 2, with jq.
        command=$(jq -r '.tool_input.command // empty')
        if grep -qE '(^|[;&| ])rm ' <<<"$command"; then
          echo "no rm here: $command" >&2
          exit 2
        fi
        """,
    "policy.py": """\
        #!/usr/bin/env python3
        import json, sys
        event = json.load(sys.stdin)
        command = event["tool_input"].get("command", "")
        out = {"hookEventName": event["hook_event_name"]}
        if "curl" in command:
            out |= {"permissionDecision": "deny", "permissionDecisionReason": "no net"}
        elif command.startswith("echo "):
            out |= {"permissionDecision": "allow"}
        elif command.startswith("sudo "):
            out["updatedInput"] = {**event["tool_input"], "command": command[5:]}
        else:
            sys.exit(0)
        print(json.dumps({"hookSpecificOutput": out}))
        """,
    "format.sh": """\
        #!/bin/sh
        # A formatter: silent, and it looks for a file.
        jq -r '.tool_input.file_path // .tool_response.filePath // empty' |
          xargs -r -n 1 touch
        """,
    "log.sh": """\
        #!/bin/sh
        cat | jq -c '[.session_id, .hook_event_name, .tool_name]' \\
          >> "$CLAUDE_PROJECT_DIR/log"
        """,
    "stop.sh": """\
        #!/usr/bin/env bash
        input=$(cat)
        if [ "$(jq -r .stop_hook_active <<<"$input")" = true ]; then exit 0; fi
        jq -n '{decision: "block", reason: "run the tests first"}'
        """,
}


@real
@pytest.mark.skipif(shutil.which("jq") is None, reason="the scripts need jq")
async def test_scripts_as_people_have_them_do_here_what_they_do_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2, A3: a settings file and its scripts, unchanged."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".claude" / "hooks"
    folder.mkdir(parents=True)
    for name, text in SCRIPTS.items():
        lines = [line[8:] for line in text.splitlines()]
        (folder / name).write_text("\n".join(lines) + "\n")
        (folder / name).chmod(0o755)
    file = tmp_path / ".claude" / "settings.json"
    script = '"$CLAUDE_PROJECT_DIR"/.claude/hooks/'

    def command(name: str, **more: Any) -> dict[str, Any]:
        return {"type": "command", "command": script + name, **more}

    file.write_text(
        json.dumps(
            {
                "permissions": {"defaultMode": "default", "deny": ["Bash(wget *)"]},
                "hooks": {
                    "PreToolUse": [
                        {
                            "matcher": "Bash",
                            "hooks": [
                                command("block-rm.sh", timeout=30),
                                command("policy.py"),
                            ],
                        },
                        {"matcher": "*", "hooks": [command("log.sh")]},
                    ],
                    "PostToolUse": [
                        {"matcher": "Edit|Write|Bash", "hooks": [command("format.sh")]}
                    ],
                    "Stop": [{"hooks": [command("stop.sh")]}],
                },
            }
        )
    )
    settings = read_settings(file)
    assert settings.problems == ()
    uses = [
        ToolUse(str(number), "Bash", {"command": line})
        for number, line in enumerate(
            ["echo hello", "true; rm x", "curl x", "sudo echo hi", "wget x", "make"]
        )
    ]
    played = await play(
        tmp_path / "runtime",
        *uses,
        hooks=settings.hooks,
        permissions=Permissions(rules=settings.rules, mode=settings.mode or "default"),
        env=real_env(),
    )
    hello, removes, loads, sudo, wget, make = played.answers[:6]
    assert "hello" in hello
    assert removes == "Bash is not allowed: no rm here: true; rm x."
    assert loads == "Bash is not allowed: no net."
    # The changed call has no permission of its own.
    assert "no rule allows it" in sudo
    assert wget == "Bash is not allowed: the rule Bash(wget *) denies it."
    assert "no rule allows it" in make
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    # The stop hook has made it go on, once.
    assert log == [[played.end.id, "PreToolUse", "Bash"]] * 12
    assert played.end.result == "done"
