"""Permissions where calls are made: by agents of a runtime, and by a host's own model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolAnswer,
    ToolUse,
)
from actors.env import real_env
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.hooks import Hook, Hooks
from supervisor.permissions import Permissions, Rule, ToolRequest, Verdict
from supervisor.permissions._tool_names import is_listed
from supervisor.runtime import Runtime, open_runtime
from supervisor.tools import Field, Tool
from supervisor.tools import ToolResult as Answer

Calls = Sequence[tuple[str, dict[str, Any]]]


def calling(calls: Calls, answers: list[ToolAnswer]) -> Any:
    """Return a loop that makes calls and keeps their answers."""

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        uses = tuple(
            ToolUse(f"use_{number}", name, input)
            for number, (name, input) in enumerate(calls)
        )
        yield AssistantMessage("calls", tool_uses=uses)
        told = await context.use_tools(uses)
        answers.extend(told.tool_answers)
        yield told
        yield FinalResult("done")

    return run


def file_tools(done: list[tuple[str, Any]]) -> Callable[[Runtime, str], list[Tool]]:
    """Return tools for files that only say what they were called with."""

    def tool(name: str, *fields: str) -> Tool:
        async def act(call: Any) -> Answer:
            done.append((name, dict(call.arguments)))
            return Answer("done")

        told = [Field(field, "text", required=False) for field in fields]
        return Tool(name, "A tool for files.", told, act)

    def make(runtime: Runtime, agent_id: str) -> list[Tool]:
        return [tool("Edit", "file_path"), tool("Read", "file_path", "paths")]

    return make


async def ask_all(
    directory: Path,
    calls: Calls,
    permissions: Permissions,
    *,
    real: bool = True,
    definitions: Mapping[str, AgentDefinition] | None = None,
    hooks: Hooks | None = None,
    home: str = "/home/fake",
    **agent: Any,
) -> tuple[list[ToolAnswer], list[tuple[str, Any]]]:
    """Return what an agent is answered for its calls, and which were made."""
    answers: list[ToolAnswer] = []
    done: list[tuple[str, Any]] = []
    run = calling(calls, answers)
    policy = AgentPolicy(
        run=run,
        permissions=permissions,
        tools=file_tools(done),
        definitions=definitions or {},
        hooks=hooks or Hooks(),
    )
    env = real_env() if real else fake_env(environment={"HOME": home})
    with trio.fail_after(30):
        async with open_runtime(directory, env=env, agents=policy) as runtime:
            task = await runtime.launch(Agent(run, "go", **agent))
            await task.wait()
    return answers, done


@pytest.mark.parametrize("given", [None, ".", "{tmp}"])
async def test_an_agent_is_at_home_in_the_directory_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """PM12: by whatever name it calls that, and not by one that leads elsewhere."""
    home = tmp_path / "project"
    home.mkdir()
    (home / "src").mkdir()
    (home / "out").symlink_to(tmp_path)
    (tmp_path / "also").symlink_to(home)
    (home / "round").symlink_to("round")
    monkeypatch.chdir(home)
    inside = ["a.py", "src/../a.py", str(home / "src" / "a.py"), "src/new/a.py"]
    outside = [
        *("out/a.py", "../a.py", str(tmp_path / "a.py"), "out/project/../a.py"),
        *("round/a.py", "~/a.py", "run/a.py", str(home / "run" / "x.jsonl")),
    ]
    calls = [("Edit", {"file_path": path}) for path in (*inside, *outside)]
    cwd = None if given is None else given.format(tmp=tmp_path / "also")
    answers, done = await ask_all(
        home / "run", calls, Permissions(mode="acceptEdits"), cwd=cwd
    )
    assert {call["file_path"] for _, call in done} == {*inside}
    assert [answer.is_error for answer in answers] == [False] * 4 + [True] * 8
    calls = [("Read", {"file_path": path}) for path in (*inside, *outside[:6])]
    answers, done = await ask_all(
        home / "run", calls, Permissions(mode="plan"), cwd=cwd
    )
    assert {call["file_path"] for _, call in done} == {*inside}


async def test_a_denied_place_is_denied_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM1: whichever end of the link the rule names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vault").mkdir()
    (tmp_path / "link").symlink_to("vault")
    paths = ["vault/x", "link/x", str(tmp_path / "vault" / "x"), "link/../vault/x"]
    calls = [("Read", {"file_path": path}) for path in paths]
    for name in ("vault", "link"):
        rule = Rule("deny", f"Read(/{tmp_path}/{name}/**)")
        permissions = Permissions(rules=[rule], mode="bypass")
        answers, done = await ask_all(tmp_path / "run", calls, permissions)
        assert all(answer.is_error for answer in answers)
        assert done == []


REVIEWER = AgentDefinition(
    name="reviewer", description="x", prompt="x", background=True
)


@pytest.mark.parametrize(
    ("denied", "input", "is_refused"),
    [
        ("Agent(general-purpose)", {}, True),
        ("Task(general-*)", {}, True),
        ("Agent(general-purpose)", {"subagent_type": "reviewer"}, False),
        ("Agent(reviewer)", {}, False),
        ("Agent(REVIEWER)", {"subagent_type": "reviewer"}, True),
        ("Agent(run_in_background:false)", {}, True),
        ("Agent(run_in_background:true)", {"subagent_type": "reviewer"}, True),
        ("Agent(model:opus)", {}, True),
    ],
)
async def test_an_agent_is_judged_as_what_it_would_be(
    tmp_path: Path, denied: str, input: dict[str, Any], is_refused: bool
) -> None:
    """PM1: with what the call leaves out."""
    call = {"description": "x", "prompt": "x"} | input
    answers, _ = await ask_all(
        tmp_path,
        [("Agent", call)],
        Permissions(rules=[Rule("deny", denied)], mode="bypass"),
        real=False,
        definitions={"reviewer": REVIEWER},
        model="opus",
    )
    assert ("denies it" in answers[0].text) == is_refused


@pytest.mark.parametrize("way", ["Agent", "SendMessage"])
async def test_who_may_not_start_an_agent_may_not_have_it_go_on(
    tmp_path: Path, way: str
) -> None:
    """PM1: neither by resume nor by a message that revives it."""
    answers: list[Answer] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("done")

    policy = AgentPolicy(run=run, definitions={"reviewer": REVIEWER})
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
            task = await runtime.launch(Agent(run, "go", type="reviewer"), owner="main")
            await task.wait()
            rule = Rule("deny", "Agent(reviewer)")
            for rules in ([rule], []):
                permissions = Permissions(rules=rules, mode="bypass")
                tools = {
                    tool.name: tool
                    for tool in runtime.tools_for("main", permissions=permissions)
                }
                call = (
                    {"description": "x", "prompt": "x", "resume": task.id}
                    if way == "Agent"
                    else {"to": task.id, "message": "x"}
                )
                answers.append(await tools[way].call(call))
            await runtime.wait_idle()
    assert [answer.is_error for answer in answers] == [True, False]
    assert "Agent(reviewer) denies it" in answers[0].text


@pytest.mark.parametrize("denied", ["TaskStop", "KillShell", "KillBash"])
async def test_a_tool_is_denied_under_all_of_its_names(
    tmp_path: Path, denied: str
) -> None:
    """PM1: by a rule, and by the tools that an agent may use."""
    calls = [("TaskStop", {"task_id": "s1"}), ("KillShell", {"shell_id": "s1"})]
    permissions = Permissions(rules=[Rule("deny", denied)], mode="bypass")
    answers, _ = await ask_all(tmp_path, calls, permissions, real=False)
    assert all("denies it" in answer.text for answer in answers)
    answers, _ = await ask_all(
        tmp_path,
        calls,
        Permissions(mode="bypass"),
        real=False,
        disallowed_tools=[denied],
    )
    assert all("There is no tool" in answer.text for answer in answers)
    answers, _ = await ask_all(
        tmp_path, calls, Permissions(mode="bypass"), real=False, tools=[denied]
    )
    assert all("no task" in answer.text for answer in answers)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("mcp__*", "mcp__git__get_a mcp__git__log mcp__hub__get_a"),
        ("mcp__git", "mcp__git__get_a mcp__git__log"),
        ("mcp__git__*", "mcp__git__get_a mcp__git__log"),
        ("mcp__git__get_*", "mcp__git__get_a"),
        ("mcp__*__get_a", "mcp__git__get_a mcp__hub__get_a"),
        ("mcp__gi*", "mcp__git__get_a mcp__git__log"),
        ("mcp__git__log", "mcp__git__log"),
        ("mcp__log", ""),
        ("*", ""),
    ],
)
def test_tools_of_servers_may_be_listed_together(pattern: str, names: str) -> None:
    there = "Bash mcp__git__get_a mcp__git__log mcp__hub__get_a mcpx".split()
    assert [tool for tool in there if is_listed(tool, [pattern])] == names.split()


async def test_rules_and_hooks_have_the_home_directory_of_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM1: that of its `Env`, and not that of whoever runs the tests."""
    monkeypatch.setenv("HOME", "/home/other")
    told: list[Any] = []

    async def tell(about: Mapping[str, Any]) -> None:
        told.append(about["tool_input"]["file_path"])

    paths = ["~/keys/a", "/home/fake/keys/a", "/home/other/keys/a", "~/a"]
    answers, done = await ask_all(
        tmp_path,
        [("Read", {"file_path": path}) for path in paths],
        Permissions(rules=[Rule("deny", "Read(~/keys/**)")], mode="bypass"),
        real=False,
        hooks=Hooks(pre_tool=[Hook(tell)]),
    )
    assert [answer.is_error for answer in answers] == [True, True, False, False]
    assert [call["file_path"] for _, call in done] == paths[2:]
    assert told == ["/home/fake/keys/a"] * 2 + ["/home/other/keys/a", "/home/fake/a"]


async def test_what_was_judged_is_called_whatever_whoever_is_asked_does_with_it(
    tmp_path: Path,
) -> None:
    """PM1: also with what lies in a list of its arguments."""
    seen: list[Any] = []

    async def meddle(request: ToolRequest) -> Verdict | None:
        edits: Any = request.tool_use.input["edits"]
        seen.append(list(edits))
        edits.append("rm -rf /")
        # And the list that the call came with.
        given.append("two")
        return None

    async def allow(request: ToolRequest) -> Verdict | None:
        seen.append(list(request.tool_use.input["edits"]))
        return Verdict(True, "it is fine")

    called: list[Any] = []

    class Plain(Tool):
        async def call(
            self, arguments: object, *, tool_use_id: str | None = None
        ) -> Answer:
            called.append(arguments)
            return Answer("done")

    async def act(_: Any) -> Answer:
        raise AssertionError

    given = ["one"]
    answers: list[ToolAnswer] = []
    run = calling([("Patch", {"edits": given})], answers)
    policy = AgentPolicy(
        permissions=Permissions(ask=[meddle, allow]),
        tools=lambda *_: [Plain("Patch", "x", (), act)],
    )
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
            await (await runtime.launch(Agent(run, "go"))).wait()
    assert seen == [["one"], ["one"]]
    assert called == [{"edits": ["one"]}]
    assert given == ["one", "two"]


@pytest.mark.parametrize(
    "wishes",
    [
        ("deny", "bypass", "bypass"),
        (None, "plan", "bypassPermissions"),
        ("acceptEdits", "bypass", None),
    ],
)
async def test_three_generations_have_the_least_that_any_of_them_has(
    tmp_path: Path, wishes: tuple[str | None, ...]
) -> None:
    """PM2."""
    modes: list[str] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        modes.append(context.permission_mode)
        if len(modes) < len(wishes):
            child = Agent(run, "go", permission_mode=wishes[len(modes)])
            await (await context.launch(child)).wait()
        yield FinalResult("done")

    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env(), agents=policy) as runtime:
            events = runtime.events.subscribe()
            agent = Agent(run, "go", permission_mode=wishes[0])
            await (await runtime.launch(agent)).wait()
            warnings = [
                str(event) for event in events.drain() if "mode is" in str(event)
            ]
    least = {"deny": ["deny"] * 3, None: ["bypass", "plan", "plan"]}
    assert modes == least.get(wishes[0], ["accept_edits"] * 3)
    # Nobody is warned of a mode that is the same by another name.
    assert len(warnings) == {"deny": 2, None: 1}.get(wishes[0], 1)


# ---- The host's own model ------------------------------------------------------------


async def test_the_tools_of_a_host_are_judged_by_the_permissions_that_it_gives(
    tmp_path: Path,
) -> None:
    """PM1: rules, mode, and who is asked; without permissions nobody judges."""
    asked: list[ToolRequest] = []

    async def ask(request: ToolRequest) -> Verdict | None:
        asked.append(request)
        return None

    rules = [Rule("allow", "Bash(git log *)"), Rule("deny", "KillShell")]
    permissions = Permissions(rules=rules, ask=[ask])
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            plain = {tool.name: tool for tool in runtime.tools_for("main")}
            judged = {
                tool.name: tool
                for tool in runtime.tools_for("main", permissions=permissions)
            }
            assert [*plain] == [*judged]
            refused = await judged["Bash"].call({"command": "git log && x"})
            assert refused.is_error
            assert refused.data == {"error": "not_allowed"}
            assert "nobody has allowed it" in refused.text
            assert "allows less than this" in refused.text
            (request,) = asked
            assert (request.agent_id, request.agent_type) == ("main", "main")
            assert request.cwd == "/"
            assert not runtime.tasks()
            refused = await judged["TaskStop"].call({"task_id": "s1"})
            assert "KillShell denies it" in refused.text
            # Its arguments are checked first, and no other call is made.
            assert (await judged["Bash"].call({"cmd": "x"})).data[
                "error"
            ] != "not_allowed"
            assert (await judged["TaskList"].call({})).text == "There are no tasks."
            unjudged = await plain["TaskStop"].call({"task_id": "s1"})
            assert "no task" in unjudged.text
            with pytest.raises(TypeError, match="permissions must be Permissions"):
                runtime.tools_for("main", permissions="bypass")  # type: ignore[arg-type]


async def test_a_hosts_own_model_waits_for_its_person_in_the_mode_bubble(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """PM3: and its question goes with the call."""
    answers: list[Answer] = []
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            tools = runtime.tools_for("main", permissions=Permissions(mode="bubble"))
            (bash,) = (tool for tool in tools if tool.name == "Bash")

            async def call(id: str) -> None:
                answers.append(await bash.call({"command": "make"}, tool_use_id=id))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, "one")
                nursery.start_soon(call, "two")
                await trio.testing.wait_all_tasks_blocked()
                waiting = runtime.approvals.pending()
                assert {one.agent_id for one in waiting} == {"main"}
                assert {one.tool_use.id for one in waiting} == {"one", "two"}
                assert runtime.approvals.answer(waiting[0].id, False, "not now")
                await trio.testing.wait_all_tasks_blocked()
                assert [answer.is_error for answer in answers] == [True]
                assert "not now" in answers[0].text
                nursery.cancel_scope.cancel()
            assert runtime.approvals.pending() == []


@pytest.mark.parametrize("last", [True, False])
async def test_a_call_of_a_hosts_own_model_is_made_as_it_was_judged(
    tmp_path: Path, last: bool
) -> None:
    """PM1: with what the last of those who are asked has made of it."""
    seen: list[dict[str, Any]] = []

    def answers(command: str | None, *, allowed: bool = True) -> Any:
        async def ask(request: ToolRequest) -> Verdict | None:
            seen.append(dict(request.tool_use.input))
            input: dict[str, Any] | None = None
            if command is not None:
                input = {"command": command, "run_in_background": True}
            return Verdict(allowed, "as it says", input=input)

        return ask

    permissions = Permissions(
        rules=[Rule("ask", "Bash(rm *)"), Rule("ask", "Bash(mv *)")],
        ask=[answers("rm b"), answers("mv c d"), answers(None, allowed=last)],
    )
    env = fake_env()
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=env) as runtime:
            bash, *_ = runtime.tools_for("main", permissions=permissions)
            answer = await bash.call({"command": "make", "run_in_background": True})
            started = [task.description for task in runtime.tasks()]
    assert [it["command"] for it in seen] == ["make", "rm b", "mv c d"]
    assert answer.is_error != last
    assert started == (["mv c d"] if last else [])


@pytest.mark.parametrize(
    ("input", "code"),
    [
        ({"command": "x", "cwd": 7}, "invalid_arguments"),
        ({"cmd": "x"}, "invalid_arguments"),
        ({"command": "rm x"}, "not_allowed"),
    ],
)
async def test_what_a_call_is_changed_into_is_read_and_judged_as_any_other(
    tmp_path: Path, input: dict[str, Any], code: str
) -> None:
    """PM1: and nothing is done if it cannot be."""

    async def ask(request: ToolRequest) -> Verdict | None:
        return Verdict(True, "with something else", input=input)

    permissions = Permissions(rules=[Rule("deny", "Bash(rm *)")], ask=[ask])
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            bash, *_ = runtime.tools_for("main", permissions=permissions)
            answer = await bash.call({"command": "make"})
            assert not runtime.tasks()
    assert answer.is_error
    assert answer.data == {"error": code}


async def test_each_question_of_a_hosts_own_model_is_its_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """PM3: also of calls without an id, and of an owner who is called as none is."""
    answers: dict[str, Answer] = {}
    permissions = Permissions(mode="bubble")
    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:

            async def call(owner: str | None, command: str, id: str | None) -> None:
                bash, *_ = runtime.tools_for(owner, permissions=permissions)
                answers[command] = await bash.call(
                    {"command": command, "run_in_background": True}, tool_use_id=id
                )

            def pending(owner: str | None = None) -> list[Any]:
                waiting = runtime.approvals.pending(owner)
                return [one.tool_use.input["command"] for one in waiting]

            async with trio.open_nursery() as nursery:
                for owner, command, id in (
                    ("main", "one", None),
                    ("main", "two", None),
                    ("main", "three", ""),
                    ("main", "four", "id"),
                    (None, "five", "id"),
                    ("", "six", "id"),
                ):
                    nursery.start_soon(call, owner, command, id)
                    await trio.testing.wait_all_tasks_blocked()
                assert answers == {}
                assert pending() == ["one", "two", "three", "four", "five", "six"]
                assert pending("main") == ["one", "two", "three", "four"]
                assert pending("") == ["six"]
                assert pending("other") == []
                ids = [one.tool_use.id for one in runtime.approvals.pending("main")]
                assert len({*ids}) == len(ids)
                assert "" not in ids
                # An answer is for one of them.
                for one in runtime.approvals.pending():
                    allow = one.tool_use.input["command"] == "two"
                    assert runtime.approvals.answer(one.id, allow)
            assert [it for it in answers if not answers[it].is_error] == ["two"]
            assert [task.description for task in runtime.tasks()] == ["two"]


@pytest.mark.parametrize("owner", ["main", None])
async def test_the_end_of_a_runtime_ends_the_questions_of_its_hosts_own_model(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, owner: str | None
) -> None:
    """PM4: who waits outside of the block is answered, and nobody waits any more."""
    answers: list[Answer] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path, env=fake_env()) as runtime:
                permissions = Permissions(mode="bubble")
                bash, *_ = runtime.tools_for(owner, permissions=permissions)

                async def call() -> None:
                    answers.append(await bash.call({"command": "make"}))

                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                assert len(runtime.approvals.pending()) == 1
            assert runtime.approvals.pending() == []
            nursery.start_soon(call)
    assert [answer.is_error for answer in answers] == [True, True]
    assert ["runtime" in answer.text for answer in answers] == [True, True]


async def test_a_host_asks_for_the_tools_of_an_agent_within_its_mode(
    tmp_path: Path,
) -> None:
    """PM2: the agent may do no more by them than by its own."""
    with trio.fail_after(30):
        async with open_runtime(
            tmp_path, env=fake_env(), agents=AgentPolicy(permissions=Permissions())
        ) as runtime:
            refused: list[Answer] = []

            async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
                tools = runtime.tools_for(
                    context.agent_id, permissions=Permissions(mode="bypass")
                )
                refused.append(await tools[0].call({"command": "make"}))
                yield FinalResult("done")

            await (await runtime.launch(Agent(run, "go"))).wait()
    assert refused[0].data == {"error": "not_allowed"}


@pytest.mark.skipif(os.name != "posix", reason="links are what is tried")
async def test_where_links_lead_is_seen_by_both_worlds_alike(tmp_path: Path) -> None:
    """P11: the fake one is like the real one."""
    real, fake = real_env().files, fake_env().files
    fake.make_directory(tmp_path)
    for files in (real, fake):
        files.link(tmp_path / "a", "b/../c")
        files.link(tmp_path / "c", str(tmp_path / "d"))
        files.link(tmp_path / "round", "round")
        files.link(tmp_path / "two", "three")
        files.link(tmp_path / "three", "two")
    for name in (
        "a",
        "a/x",
        "c",
        "d/../a",
        "missing/x",
        "round",
        "round/x",
        "two",
        "two/..",
    ):
        path = f"{tmp_path}/{name}"
        if "two/.." not in path:
            assert real.follow(path) == fake.follow(path), name
    for name in ("round", "two"):
        assert real.follow(f"{tmp_path}/{name}") is None
    assert real.follow("a\0b") is None
    assert fake.follow(".") == "/"
    assert real.follow(".") == os.getcwd()
