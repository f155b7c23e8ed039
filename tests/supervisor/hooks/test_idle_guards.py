"""A rule or a hook that guards nothing is told of, or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import trio

from actors.agent import Agent
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.hooks._idle_guards import idle_guards
from supervisor.permissions import Permissions, Rule
from supervisor.runtime import Runtime, Warned, open_runtime
from supervisor.settings_file import SettingsError, read_settings
from supervisor.tools import Field, Tool, ToolResult
from tests.supervisor.talkers import answers


async def act(call: object) -> ToolResult:
    await trio.lowlevel.checkpoint()
    return ToolResult("x")


def tool(name: str, *arguments: str) -> Tool:
    return Tool(name, "x", [Field(one, "x") for one in arguments], act)


THERE = [
    tool("Bash", "command"),
    tool("TaskOutput", "task_id"),
    tool("KillShell", "shell_id"),
    tool("deploy", "place", "version"),
    tool("ping"),
    tool("mcp__github__get", "repository"),
]


def told_of(*rules: Rule, hooks: Hooks | None = None) -> list[str]:
    return [*idle_guards(rules, hooks or Hooks(), lambda: THERE)]


@pytest.mark.parametrize("effect", ["allow", "deny", "ask"])
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Bsh", "Bash"),
        ("Bsh(command=echo *)", "Bash"),
        ("Shell", "Bash"),
        ("Agnet", "Agent"),
        ("Wirte", "Write"),
        ("web_search", "WebSearch"),
        ("deplyo", "deploy"),
        ("Deploy", "deploy"),
        ("mcp__GitHub__get", "mcp__github__get"),
    ],
)
def test_a_rule_about_no_tool_that_is_like_one_is_told_of(
    effect: Literal["deny", "ask"], text: str, meant: str
) -> None:
    (told,) = told_of(Rule(effect, text))
    assert f"{text!r}, which is to {effect}, matches nothing" in told
    assert told.endswith(f"{meant} may be meant")


def test_a_pattern_of_names_that_is_like_one_is_told_of() -> None:
    (told,) = told_of(Rule("deny", "Bsh*"))
    assert told.endswith("Bash may be meant")


@pytest.mark.parametrize(
    ("effect", "text", "wrong"),
    [
        ("deny", "Bash(comand=rm*)", "comand; Bash(rm*) may be meant"),
        ("ask", "Bash(comand:rm)", "comand; Bash(rm) may be meant"),
        ("allow", "Bash(comand:rm *)", "comand; Bash(rm *) may be meant"),
        ("deny", "Bash(cwdd:/tmp*)", "cwdd; Bash(cwd:/tmp*) may be meant"),
        ("deny", "Read(file_pth=.env)", "file_pth; Read(.env) may be meant"),
        ("deny", "Agent(modle:opus)", "modle; Agent(model:opus) may be meant"),
        ("deny", "deploy(plaec=x)", "plaec; it has place, version"),
        ("allow", "deploy(plaec=x)", "plaec; it has place, version"),
        ("ask", "deploy(plaec:x)", "plaec; it has place, version"),
        ("deny", "ping(host=x)", "host; it has none"),
        ("deny", "TaskOutput(tsk_id=s1)", "tsk_id; it has task_id"),
        ("deny", "mcp__github__get(repo=x)", "repo; it has repository"),
    ],
)
def test_an_argument_that_a_tool_does_not_have_is_told_of(
    effect: Literal["allow", "deny", "ask"], text: str, wrong: str
) -> None:
    (told,) = told_of(Rule(effect, text))
    name = text.partition("(")[0]
    assert told == (
        f"the rule {text!r}, which is to {effect}, may be misspelt: {name} has no"
        f" argument {wrong}"
    )


def test_of_a_tool_that_takes_more_than_it_lists_no_argument_is_doubted() -> None:
    more = tool("deploy", "place")
    more.schema["additionalProperties"] = {"type": "string"}
    assert [*idle_guards([Rule("deny", "deploy(x=y)")], Hooks(), lambda: [more])] == []


ROOT = Path(__file__).parents[3]
SHOWN = sorted(
    {
        found
        for file in (
            *(ROOT / "README.md", ROOT / "supervisor/permissions/__init__.py"),
            *(ROOT / "examples").rglob("*.py"),
        )
        for found in re.findall(
            r'Rule\("(allow|deny|ask)", "([^"]+)"', file.read_text("utf-8")
        )
    }
)
ALL_SHOWN = [
    *SHOWN,
    *(
        ("deny", text)
        for text in re.findall(r"``(?!Rule)(\w+\([^()]+\))``", Rule.__doc__ or "")
    ),
]


def test_of_no_rule_that_is_shown_is_told() -> None:
    assert SHOWN and len(ALL_SHOWN) > len(SHOWN) + 12
    for effect, text in ALL_SHOWN:
        assert told_of(Rule(cast("Any", effect), text)) == [], text


@pytest.mark.parametrize(
    "text",
    [
        *("Bash", "Bash(rm *)", "WebSearch", "Task", "KillShell", "deploy", "*"),
        *("deploy(place=x)", "B*", "mcp__*", "mcp__slack", "mcp__slack__send"),
        *("mcp__github__put", "mcp__github", "invoice", "run_tests", "Monitor"),
        *("Bash(timeouts:*)", "Bash(npm run test:*)", "Bash(LD_PRELOAD=*)"),
        *("Bash(command *)", "Bash(cwd:/tmp*)", "Bash(sandbox:true)", "Bash(x:y)"),
        *(
            "mcp__slack__send(text=x)",
            "*(place=x)",
            "Agent(a:b)",
            "TaskStop(task_id=x)",
        ),
        *("KillShell(shell_id=x)", "KillShell(task_id=x)", "invoice(x=y)", "ping(*)"),
    ],
)
def test_a_rule_about_a_tool_that_is_there_or_may_come_is_not(text: str) -> None:
    assert told_of(Rule("deny", text)) == []


@pytest.mark.parametrize(
    "field", ["pre_tool", "permission_request", "post_tool", "post_tool_failure"]
)
@pytest.mark.parametrize(
    ("hook", "right"),
    [
        (Hook("exit 2", "Bsh"), "Bash may be meant"),
        (Hook("exit 2", "Shell"), "Bash may be meant"),
        (Hook("exit 2", "Read|Wrte"), "Write may be meant"),
        (Hook("exit 2", "bash"), "write Bash"),
        (Hook("exit 2", "mcp__github"), "write mcp__github__.*"),
        (Hook("exit 2", "^Bsh$"), "Bash may be meant"),
        (Hook("exit 2", "^(bash|Read)$"), "Bash may be meant"),
        (Hook("exit 2", "Read|Wrte.*"), "Write may be meant"),
        (
            Hook("exit 2", "Bash(echo *)"),
            'the matcher "Bash", and only=Rule("deny", "Bash(echo *)")',
        ),
        (Hook("exit 2", "Bsh(echo *)"), 'only=Rule("deny", "Bash(echo *)")'),
        (Hook("exit 2", only=Rule("deny", "Bsh(command=rm *)")), "Bash may be meant"),
    ],
)
def test_a_hook_that_no_tool_is_matched_by_is_told_of(
    field: str, hook: Hook, right: str
) -> None:
    lists: dict[str, Any] = {field: [hook]}
    (told,) = told_of(hooks=Hooks(**lists))
    assert told.startswith(f"the {field} hook 'exit 2' is never called: ")
    assert told.endswith(right)


@pytest.mark.parametrize(
    "matcher",
    [
        *("", "*", ".*", "Bash", "Edit|Write", "^B", "Task", "KillShell", "deploy"),
        *("mcp__.*", "mcp__slack__.*", "(?i)bash", "[Bb]ash", "^(?!Bash).*", r"\bBash"),
        *("invoice", "run_.*", "Notebook.*", "WebSearch", "mcp__github__get|Bash"),
    ],
)
def test_a_matcher_of_a_tool_that_is_there_or_may_come_is_not_told_of(
    matcher: str,
) -> None:
    assert told_of(hooks=Hooks(pre_tool=[Hook("exit 2", matcher)])) == []


def test_no_tools_are_made_to_see_that_rules_are_about_known_ones() -> None:
    def never() -> list[Tool]:
        raise AssertionError

    rules = [Rule("deny", "Bash(rm *)"), Rule("ask", "WebSearch")]
    hooks = Hooks(pre_tool=[Hook("exit 2", only=Rule("deny", "Bash"))])
    assert [*idle_guards(rules, hooks, never)] == []


EXCLUDED = [
    ("Bash", "Read(x)", "Read"),
    ("Bash|Edit", "WebFetch(domain:a.b)", "WebFetch"),
    ("^Bash$", "Read(x)", "Read"),
    ("mcp__github__.*", "Bash(rm *)", "Bash"),
    ("Bash", "mcp__github", "mcp__github__.*"),
    ("Bash", "mcp__github__get", "mcp__github__get"),
    ("Write", "Read", "Read"),
]


@pytest.mark.parametrize(("matcher", "rule", "right"), EXCLUDED)
def test_a_hook_whose_rule_and_matcher_exclude_each_other_is_refused(
    tmp_path: Path, matcher: str, rule: str, right: str
) -> None:
    with pytest.raises(ValueError, match="only must be") as caught:
        Hook("exit 2", matcher, only=Rule("deny", rule))
    assert str(caught.value).endswith(f"write the matcher {right!r}")
    file = tmp_path / "settings.json"
    command: Mapping[str, str] = {"type": "command", "command": "exit 2", "if": rule}
    file.write_text(
        str(
            {"hooks": {"PreToolUse": [{"matcher": matcher, "hooks": [command]}]}}
        ).replace("'", '"')
    )
    with pytest.raises(SettingsError) as refused:
        read_settings(file)
    (problem,) = refused.value.problems
    assert problem.place == "hooks.PreToolUse[0].hooks[0].if"
    assert problem.text.endswith(f'write "matcher": "{right}"')


@pytest.mark.parametrize(
    ("matcher", "rule"),
    [
        ("*", "Read(x)"),
        ("Bash", "Bash(rm *)"),
        ("Bash|Edit", "Bash(rm *)"),
        ("Task", "Agent(x)"),
        ("SendMessage", "Agent(x)"),
        ("TaskWrite", "Bash(rm *)"),
        ("Grep", "Read"),
        ("Edit", "Read(.env)"),
        ("NotebookEdit", "Write(x)"),
        ("mcp__github__get", "mcp__github"),
        ("mcp__github__.*", "mcp__github__get"),
        ("^Ba", "Bash(rm *)"),
        ("deploy", "deploy(place=x)"),
        (".*", "deploy(place=x)"),
        ("Bash", "*"),
    ],
)
def test_a_hook_whose_rule_is_about_a_tool_of_its_matcher_is_none_of_these(
    matcher: str, rule: str
) -> None:
    assert Hook("exit 2", matcher, only=Rule("deny", rule)).only is not None


@pytest.mark.parametrize("is_there", [False, True])
async def test_it_is_told_once_when_the_first_agent_begins_that_has_no_such_tool(
    is_there: bool,
) -> None:
    def more(runtime: Runtime, owner: str) -> list[Tool]:
        return [Tool("Bsh", "x", (), act)] if is_there else []

    policy = AgentPolicy(
        permissions=Permissions(rules=[Rule("deny", "Bsh"), Rule("ask", "WebSearch")]),
        hooks=Hooks(pre_tool=[Hook("exit 2", "Bsh"), Hook("exit 2", "Bash")]),
        tools=more,
    )
    async with open_runtime("/tasks", env=fake_env(), agents=policy) as runtime:
        events = runtime.events.subscribe()
        for _ in range(3):
            await runtime.run(Agent(answers, "go"))
        told = [event.text for event in events.drain() if isinstance(event, Warned)]
    assert [("hook" in text, "Bash may be meant" in text) for text in told] == (
        [] if is_there else [(False, True), (True, True)]
    )


async def test_an_argument_that_no_tool_has_is_told_when_tools_or_an_agent_begin() -> (
    None
):
    permissions = Permissions(
        mode="bypass",
        rules=[Rule("deny", "Weather(citty=Oslo)"), Rule("ask", "TaskList(stat:x)")],
    )

    def more(runtime: Runtime, owner: str) -> list[Tool]:
        return [tool("Weather", "city"), *runtime.tools_for(owner)]

    policy = AgentPolicy(permissions=permissions, tools=more)
    async with open_runtime("/tasks", env=fake_env(), agents=policy) as runtime:
        events = runtime.events.subscribe()
        runtime.tools_for(None, permissions=permissions)
        (first,) = [it.text for it in events.drain() if isinstance(it, Warned)]
        await runtime.run(Agent(answers, "go"))
        (second,) = [it.text for it in events.drain() if isinstance(it, Warned)]
    assert "TaskList has no argument stat; it has " in first
    assert second.endswith("Weather has no argument citty; it has city")
