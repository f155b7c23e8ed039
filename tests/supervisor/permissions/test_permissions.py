"""Permissions: how rules match, what the modes allow, and who is asked when."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, get_args

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import ToolUse
from actors.testing import fake_env
from supervisor.permissions import (
    MODES,
    AskFailed,
    Mode,
    Permissions,
    Rule,
    ToolRequest,
    Verdict,
    read_mode,
)
from supervisor.permissions._command_patterns import is_simple_command
from supervisor.permissions._judging import Decision, weigh
from supervisor.permissions._modes import ModeName, recheck, resolve_mode
from supervisor.runtime import Approvals
from supervisor.tree import EventStream

HOME = "/home/me/project"


def request(
    tool: str = "Bash", mode: Mode = "default", cwd: str | None = HOME, **input: Any
) -> ToolRequest:
    return ToolRequest(
        agent_id="a1",
        agent_type="general-purpose",
        depth=0,
        mode=mode,
        tool_use=ToolUse("call1", tool, input),
        cwd=cwd,
    )


def decide(rules: Iterable[Rule], mode: Mode, asked: ToolRequest) -> Decision:
    """What rules and mode say of a call of which no hook has spoken."""
    return weigh(tuple(rules), attrs.evolve(asked, mode=mode), None)


def effect(asked: ToolRequest, *rules: Rule) -> str:
    return decide(rules, asked.mode, asked).effect


def allows(pattern: str, command: str) -> bool:
    return Rule("allow", f"Bash({pattern})").matches("Bash", {"command": command})


def denies(pattern: str, command: str) -> bool:
    return Rule("deny", f"Bash({pattern})").matches("Bash", {"command": command})


# ---- Patterns of shell commands -------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status*", "git status"),
        ("git status*", "git status --short"),
        ("git status*", "  git status -s\t"),
        ("git status", "git status"),
        ("git * --short", "git status --short"),
        ("ls *", "ls"),
        ("ls *", "ls -l"),
        ("ls*", "lsof"),
        ("grep *", "grep 'a;b|c$(d)' *.py"),
        ("grep *", 'grep "a;b|c>d & (e)" src'),
        ("git commit -m *", "git commit -m 'it''s \\ `done` $HOME'"),
        ("../run.sh *", "../run.sh now"),
        ("*", "rm -rf /"),
    ],
)
def test_a_simple_command_matches_its_pattern(pattern: str, command: str) -> None:
    """PM1."""
    assert allows(pattern, command)


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf x",
        "git status && rm -rf x",
        "git status || rm -rf x",
        "git status | sh",
        "git status & rm -rf x",
        "git status &",
        "git status\nrm -rf x",
        "git status\r\nrm -rf x",
        "git status $(rm -rf x)",
        'git status "$(rm -rf x)"',
        "git status `rm -rf x`",
        'git status "`rm -rf x`"',
        "git status ${x:=$(rm)}",
        "git status $'\\n' $x",
        "git status > ~/.bashrc",
        "git status >> x",
        "git status < x",
        "git status <(rm -rf x)",
        "git status 2>x",
        "git status \\\n; rm -rf x",
        "git status \\; x",
        "git status {a,b}",
        "git status ()",
        "git status # it's\nrm -rf x'",
        "git status #' \n rm -rf x'",
        "git status 'x\n' y",
        "git status 'x",
        'git status "x',
        "git status'",
        'git status "',
        "git status 'a' \"b' ; rm -rf x",
        "git status \0",
        "git statu",
        "x; git status",
        "LD_PRELOAD=./x.so git status",
        "git  status",
        "time git status",
        "if git status",
    ],
)
def test_no_more_than_the_pattern_passes_as_it(command: str) -> None:
    """PM1, N42."""
    assert not allows("git status*", command)
    asked = request(command=command)
    assert effect(asked, Rule("allow", "Bash(git status*)")) == "ask"


@pytest.mark.parametrize(
    "command",
    ["PATH=. ls", "./b*", "./bi?/x", "~/x", "./scripts/../x", "./scripts/./../../x"],
)
def test_a_program_is_called_by_a_plain_name(command: str) -> None:
    """PM1."""
    assert not is_simple_command(command)
    assert not allows("*", command)


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("rm *", "rm -rf x"),
        ("rm *", "rm"),
        ("rm *", "git status; rm -rf x"),
        ("rm *", "git status && rm x"),
        ("rm *", "true\nrm x"),
        ("rm *", "echo $(rm x)"),
        ("rm *", "echo `rm x`"),
        ("rm *", "(rm x)"),
        ("rm *", "{ rm x; }"),
        ("rm *", "A=1 B=2 rm x"),
        ("rm *", "/bin/rm x"),
        ("rm *", "r\\m x"),
        ("rm *", "'r'm x"),
        ("rm *", "rm  \t x"),
        ("rm *", "if true; then rm x; fi"),
        ("rm *", "! rm x"),
        ("rm *", "r\\\nm x"),
        ("bash *", 'bash -c "rm x"'),
        ("git push*", "cd x && git   push --force"),
        ("*secret*", "cat secrets.txt > x"),
    ],
)
def test_a_denial_looks_into_every_part_of_a_command(
    pattern: str, command: str
) -> None:
    """PM1."""
    assert denies(pattern, command)
    everything = Rule("allow", "Bash")
    asked = request(command=command, mode="bypass")
    assert effect(asked, everything, Rule("deny", f"Bash({pattern})")) == "deny"
    assert effect(asked, everything, Rule("ask", f"Bash({pattern})")) == "ask"


def test_a_denial_means_no_other_program() -> None:
    """PM1."""
    assert not denies("rm *", "grep rm x")
    assert not denies("rm *", "rmdir x")


def test_a_call_elsewhere_is_not_what_was_allowed() -> None:
    """PM1."""
    rule = Rule("allow", "Bash(./build.sh*)")

    def matches(cwd: object, home: str | None = HOME) -> bool:
        return rule.matches("Bash", {"command": "./build.sh", "cwd": cwd}, home)

    assert matches(None)
    assert matches(HOME)
    assert matches("sub")
    assert matches(f"{HOME}/sub/..")
    assert matches("sub", None)
    for cwd in ("/tmp", "..", f"{HOME}-evil", "sub/../..", "a\0b", 7):
        assert not matches(cwd)
    for cwd in ("..", "/tmp", "a/../.."):
        assert not matches(cwd, None)


SEPARATORS = [
    *(";", "&", "&&", "||", "|", "|&", "\n", "\r", ">", ">>", "<", "<<", "<<<"),
    *("$(", "`", "(", ")", "{", "}", "$", "\\", "#", "&>", ";;", "\0", "\x0b"),
]


@given(st.text(max_size=20), st.sampled_from(SEPARATORS), st.text(max_size=20))
def test_nothing_after_an_unquoted_separator_passes(
    middle: str, separator: str, rest: str
) -> None:
    """PM1."""
    quoted = "'" in middle or '"' in middle
    if not quoted:
        assert not allows("git status*", f"git status{middle}{separator}{rest}")
    assert not allows("git status*", f"git status {separator}{rest}")


@given(st.text(alphabet="ab -*./=", max_size=12), st.text("ab -./=", max_size=12))
def test_a_star_stands_for_any_characters_and_nothing_else_does(
    pattern: str, text: str
) -> None:
    """PM1."""
    if not pattern:
        return
    rule = Rule("allow", f"Other(x={pattern})")
    assert rule.matches("Other", {"x": text}) == matches_slowly(pattern, text)


def matches_slowly(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(matches_slowly(pattern[1:], text[n:]) for n in range(len(text) + 1))
    return text[:1] == pattern[0] and matches_slowly(pattern[1:], text[1:])


COUNT_COMMANDS = r"""
while IFS= read -r -d "" line; do
  ( PS4=+; set -x; eval "$line" ) 2>&1 >/dev/null
  printf "\0"
done
"""
PIECES = [
    *"ab =\t~!*?[]^%@-+.,:/\\'\"$`;&|<>(){}#\n\r",
    *("é", "\u00a0", "\u2028", "\x0b", "'x y'", '"z"', "$(", "&&", " # ", " if "),
]
LINES = st.lists(st.sampled_from(PIECES), max_size=9).map(lambda t: "echo" + "".join(t))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the judge")
@settings(max_examples=15, deadline=None)
@given(st.lists(LINES, min_size=100, max_size=200))
def test_bash_runs_one_command_of_what_counts_as_one(lines: list[str]) -> None:
    """PM1."""
    simple = [line for line in lines if is_simple_command(line)]
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", COUNT_COMMANDS],
        input="".join(f"{line}\0" for line in simple).encode(),
        capture_output=True,
        check=True,
        env={"PATH": "/nowhere", "LC_ALL": "C.UTF-8"},
        cwd="/",
    )
    *traces, rest = done.stdout.split(b"\0")
    assert rest == b""
    assert len(traces) == len(simple)
    for line, trace in zip(simple, traces, strict=True):
        # bash traces the eval, and below it each command.
        ran = [told for told in trace.split(b"\n") if told.startswith(b"++")]
        assert len(ran) == 1, (line, trace)


# ---- Patterns of other arguments ------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "matches"),
    [
        ("Edit(src/*)", "src/a.py", True),
        ("Edit(src/*)", f"{HOME}/src/a/b.py", True),
        ("Edit(src/*)", "./src/../src/a.py", True),
        ("Edit(src/*)", "src/../secret", False),
        ("Edit(src/*)", "src/../../x", False),
        ("Edit(src/*)", "/etc/src/a.py", False),
        ("Edit(//etc/*)", "../../../etc/passwd", True),
        ("Edit(*.py)", "src/a.py", True),
    ],
)
def test_a_path_is_resolved_before_it_is_matched(
    text: str, path: str, matches: bool
) -> None:
    """PM1."""
    for kind in ("allow", "deny"):
        rule = Rule(kind, text)
        assert rule.matches("Edit", {"file_path": path}, HOME) == (
            matches or (kind == "deny" and path.startswith("src/"))
        )


def test_other_tools_are_matched_by_the_argument_that_is_named() -> None:
    """PM1."""
    assert Rule("allow", "Deploy(to=test*)").matches("Deploy", {"to": "test-1"})
    assert not Rule("allow", "Deploy(to=test*)").matches("Deploy", {"to": "live"})
    assert not Rule("allow", "Deploy(to=test*)").matches("Deploy", {"from": "test"})
    assert Rule("allow", "Agent(Explore)").matches(
        "Agent", {"subagent_type": "Explore"}
    )
    assert Rule("allow", "mcp__db__*").matches("mcp__db__read", {})
    assert not Rule("allow", "mcp__db__*").matches("mcp__files__read", {})


def test_a_rule_for_several_tools_reads_commands_and_paths_as_such() -> None:
    """PM1."""
    rule = Rule("allow", "B*(command=git status*)")
    assert rule.matches("Bash", {"command": "git status -s"})
    assert not rule.matches("Bash", {"command": "git status; rm -rf x"})
    rule = Rule("allow", "*(file_path=src/*)")
    assert rule.matches("Edit", {"file_path": "src/a"}, HOME)
    assert not rule.matches("Edit", {"file_path": "src/../a"}, HOME)


def test_what_is_no_text_is_denied_rather_than_allowed() -> None:
    """PM1."""
    arguments = {"command": ["git", "status"], "to": 7}
    assert not Rule("allow", "Bash(*)").matches("Bash", arguments)
    assert Rule("deny", "Bash(rm*)").matches("Bash", arguments)
    assert not Rule("allow", "Deploy(to=*)").matches("Deploy", arguments)
    assert Rule("ask", "Deploy(to=x)").matches("Deploy", arguments)


@pytest.mark.parametrize(
    "text", ["", "Bash(", "Bash()", "Ba sh", "Deploy(live)", "Bash(x) y", "(x)"]
)
def test_a_rule_that_cannot_be_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Rule("allow", text)


def test_a_rule_needs_an_effect_and_a_text() -> None:
    with pytest.raises(ValueError, match=r"effect must be .* not 'maybe'"):
        Rule("maybe", "Bash")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="text must be a str, not 7"):
        Rule("allow", 7)  # type: ignore[arg-type]


# ---- Rules and modes ---------------------------------------------------------------

RULES = [Rule(kind, "Bash(git*)") for kind in ("allow", "deny", "ask")]


@pytest.mark.parametrize("mode", MODES)
def test_deny_beats_ask_beats_allow_beats_the_mode(mode: Mode) -> None:
    """PM1."""
    asked = request(command="git status", mode=mode)
    allow, deny, ask = RULES
    for several in itertools.permutations(RULES):
        assert effect(asked, *several) == "deny"
    nobody_asks = mode == "deny"
    assert effect(asked, allow, ask) == ("deny" if nobody_asks else "ask")
    assert effect(asked, ask, allow) == ("deny" if nobody_asks else "ask")
    assert effect(asked, allow) == "allow"
    assert effect(asked, deny) == "deny"


CALLS = {
    "look": request("TaskList"),
    "talk": request("SendMessage", to="a2", message="hello"),
    "read here": request("Read", file_path="src/a.py"),
    "search here": request("Grep", pattern="x"),
    "read there": request("Read", file_path="/etc/passwd"),
    "edit here": request("Edit", file_path=f"{HOME}/src/a.py"),
    "edit there": request("Write", file_path="../a.py"),
    "edit nowhere": request("Write"),
    "run": request(command="make"),
    "write to a task": request("TaskWrite", task_id="s1", text="rm -rf x"),
    "start an agent": request("Agent", prompt="do it"),
    "other": request("Unknown"),
}
TALK = {"look", "talk"}
READ = TALK | {"read here", "search here"}
ALLOWED: dict[Mode, set[str]] = {
    "deny": TALK,
    "plan": READ,
    "default": READ,
    "bubble": READ,
    "accept_edits": READ | {"edit here"},
    "bypass": set(CALLS),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_allows_by_itself_what_it_says(mode: Mode) -> None:
    """PM1, PM12."""
    effects = {name: decide([], mode, call).effect for name, call in CALLS.items()}
    assert {name for name, one in effects.items() if one == "allow"} == ALLOWED[mode]
    # Only where somebody may be asked is it open.
    rest = {one for one in effects.values() if one != "allow"}
    assert rest <= ({"deny"} if mode in ("deny", "plan") else {"ask"})


def test_nothing_is_edited_in_the_mode_plan_whatever_rules_allow() -> None:
    """PM1."""
    asked = request("Edit", mode="plan", file_path="a.py")
    assert effect(asked, Rule("allow", "Edit")) == "deny"
    assert effect(asked, Rule("ask", "Edit")) == "deny"


@pytest.mark.parametrize("parent", MODES)
@pytest.mark.parametrize("own", [None, *MODES])
@pytest.mark.parametrize("background", [False, True])
def test_a_child_is_allowed_no_more_than_its_parent(
    parent: Mode, own: Mode | None, background: bool
) -> None:
    """PM2, TR11."""
    for mode in (resolve_mode(own, parent), recheck(own, parent)):
        assert mode in (own, parent)
        for call in CALLS.values():
            asked = attrs.evolve(call, background=background)
            if decide([], mode, asked).effect == "allow":
                assert decide([], parent, asked).effect == "allow"
            if decide([], parent, asked).effect == "deny":
                assert decide([], mode, asked).effect == "deny"


MODE_NAMES = [*MODES, "acceptEdits", "bypassPermissions", "dontAsk", "manual"]


@settings(deadline=None)
@given(
    st.sampled_from(MODES),
    st.lists(st.none() | st.sampled_from(MODE_NAMES), min_size=3, max_size=6),
)
def test_nobody_in_a_chain_of_agents_may_do_more_than_anybody_above(
    most: Mode, wishes: list[str | None]
) -> None:
    """PM2: however many generations lie between, whatever each of them asks for."""
    chain: list[Mode] = [most]
    for wish in wishes:
        mode = resolve_mode(wish, chain[-1])
        assert mode in (chain[-1], wish and read_mode(wish))
        chain.append(mode)
    for call in CALLS.values():
        effects = [decide([], mode, call).effect for mode in chain]
        open_for = ["deny", "ask", "allow"]
        ranks = [open_for.index(one) for one in effects]
        assert ranks == sorted(ranks, reverse=True)


def test_what_was_taken_away_stays_taken_away() -> None:
    """PM2: three generations asking for deny, bypass and bypass."""
    child = resolve_mode("deny", resolve_mode(None, "bypass"))
    grandchild = resolve_mode("bypass", child)
    assert (child, grandchild, resolve_mode("bypass", grandchild)) == ("deny",) * 3


def test_a_child_inherits_what_its_parent_has_become() -> None:
    """PM2: the resolved mode goes down, not the one that was wished for."""
    top = resolve_mode("bypass", "accept_edits")
    child = resolve_mode(None, top)
    grandchild = resolve_mode("bypass", child)
    assert (top, child, grandchild) == ("accept_edits",) * 3
    assert resolve_mode("plan", "bypass") == "plan"
    assert resolve_mode("bubble", "default") == "bubble"
    assert resolve_mode("bubble", "plan") == "plan"


def test_a_resume_takes_no_mode_back_that_is_not_allowed_now() -> None:
    """TR11."""
    assert recheck("bypass", "default") == "default"
    assert recheck("plan", "bypass") == "plan"
    assert recheck(None, "accept_edits") == "accept_edits"
    assert recheck("yolo", "bypass") == "deny"
    assert recheck("", "bypass") == "deny"


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"permission_mode must be .* not 'yolo'"):
        resolve_mode("yolo", "bypass")
    with pytest.raises(ValueError, match=r"mode must be one of .* not 'yolo'"):
        Permissions(mode="yolo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="rules must be Rule objects, not 'Bash'"):
        Permissions(rules=["Bash"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"ask must be async functions .* not 'me'"):
        Permissions(ask=["me"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("acceptEdits", "accept_edits"),
        ("bypassPermissions", "bypass"),
        ("dontAsk", "deny"),
        ("manual", "default"),
    ],
)
def test_a_mode_of_claude_code_is_the_one_that_it_means(
    name: ModeName, mode: Mode
) -> None:
    """PM1: wherever a mode is taken."""
    assert read_mode(name) == mode
    assert Permissions(mode=name).mode == mode
    assert resolve_mode(name, "bypass") == mode
    assert recheck(name, "bypass") == mode


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("acceptedits", "write accept_edits"),
        ("AcceptEdits", "write accept_edits"),
        ("Plan", "write plan"),
        ("bypass-permissions", "write bypassPermissions"),
        ("delegate", "write default"),
        ("auto", "write default, accept_edits or bubble"),
        ("", "must be one of deny"),
        (3, "must be one of"),
    ],
)
def test_another_mode_is_refused_with_what_to_write(name: Any, right: str) -> None:
    """PM1."""
    right = right.replace("one of deny", "one of default")
    for take in (lambda: Permissions(mode=name), lambda: resolve_mode(name, "plan")):
        with pytest.raises(ValueError, match=re.escape(repr(name))) as caught:
            take()
        assert right in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            {"rules": Rule("allow", "Bash")},
            r"rules must be a list .* not Rule\(.*: write rules=\[Rule\(effect='allow'",
        ),
        (
            {"rules": ["Bash(ls *)"]},
            r"""rules must be .* write rules=\[Rule\("allow", "Bash\(ls \*\)"\)\]""",
        ),
        (
            {"rules": "Bash(ls *)"},
            r"""rules must be .* write rules=\[Rule\("allow", "Bash\(ls \*\)"\)\]""",
        ),
        ({"rules": None}, "rules must be a list of Rule objects, not None"),
        ({"ask": print}, r"ask must be a list .* not <built-in .* write ask=\["),
        ({"ask": [print]}, r"ask must be async functions .* not <built-in"),
    ],
)
def test_what_is_no_list_of_rules_or_functions_is_refused_with_what_to_write(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(TypeError, match=named):
        Permissions(**arguments)


# ---- Who is asked --------------------------------------------------------------------


def approvals() -> Approvals:
    return Approvals(fake_env().ids, EventStream())


def says(
    log: list[str], name: str, answer: object
) -> Callable[[ToolRequest], Awaitable[Any]]:
    async def ask(_: ToolRequest) -> object:
        await trio.lowlevel.checkpoint()
        log.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


async def test_rules_then_mode_then_hooks_then_no() -> None:
    """PM1."""
    log: list[str] = []
    yes = Verdict(True, "because")
    policy = Permissions(
        rules=[Rule("allow", "Bash(ls *)"), Rule("deny", "Bash(rm *)")],
        ask=[says(log, "one", None), says(log, "two", None)],
    )
    hooks = says(log, "hooks", None)

    async def judge(asked: ToolRequest, last: Any = hooks) -> Verdict:
        log.clear()
        return await policy.judge(asked, approvals(), last)

    assert (await judge(request(command="ls -l"))).allowed
    assert log == []
    refused = await judge(request(command="rm x", mode="bypass"))
    assert refused == Verdict(
        False, "Bash is not allowed: the rule Bash(rm *) denies it."
    )
    assert log == []
    assert (await judge(request(command="make", mode="bypass"))).allowed
    assert log == []
    refused = await judge(request(command="make"))
    assert refused.reason == (
        "Bash is not allowed: no rule allows it, and nobody has allowed it."
    )
    assert log == ["one", "two", "hooks"]
    assert await judge(request(command="make"), says(log, "hooks", yes)) == yes
    assert not (await policy.judge(request(command="make"), approvals())).allowed


@pytest.mark.parametrize("allowed", [False, True])
async def test_the_first_who_knows_decides(allowed: bool) -> None:
    """PM1."""
    log: list[str] = []
    answers = [None, Verdict(allowed, "I say so"), Verdict(not allowed, "I do not")]
    policy = Permissions(ask=[says(log, str(n), one) for n, one in enumerate(answers)])
    verdict = await policy.judge(request(command="make"), approvals())
    assert verdict.allowed is allowed
    assert "I say so" in verdict.reason
    assert log == ["0", "1"]


@pytest.mark.parametrize("answer", [RuntimeError("the terminal is gone"), True, "yes"])
async def test_a_responder_that_fails_fails_the_agent_by_name(answer: object) -> None:
    """PM8: the error names the call and the agent, and allows nothing."""
    policy = Permissions(ask=[says([], "me", answer)], mode="bubble")
    with pytest.raises(AskFailed) as caught:
        await policy.judge(request(command="make", mode="bubble"), approvals())
    assert "call1" in str(caught.value)
    assert "Bash" in str(caught.value)
    assert "a1" in str(caught.value)
    assert (caught.value.agent_id, caught.value.tool_use_id) == ("a1", "call1")


async def test_the_host_is_asked_last_and_only_in_the_mode_bubble(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PM1, PM3."""
    log: list[str] = []
    parked = approvals()
    parked.admit("a1", owner=None)
    policy = Permissions(ask=[says(log, "one", None)])
    hooks = says(log, "hooks", None)
    verdicts: list[Verdict] = []

    async def judge(mode: Mode, **input: Any) -> None:
        asked = request(mode=mode, **input)
        verdicts.append(await policy.judge(asked, parked, hooks))

    with trio.fail_after(10):
        for mode in set(MODES) - {"bubble", "bypass"}:
            await judge(mode, command="make")
        assert not any(verdict.allowed for verdict in verdicts)
        verdicts.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: judge("bubble", command="make"))
            await trio.testing.wait_all_tasks_blocked()
            assert log[-2:] == ["one", "hooks"]
            (approval,) = parked.pending()
            assert parked.answer(approval.id, True)
    assert verdicts == [Verdict(True, "the user has allowed it")]


def test_every_mode_has_its_place() -> None:
    """PM2."""
    assert get_args(Mode) == MODES
    assert set(ALLOWED) == set(MODES)


@pytest.mark.parametrize(
    "command",
    [
        "git status " + "abc" * 30_000,
        "git status " + "'a' " * 30_000,
        "git status " + "'" * 99_999,
        "git status " + "'" + "a" * 99_999,
        "a=b " * 30_000,
        ";" * 100_000,
        "if " * 30_000,
        "a\\\n" * 30_000,
    ],
)
def test_the_time_that_a_judgement_takes_goes_with_the_length(command: str) -> None:
    """P9: a judgement with backtracking, or with a square of the length, would take
    minutes here."""
    pattern = "Bash(*a*b*c*a*b*c*a*b*c*d)"
    rules = [Rule(kind, pattern) for kind in ("allow", "deny", "ask")]
    began = time.process_time()
    decide(rules, "default", request(command=command))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("own", [None, *MODES])
def test_no_child_of_plan_edits_by_a_rule(own: Mode | None) -> None:
    """PM2: in ``deny``, which allows less by itself, a rule could allow it."""
    mode = resolve_mode(own, "plan")
    edit = request("Edit", mode, file_path="a.py")
    assert effect(edit, Rule("allow", "Edit")) == "deny"
    mode = recheck(own or "what is that", "plan")
    assert effect(request("Edit", mode, file_path="a"), Rule("allow", "*")) == "deny"


@pytest.mark.parametrize(
    "pattern",
    [
        "/etc/**",
        "../*",
        "**/../../*",
        "{/etc,src}/*",
        "src/{a,~/b}",
        "~/.ssh/*",
        "@(/etc)/*",
        "C:/*",
        "a/..",
        5,
    ],
)
@pytest.mark.parametrize("mode", ["plan", "default", "accept_edits"])
def test_a_pattern_for_files_leads_to_no_other_directory(
    mode: Mode, pattern: Any
) -> None:
    """PM: reading is allowed in the agent's directory only, and a Glob can name
    another in its pattern."""
    assert effect(request("Glob", mode, pattern=pattern)) != "allow"
    assert effect(request("Glob", mode, path="src", pattern=pattern)) != "allow"
    assert effect(request("Glob", mode, pattern="src/**/*.{py,md}")) == "allow"


@pytest.mark.parametrize(
    ("tool", "input"),
    [
        ("Read", {"file_path": "~/.ssh/id"}),
        ("Read", {"file_path": "~root/x"}),
        ("Read", {"file_path": " /etc/passwd"}),
        ("Read", {"file_path": "file:///etc/passwd"}),
        ("Read", {"file_path": "a\\b"}),
        ("Read", {"file_path": "a/../../x"}),
        ("Read", {}),
        ("Read", {"path": "/etc/passwd"}),
        ("Read", {"file_path": "a", "paths": ["/etc/passwd"]}),
        ("Read", {"file_path": "a", "glob": "/etc/*"}),
        ("Read", {"file_path": ["/etc/passwd"]}),
        ("NotebookRead", {"file_path": "a"}),
        ("LS", {"dir": "/etc"}),
        ("Grep", {"pattern": "x", "paths": "/etc"}),
        ("Glob", {"pattern": "x", "cwd": "/etc"}),
        ("Glob", {"pattern": ".{.,}/*"}),
        ("Glob", {"pattern": "{.,}{.,}/*"}),
        ("Glob", {"pattern": ".{,x}./*"}),
        ("Glob", {"pattern": "a/.?/*"}),
        ("Glob", {"pattern": ".*/*"}),
        ("Glob", {"pattern": "a/[.]*/x"}),
        ("Glob", {"pattern": "@(.|x)./x"}),
        ("Glob", {"pattern": "$HOME/*"}),
        ("Glob", {"pattern": " /etc/*"}),
        ("Edit", {"file_path": "a", "path": "/etc/passwd"}),
        ("MultiEdit", {"edits": [{"file_path": "/etc/passwd"}]}),
        ("MultiEdit", {"file_path": "a", "files": ["/etc/passwd"]}),
    ],
)
@pytest.mark.parametrize("mode", ["plan", "default", "accept_edits"])
@pytest.mark.parametrize("cwd", [HOME, None])
def test_what_may_lead_elsewhere_is_not_at_home(
    mode: Mode, cwd: str | None, tool: str, input: dict[str, Any]
) -> None:
    """PM1: no form of a path is taken for one in the agent's directory by mistake."""
    asked = attrs.evolve(request(), cwd=cwd, tool_use=ToolUse("c", tool, input))
    decided = decide([], mode, asked)
    assert decided.effect != "allow"
    if "paths" in input:
        assert "nobody knows what its argument" in decided.reason


LINKS = {
    "link": "/etc",
    "inner": "src",
    "src/up": "/home/me",
}


@pytest.mark.parametrize(
    ("tool", "input"),
    [
        ("Glob", {"pattern": "{" + ",".join(f"a/{n}" for n in range(33)) + "}"}),
        ("Glob", {"path": "a/" * 1000, "pattern": "{a,b,c,d,e,f,g,h,i}"}),
        ("Glob", {"pattern": "{" + "," * 100_000}),
        ("Glob", {"pattern": "{a," * 20_000 + "}" * 20_000}),
        ("Grep", {"pattern": "x", "glob": "{a,b}" * 6}),
        ("Read", {"file_path": "x", "more": [f"q{n}" for n in range(20_000)]}),
        ("Read", {"file_path": "x", "more": ["a/" * 1000] * 9}),
        ("Edit", {"file_path": "a/" * 50_000}),
        ("Bash", {"command": "ls", "cwd": "a/" * 50_000}),
    ],
)
def test_no_call_has_more_looked_at_than_so_much(
    tool: str, input: dict[str, Any]
) -> None:
    """PM1: what is more is known by nobody: denied by each rule for a path, and
    allowed by none, nor for its place."""
    followed: list[str] = []

    def look(path: str) -> str:
        followed.append(path)
        return path

    asked = attrs.evolve(
        request(tool, "accept_edits"), tool_use=ToolUse("1", tool, input), follow=look
    )
    allow = [Rule("allow", text) for text in ("Read(**)", "Edit(**)", "Bash(ls *)")]
    began = time.process_time()
    assert effect(asked) == "ask"
    assert effect(asked, *allow) == "ask"
    assert time.process_time() - began < 1.0
    # Only the agent's own directory, and that of the rules.
    assert sum(map(len, followed)) < 100
    if tool != "Bash":
        kind = "Edit" if tool == "Edit" else "Read"
        assert effect(asked, Rule("deny", f"{kind}(secret)")) == "deny"


def test_the_home_directory_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """PM1: a rule is not read once and for all."""
    rule = Rule("deny", "Read(~/.ssh/**)")
    for home, other in (("/home/a", "/home/b"), ("/home/b", "/home/a")):
        monkeypatch.setenv("HOME", home)
        for path, denied in ((home, True), (other, False)):
            asked = request("Read", file_path=f"{path}/.ssh/key")
            assert (effect(asked, rule) == "deny") == denied


def test_as_much_as_anybody_writes_is_looked_at() -> None:
    """PM1: a rule that does not mean it does not deny it."""
    rule = Rule("deny", "Read(secret)")
    for pattern in (
        "**/*.{" + ",".join(f"t{n}" for n in range(31)) + "}",
        "{a,b}{c,d}{e,f}{g,h}/x",
    ):
        asked = attrs.evolve(request("Glob", pattern=pattern), follow=follow)
        assert effect(asked, rule) == "allow"
    asked = attrs.evolve(request("Glob", pattern="{a,secret}"), follow=follow)
    assert effect(asked, rule) == "deny"


@pytest.mark.parametrize("said", [None, "allow", "ask"])
async def test_where_a_path_leads_is_looked_at_once_for_a_judgement(
    said: Any,
) -> None:
    """PM1: also if hooks have said something of the call."""
    followed: list[str] = []

    def look(path: str) -> str:
        followed.append(path)
        return path

    asked = attrs.evolve(request("Read", file_path="a/../b"), follow=look)
    rules = [Rule("deny", "Read(.env)"), Rule("allow", "Read(src/**)")]
    decision = None if said is None else Decision(said, "so it is")
    await Permissions(rules=rules).judge(asked, approvals(), said=decision)
    assert followed
    assert len(followed) == len({*followed})


def follow(path: str) -> str | None:
    """Follow the links of a small world, and lead nowhere from a loop."""
    assert path.startswith("/")
    done: list[str] = []
    for name in path.split("/"):
        if name == "..":
            done = done[:-1]
        elif name not in ("", "."):
            done.append(name)
        if name == "loop":
            return None
        whole = "/" + "/".join(done)
        for link, target in LINKS.items():
            if whole == f"{HOME}/{link}":
                target = target if target.startswith("/") else f"{HOME}/{target}"
                done = [part for part in target.split("/") if part]
    return "/" + "/".join(done)


@pytest.mark.parametrize(
    ("path", "at_home"),
    [
        ("src/a", True),
        (f"{HOME}/src/a", True),
        ("inner/a", True),
        ("link", False),
        ("link/passwd", False),
        (f"{HOME}/link/passwd", False),
        ("src/up/project/a", True),
        ("src/up/.ssh/id", False),
        # By name it is the agent's, where it leads it is not.
        ("link/../a", False),
        ("src/up/../../etc/x", False),
        ("loop/a", False),
    ],
)
def test_a_path_is_at_home_if_it_also_leads_there(path: str, at_home: bool) -> None:
    """PM1, PM12."""
    pairs: list[tuple[Mode, str]] = [("plan", "Read"), ("accept_edits", "Edit")]
    for mode, tool in pairs:
        asked = attrs.evolve(request(tool, mode, file_path=path), follow=follow)
        assert (decide([], asked.mode, asked).effect == "allow") == at_home
        # Nor by a rule for the directory.
        rule = Rule("allow", f"{tool}(/**)")
        assert (decide([rule], "default", asked).effect == "allow") == at_home


def test_a_directory_that_is_a_link_is_home_under_both_of_its_names() -> None:
    """PM12."""
    cwd = f"{HOME}/inner"
    for path in ("a", f"{cwd}/a", f"{HOME}/src/a"):
        asked = request("Edit", "accept_edits", cwd, file_path=path)
        assert effect(attrs.evolve(asked, follow=follow)) == "allow"
    asked = request("Edit", "accept_edits", cwd, file_path=f"{HOME}/a")
    assert effect(attrs.evolve(asked, follow=follow)) == "ask"


@pytest.mark.parametrize(
    "path", ["run/x", f"{HOME}/run/a/b", "src/../run/x", "src/up/project/run/x"]
)
def test_only_bypass_edits_below_the_directory_of_the_runtime(path: str) -> None:
    """PM1: there lies what agents are allowed."""
    for mode in MODES:
        asked = request("Edit", mode, file_path=path)
        asked = attrs.evolve(asked, runtime_directory=f"{HOME}/run", follow=follow)
        assert (effect(asked) == "allow") == (mode == "bypass")
        allows = effect(asked, Rule("allow", "Edit")) == "allow"
        assert allows == (mode != "plan")
        near = attrs.evolve(asked, runtime_directory=f"{HOME}/ru")
        assert (effect(near) == "allow") == (mode in ("accept_edits", "bypass"))


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".claude/settings.json",
        f"{HOME}/.vscode/tasks.json",
        ".mcp.json",
        "a/../.GIT/config",
        "sub/.bashrc",
        "src/up/project/.git/x",
    ],
)
def test_what_is_protected_is_edited_in_bypass_only_without_being_asked(
    path: str,
) -> None:
    """PM2: neither a mode nor a rule that allows speaks of it."""
    for mode in MODES:
        asked = attrs.evolve(request("Edit", mode, file_path=path), follow=follow)
        assert (effect(asked) == "allow") == (mode == "bypass")
        for rule in (Rule("allow", "Edit"), Rule("allow", "Edit(**)")):
            assert (effect(asked, rule) == "allow") == (mode == "bypass")
        everything = effect(asked, Rule("allow", "*")) == "allow"
        assert everything == (mode != "plan")
        reads = request("Read", mode, file_path=path)
        assert effect(reads) == ("deny" if mode == "deny" else "allow")


def test_an_agent_that_lives_in_a_protected_directory_edits_in_it() -> None:
    """PM2: in a worktree below ``.claude``, but not what is protected in that."""
    home = f"{HOME}/.claude/worktrees/a"
    asked = request("Edit", "accept_edits", home, file_path=f"{home}/x.py")
    assert effect(asked) == "allow"
    asked = request("Edit", "accept_edits", home, file_path=".git/config")
    assert effect(asked) == "ask"


@pytest.mark.parametrize("text", ["Bash(ls|wc)", "Bash(echo a, b)"])
def test_a_rule_that_only_allows_can_be_compared_with_any_call(text: str) -> None:
    """PM1: as a denial it would have been refused."""
    asked = request("Bash", "default", command="make")
    assert effect(asked, Rule("allow", text)) == "ask"


def test_a_call_is_judged_with_what_it_leaves_out() -> None:
    """PM1."""

    def fill(input: Any) -> dict[str, Any]:
        return {"subagent_type": "general-purpose"} | input

    asked = attrs.evolve(request("Agent", "bypass", prompt="x"), fill=fill)
    assert effect(asked, Rule("deny", "Agent(general-purpose)")) == "deny"
    assert effect(asked, Rule("deny", "Task(general-purpose)")) == "deny"
    assert effect(asked, Rule("deny", "Agent(Explore)")) == "allow"


def test_a_rule_that_allows_less_than_one_may_think_says_so() -> None:
    """PM1: what is refused is never so in silence."""
    asked = request(command="git status && rm x")
    decided = decide([Rule("allow", "Bash(git *)")], "default", asked)
    assert decided.reason == (
        "no rule allows it (Bash(git *) allows less than this: see Rule)"
    )
    asked = request("Edit", file_path="/etc/x")
    decided = decide([Rule("allow", "Edit(/etc/**)")], "default", asked)
    assert "Edit(/etc/**) allows less" in decided.reason


def test_a_command_that_is_too_long_is_read_by_no_rule() -> None:
    """It would hold up everybody else, and no Linux runs it."""
    command = "git status; " * 100_000
    began = time.process_time()
    assert not allows("*", command)
    assert not allows("*", "a" * len(command))
    assert denies("rm *", command)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_hook_says_weighs_as_a_rule_about_that_call(mode: Mode) -> None:
    """PM1: deny beats ask beats allow, whoever says it; every pair, in every mode."""

    class Nobody:
        async def wait(self, request: ToolRequest) -> Verdict:
            await trio.lowlevel.checkpoint()
            return Verdict(False, "the person says no")

    nobody: Any = Nobody()
    asked = request(mode=mode, command="make")
    for size in range(3):
        for effects in itertools.product(("allow", "ask", "deny"), repeat=size):
            rules = [Rule(effect, "Bash(make)") for effect in effects]
            for said in ("allow", "ask", "deny", None):
                more = [] if said is None else [Rule(said, "Bash(make)")]
                wanted = decide([*rules, *more], mode, asked)
                word = None if said is None else Decision(said, "the hook says so")
                verdict = await Permissions(rules=rules, mode=mode).judge(
                    asked,
                    nobody,
                    said=word,
                )
                assert verdict.allowed == (wanted.effect == "allow")
                if said == "deny":
                    assert "the hook says so" in verdict.reason
