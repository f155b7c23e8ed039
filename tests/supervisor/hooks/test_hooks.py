"""Hooks: commands and functions round the life of an agent."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Run,
    ToolUse,
    UserMessage,
)
from actors.env import Env, real_env
from actors.testing import Program, fake_env
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.hooks._calls import END_BUDGET, STOP_BLOCKS, AgentHooks, HookFacts
from supervisor.hooks._object import TEXT_LIMIT
from supervisor.permissions import ToolRequest, Verdict
from supervisor.runtime import Limits, Runtime, Warned, open_runtime

real = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

Told = Mapping[str, Any]


class Warnings(list[str]):
    """What people were warned of."""


@asynccontextmanager
async def open_env() -> AsyncGenerator[Env, None]:
    env = real_env()
    with trio.fail_after(60):
        try:
            yield env
        finally:
            await env.processes.aclose()


def of(
    hooks: Hooks,
    env: Env | None = None,
    warnings: Warnings | None = None,
    *,
    tasks: list[dict[str, Any]] | None = None,
    **facts: Any,
) -> AgentHooks:
    given: dict[str, Any] = {"agent_id": "a1", "agent_type": "Explore"} | facts
    return AgentHooks(
        hooks,
        env or fake_env(),
        HookFacts(**given),
        on_warning=Warnings().append if warnings is None else warnings.append,
        background_tasks=lambda: tasks or [],
    )


def starts(*runs: Any, **more: Any) -> Hooks:
    return Hooks(start=[Hook(run) for run in runs], **more)


def stops(*runs: Any, **more: Any) -> Hooks:
    return Hooks(stop=[Hook(run) for run in runs], **more)


def asks(*runs: Any, **more: Any) -> Hooks:
    return Hooks(permission_request=[Hook(run) for run in runs], **more)


def request(tool: str = "Bash", **input: Any) -> ToolRequest:
    return ToolRequest(
        agent_id="a1",
        agent_type="Explore",
        depth=0,
        mode="default",
        tool_use=ToolUse("call1", tool, input),
    )


class Recorder:
    """A hook that remembers what it was told, and answers."""

    def __init__(self, *answers: object) -> None:
        self.told: list[Told] = []
        self._answers = list(answers)

    async def __call__(self, told: Told) -> Any:
        await trio.lowlevel.checkpoint()
        self.told.append(told)
        return self._answers.pop(0) if self._answers else None

    @property
    def seen(self) -> list[str]:
        return [
            f"{it['hook_event_name']} {it.get('status', '')}".strip()
            for it in self.told
        ]


# ---- Exit codes -----------------------------------------------------------------


@real
@pytest.mark.parametrize(
    ("command", "text", "warning"),
    [
        ("echo hello; echo no >&2", "hello", None),
        ("true", None, None),
        ("echo no; echo blocked >&2; exit 2", None, None),
        ("echo no; echo why >&2; exit 1", None, "exit code 1: why"),
        ("exit 77", None, "exit code 77"),
        ("kill -9 $$", None, "ended by signal 9"),
        ("/no/such/program", None, "exit code 127"),
        ("if", None, None),
    ],
)
async def test_a_start_hook_speaks_to_the_agent_or_to_people(
    command: str, text: str | None, warning: str | None
) -> None:
    """HK1: 0 to the agent, 2 is ignored, everything else to the people."""
    warnings = Warnings()
    async with open_env() as env, of(starts(command), env, warnings) as hooks:
        assert await hooks.on_start() == text
    assert len(warnings) == (warning is not None)
    if warning is not None:
        assert "SubagentStart" in warnings[0]
        assert command in warnings[0]
        assert warning in warnings[0]


@real
@pytest.mark.parametrize(
    ("command", "reason", "warning"),
    [
        ("echo no; echo no >&2", None, None),
        ("echo no; echo 'not yet' >&2; exit 2", "not yet", None),
        ("exit 2", "A stop hook has found that it is not done.", None),
        ("echo no; echo why >&2; exit 1", None, "exit code 1: why"),
    ],
)
async def test_a_stop_hook_lets_it_end_or_not(
    command: str, reason: str | None, warning: str | None
) -> None:
    """HK2: 0 shows nothing, 2 goes on with stderr, everything else to the people."""
    warnings = Warnings()
    async with open_env() as env:
        hooks = of(stops(command), env, warnings)
        assert await hooks.on_stop("the answer") == reason
    assert len(warnings) == (warning is not None)
    if warning is not None:
        assert warning in warnings[0]


@real
@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("true", None),
        ("echo sure", None),
        ("""echo '{"decision": "allow"}'""", Verdict(True, "a hook allows it")),
        (
            """echo '{"decision": "allow", "reason": "fine"}'""",
            Verdict(True, "fine"),
        ),
        ("""echo '{"decision": "deny"}'""", Verdict(False, "a hook denies it")),
        ("echo 'not here' >&2; exit 2", Verdict(False, "not here")),
        (
            """echo '{"decision": "allow"}'; exit 2""",
            Verdict(False, "a hook denies it"),
        ),
        ("""echo '{"decision": "allow"}'; exit 1""", None),
        ("""echo '{"decision": "perhaps"}'""", None),
        ("""echo '{"decision": '""", None),
        ("""echo '[{"decision": "allow"}]'""", None),
        # What it puts between quotes holds quotes: it wanted to deny.
        (
            """echo '{"decision": "deny", "reason": "x", "decision": "allow"}'""",
            Verdict(False, "a hook denies it"),
        ),
        ("""echo '{"decision": "allow", "x": "y", "decision": "allow"}'""", None),
        ("""echo '{"decision": "allow"}'; kill -9 $$""", None),
    ],
)
async def test_a_tool_hook_decides_only_in_so_many_words(
    command: str, verdict: Verdict | None
) -> None:
    """PM1: what fails, or speaks unclearly, allows nothing."""
    async with open_env() as env:
        assert await of(asks(command), env).on_permission(request()) == verdict


# ---- What hooks are told -------------------------------------------------------


@real
async def test_a_command_reads_the_facts_as_json(tmp_path: Path) -> None:
    """HK6, HK7, HK9."""
    tasks = [{"id": "s1", "type": "local_bash", "description": "a server"}]
    base = {
        "agent_id": "a1",
        "agent_type": "Explore",
        "session_id": "main",
        "session": "main",
        "transcript_path": "/t/agent-a1.jsonl",
        "permission_mode": "default",
        "mode": "default",
        "cwd": str(tmp_path),
    }
    everything = Hooks(
        start=[Hook("cat")],
        stop=[Hook("pwd >&2; cat >&2; exit 2")],
        permission_request=[Hook("cat >&2; exit 2")],
    )
    async with open_env() as env:
        hooks = of(
            everything,
            env,
            tasks=tasks,
            session="main",
            cwd=str(tmp_path),
            transcript="/t/agent-a1.jsonl",
        )
        async with hooks:
            text = await hooks.on_start()
            assert text is not None
            assert json.loads(text) == base | {"hook_event_name": "SubagentStart"}
            verdict = await hooks.on_permission(request(command="make"))
            assert verdict is not None
            assert json.loads(verdict.reason) == base | {
                "hook_event_name": "PermissionRequest",
                "tool_name": "Bash",
                "tool_input": {"command": "make"},
                "tool_use_id": "call1",
            }
            reason = await hooks.on_stop("it is done é \ud800")
            assert reason is not None
            directory, told = reason.split("\n", 1)
            assert directory == str(tmp_path)
            assert json.loads(told) == base | {
                "hook_event_name": "SubagentStop",
                "stop_hook_active": False,
                "agent_transcript_path": "/t/agent-a1.jsonl",
                "last_assistant_message": "it is done é \ud800",
                "background_tasks": tasks,
                "session_crons": [],
                "status": "running",
            }


@real
async def test_additional_context_is_taken_out_of_json() -> None:
    """HK6."""
    told = {"hookSpecificOutput": {"additionalContext": "read <this> first"}}
    hooks = starts(f"echo {shlex.quote(json.dumps(told))}", "echo '{\"other\": 1}'")
    async with open_env() as env:
        text = await of(hooks, env).on_start()
    assert text == 'read <this> first\n\n{"other": 1}'


async def test_hooks_run_together_and_speak_in_their_order() -> None:
    """HK1, HK2."""
    second_has_begun, first_has_ended = trio.Event(), trio.Event()

    async def first(told: Told) -> str:
        await second_has_begun.wait()
        first_has_ended.set()
        return "first"

    async def second(told: Told) -> str:
        second_has_begun.set()
        await first_has_ended.wait()
        return "second"

    with trio.fail_after(10):
        assert await of(starts(first, second)).on_start() == "first\n\nsecond"
    second_has_begun, first_has_ended = trio.Event(), trio.Event()
    with trio.fail_after(10):
        assert await of(stops(first, second)).on_stop("x") == "first\n\nsecond"


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([None, None], None),
        ([Verdict(True, "a"), None], Verdict(True, "a")),
        ([None, Verdict(True, "b")], Verdict(True, "b")),
        ([Verdict(True, "a"), Verdict(False, "b")], Verdict(False, "b")),
        ([Verdict(False, "a"), Verdict(False, "b")], Verdict(False, "a")),
    ],
)
async def test_one_hook_that_denies_is_enough(
    answers: list[Verdict | None], verdict: Verdict | None
) -> None:
    """PM1."""
    hooks = of(asks(*[Recorder(answer) for answer in answers]))
    assert await hooks.on_permission(request()) == verdict


# ---- Matchers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matcher", "names"),
    [
        ("*", ["Explore", "general-purpose", ""]),
        ("", ["Explore", "general-purpose", ""]),
        ("Explore", ["Explore"]),
        ("general-purpose", ["general-purpose"]),
        ("Explore|Plan", ["Explore", "Plan"]),
        ("Expl.*", ["Explore", "Explorer"]),
        ("(Exp|P)l.+", ["Explore", "Plan", "Explorer"]),
    ],
)
def test_a_matcher_is_names_or_a_pattern(matcher: str, names: list[str]) -> None:
    """HK1."""
    types = ["Explore", "Explorer", "Plan", "general-purpose", "x-general-purpose", ""]
    hook = Hook("true", matcher)
    matching = [name for name in types if hook.matches(name)]
    assert matching == [
        name for name in types if name in names or (matcher in ("", "*"))
    ]


async def test_hooks_are_chosen_by_the_type_of_the_agent_and_by_the_tool() -> None:
    """HK1."""
    ours, theirs = Recorder("ours"), Recorder("theirs")
    chosen = [Hook(ours, "Explore"), Hook(theirs, "Plan")]
    assert await of(Hooks(start=chosen)).on_start() == "ours"
    assert (len(ours.told), len(theirs.told)) == (1, 0)
    tool = Recorder(Verdict(True, "x"))
    hooks = of(Hooks(permission_request=[Hook(tool, "Bash|Edit")]))
    assert await hooks.on_permission(request("Bash")) == Verdict(True, "x")
    assert await hooks.on_permission(request("Read")) is None


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: Hook(7), TypeError, "run must be .* not 7"),  # type: ignore[arg-type]
        (lambda: Hook(" "), ValueError, "run must be a command, not ' '"),
        (lambda: Hook("a\0"), ValueError, "run must be a command"),
        (lambda: Hook("x", "("), ValueError, r"matcher must be .* not '\('"),
        (lambda: Hook("x", None), TypeError, "matcher must be a str, not None"),  # type: ignore[arg-type]
        (lambda: Hook("x", timeout=0), ValueError, "timeout must be .* not 0"),
        (lambda: Hook("x", timeout=True), TypeError, "timeout must be .* not True"),
        (lambda: Hooks(timeout=float("inf")), ValueError, "timeout must be .* not inf"),
        (lambda: Hooks(start=["x"]), TypeError, "start must be Hook .* not 'x'"),  # type: ignore[list-item]
        (
            lambda: Hooks(stop=Hook("x")),  # type: ignore[arg-type]
            TypeError,
            r"stop must be a list .* not Hook\(.*: write stop=\[Hook\(run='x'",
        ),
        (
            lambda: Hooks(permission_request="make"),  # type: ignore[arg-type]
            TypeError,
            r"permission_request must be a list .* write permission_request=\[Hook\('make'\)\]",
        ),
        (lambda: Hooks(start=5), TypeError, "start must be a list .* not 5"),  # type: ignore[arg-type]
        (
            lambda: Hook(cast("Any", print)),
            TypeError,
            r"run must be .*async def.* not <built-in",
        ),
        (lambda: Hook(lambda told: None), TypeError, r"run must be .*async def"),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_hook_that_cannot_be_is_refused(
    make: Callable[[], object], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        make()


# ---- Going on ----------------------------------------------------------------------


async def test_a_stop_hook_makes_it_go_on_so_many_times_and_no_more() -> None:
    """HK3."""
    warnings = Warnings()
    hook = Recorder(*[f"reason {number}" for number in range(STOP_BLOCKS + 1)])
    async with of(stops(hook), warnings=warnings) as hooks:
        await hooks.on_start()
        for number in range(STOP_BLOCKS):
            assert await hooks.on_stop("x") == f"reason {number}"
        assert warnings == []
        assert await hooks.on_stop("x") is None
    assert len(warnings) == 1
    assert f"{STOP_BLOCKS} times in a row" in warnings[0]
    assert f"reason {STOP_BLOCKS}" in warnings[0]
    active = [told["stop_hook_active"] for told in hook.told]
    assert active == [False] + [True] * STOP_BLOCKS


async def test_the_count_begins_anew_when_a_hook_has_let_it_end() -> None:
    """HK3."""
    hook = Recorder("more", None, "more")
    hooks = of(stops(hook))
    assert await hooks.on_stop("x") == "more"
    assert await hooks.on_stop("x") is None
    hooks.went_on()
    assert await hooks.on_stop("x") == "more"
    assert [told["stop_hook_active"] for told in hook.told] == [False, True, False]


# ---- Hooks that fail ----------------------------------------------------------------


async def raises(told: Told) -> None:
    await trio.lowlevel.checkpoint()
    raise RuntimeError("out of order")


async def returns_odd(told: Told) -> object:
    await trio.lowlevel.checkpoint()
    return 7


@pytest.mark.parametrize(
    ("broken", "what"),
    [(raises, "RuntimeError: out of order"), (returns_odd, "it returned 7")],
)
async def test_a_broken_hook_stops_nothing_and_allows_nothing(
    broken: Callable[[Told], Awaitable[Any]], what: str
) -> None:
    """HK4."""
    warnings = Warnings()
    good = Recorder("context", "reason")
    hooks = of(
        Hooks(
            start=[Hook(broken), Hook(good)],
            stop=[Hook(broken), Hook(good)],
            permission_request=[Hook(broken)],
        ),
        warnings=warnings,
    )
    async with hooks:
        assert await hooks.on_start() == "context"
        assert await hooks.on_stop("x") == "reason"
        assert await hooks.on_permission(request()) is None
    # One for each call; the last is that of the end.
    assert len(warnings) == 4
    assert all(what in warning and broken.__name__ in warning for warning in warnings)


@real
async def test_a_command_that_cannot_be_started_stops_nothing() -> None:
    """HK4."""
    warnings = Warnings()
    async with open_env() as env:
        hooks = of(
            Hooks(start=[Hook("true")], stop=[Hook("true")]),
            env,
            warnings,
            cwd="/no/such/directory",
        )
        async with hooks:
            assert await hooks.on_start() is None
            assert await hooks.on_stop("x") is None
    assert len(warnings) == 2
    assert all("/no/such/directory" in warning for warning in warnings)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("others", [0, 1])
async def test_an_interrupt_in_a_hook_is_no_failure_of_it(
    error: type[BaseException], others: int
) -> None:
    """HK5: it comes out as it is, and in no group."""

    async def interrupted(told: Told) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    async def waits(told: Told) -> None:
        await trio.sleep_forever()

    with trio.fail_after(10):
        with pytest.raises(error):
            await of(starts(interrupted, *[waits] * others)).on_start()


async def test_each_hook_has_its_own_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """HK4."""
    warnings = Warnings()
    began = trio.current_time()

    async def slow(told: Told) -> str:
        await trio.sleep(8)
        return "slow"

    hooks = Hooks(
        start=[Hook(slow, timeout=2), Hook(slow), Hook(slow, timeout=9)], timeout=5
    )
    assert await of(hooks, warnings=warnings).on_start() == "slow"
    assert trio.current_time() - began == pytest.approx(8)
    assert [w.rpartition(": ")[2] for w in warnings] == [
        "it took longer than 2 s; the agent begins without it",
        "it took longer than 5 s; the agent begins without it",
    ]


@real
@pytest.mark.parametrize(
    "run",
    [
        "/no/such/guard",
        "echo no >&2; exit 1",
        "kill -9 $$",
        """echo '{"decision": "perhaps"}'""",
        """echo '{"decision": "approve", "decision": "ask"}'""",
    ],
)
async def test_the_warning_of_a_guard_that_has_failed_says_what_follows(
    run: str,
) -> None:
    """HK4: or who reads it thinks that the call was held up."""
    with trio.fail_after(30):
        for event, hooks, text in [
            ("pre_tool", Hooks(pre_tool=[Hook(run)]), "the call goes on without it"),
            (
                "permission_request",
                Hooks(permission_request=[Hook(run)]),
                "the call is judged without it",
            ),
            ("stop", Hooks(stop=[Hook(run)]), "the agent may end without it"),
        ]:
            warnings = Warnings()
            async with open_env() as env:
                called = of(hooks, env, warnings)
                if event == "pre_tool":
                    assert (await called.before_tool(request())).decision is None
                elif event == "permission_request":
                    assert await called.on_permission(request()) is None
                else:
                    assert await called.on_stop("done") is None
            assert [w.endswith(f"; {text}") for w in warnings] == [True]


@real
async def test_the_warning_of_a_denial_that_is_not_understood_says_that_it_counts() -> (
    None
):
    """HK4: under an unknown key, by a word that is none, and beside a wrong code."""
    for said, told in [
        ('{"result": "deny"}', "it is taken for a denial"),
        ('{"decision": "DENY"}', "it is taken for a denial"),
        ('{"decision": "deny"', "it is taken for a denial"),
        ('{"decision": "deny"}\'; exit 1 # ', "its denial counts"),
    ]:
        warnings = Warnings()
        with trio.fail_after(30):
            async with open_env() as env:
                hooks = of(Hooks(pre_tool=[Hook(f"echo '{said}'")]), env, warnings)
                decision = (await hooks.before_tool(request())).decision
        assert decision is not None
        assert decision.effect == "deny"
        assert [told in w for w in warnings] == [True]
        assert "without it" not in warnings[0]


async def test_a_hook_that_gave_something_up_itself_has_not_taken_too_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """HK4: what it raises is told as that."""
    warnings = Warnings()

    async def gives_up(told: Told) -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    assert await of(starts(gives_up), warnings=warnings).on_start() is None
    (warning,) = warnings
    assert warning.endswith(": TooSlowError; the agent begins without it")


# ---- The pair -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "completed"),
        (ValueError("x"), "failed"),
        (KeyboardInterrupt(), "killed"),
        (SystemExit(), "killed"),
    ],
)
@pytest.mark.parametrize("checkpoints", [0, 1])
async def test_every_start_has_its_stop(
    error: BaseException | None, status: str, checkpoints: int
) -> None:
    """HK5."""
    hook = Recorder()
    with nullcontext() if error is None else pytest.raises(type(error)):
        async with of(Hooks(start=[Hook(hook)], stop=[Hook(hook)])) as hooks:
            await hooks.on_start()
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            if error is not None:
                raise error
    assert hook.seen == ["SubagentStart", f"SubagentStop {status}"]


@pytest.mark.parametrize("where", ["in a start hook", "in the run", "in a stop hook"])
async def test_a_stop_of_the_agent_has_its_stop_hook(where: str) -> None:
    """HK5: it runs though everything round it is cancelled."""
    seen = Recorder()
    reached = trio.Event()

    async def hangs(told: Told) -> None:
        event = told["hook_event_name"]
        if (event == "SubagentStart" and where == "in a start hook") or (
            told.get("status") == "running" and where == "in a stop hook"
        ):
            reached.set()
            await trio.sleep_forever()

    everything = Hooks(start=[Hook(seen), Hook(hangs)], stop=[Hook(seen), Hook(hangs)])

    async def agent() -> None:
        async with of(everything) as hooks:
            await hooks.on_start()
            if where == "in a stop hook":
                await hooks.on_stop("x")
            reached.set()
            await trio.sleep_forever()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent)
            await reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert seen.seen[0] == "SubagentStart"
    assert seen.seen[-1] == "SubagentStop killed"
    assert seen.seen.count("SubagentStop killed") == 1


async def test_there_is_no_stop_without_a_start() -> None:
    """HK5."""
    hook = Recorder()
    async with of(stops(hook)) as hooks:
        hooks.went_on()
    assert hook.told == []


async def test_a_stop_that_let_it_end_is_the_stop() -> None:
    """HK5."""
    hook = Recorder("more", None)
    async with of(stops(hook)) as hooks:
        await hooks.on_start()
        assert await hooks.on_stop("x") == "more"
        assert await hooks.on_stop("y") is None
    assert hook.seen == ["SubagentStop running"] * 2
    assert hook.told[-1]["last_assistant_message"] == "y"


@pytest.mark.parametrize("how", ["a message", "a tool"])
async def test_who_goes_on_after_a_stop_has_another(how: str) -> None:
    """HK5."""
    hook = Recorder()
    with pytest.raises(ValueError, match="later"):
        async with of(stops(hook)) as hooks:
            await hooks.on_start()
            assert await hooks.on_stop("x") is None
            if how == "a message":
                hooks.went_on()
            else:
                await hooks.before_tool(request())
            raise ValueError("later")
    assert hook.seen == ["SubagentStop running", "SubagentStop failed"]


async def test_on_a_stop_path_hooks_cannot_hold_it_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """HK5: and what they say makes it go on no more."""
    warnings = Warnings()
    began = trio.current_time()

    async def hangs(told: Told) -> None:
        await trio.sleep_forever()

    hooks = stops(hangs, Recorder("go on"), timeout=1000)
    with trio.move_on_after(1):
        async with of(hooks, warnings=warnings) as pair:
            await pair.on_start()
            await trio.sleep_forever()
    assert trio.current_time() - began == pytest.approx(1 + END_BUDGET)
    assert len(warnings) <= 1


async def test_hooks_work_on_an_env_in_memory() -> None:
    """P11."""

    async def plays(program: Program) -> int:
        told = json.loads(await program.read_line() or "null")
        await program.print_error(f"not yet, {told['agent_id']}")
        return 2

    env = fake_env({"check": plays})
    assert await of(stops("check"), env).on_stop("x") == "not yet, a1"


# ---- Real processes --------------------------------------------------------------------


def is_there(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False


def read_line(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def read_pid(file: Path) -> int:
    # Another program writes it: nothing here can be told of that.
    with trio.fail_after(30):
        while not (line := read_line(file)).endswith("\n"):
            await trio.sleep(0.01)
    return int(line)


STUBBORN = "trap '' TERM INT HUP; echo $$ > PID; while :; do sleep 0.05; done"
ORPHAN = "env -i setsid bash -c 'echo $$ > PID; exec sleep 1000' & wait"
LOUD = "echo $$ > PID; exec cat /dev/zero"


@real
@pytest.mark.parametrize(
    ("command", "how"),
    [
        (STUBBORN, "timeout"),
        (STUBBORN, "cancel"),
        (ORPHAN, "timeout"),
        (ORPHAN, "cancel"),
        (LOUD, "cancel"),
    ],
)
async def test_nothing_of_a_hook_outlives_its_time_or_its_agent(
    tmp_path: Path, command: str, how: str
) -> None:
    """P1, HK4, HK5."""
    file = tmp_path / "pid"
    warnings = Warnings()
    hook = Hook(
        command.replace("PID", shlex.quote(str(file))),
        timeout=6 if how == "timeout" else 1000,
    )
    async with open_env() as env:
        async with trio.open_nursery() as nursery:
            hooks = of(Hooks(start=[hook]), env, warnings)
            nursery.start_soon(hooks.on_start)
            pid = await read_pid(file)
            if how == "cancel":
                assert is_there(pid)
                nursery.cancel_scope.cancel()
        assert not is_there(pid)
    assert len(warnings) == (how == "timeout")


@real
async def test_what_a_hook_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """P1: an orphan in a session of its own, without an environment."""
    file = tmp_path / "pid"
    name = shlex.quote(str(file))
    command = (
        f"env -i setsid bash -c 'echo $$ > {name}; exec sleep 1000' &"
        f" while ! [ -s {name} ]; do sleep 0.01; done; echo done"
    )
    async with open_env() as env:
        assert await of(starts(command), env).on_start() == "done"
        assert not is_there(await read_pid(file))


@real
async def test_a_hook_need_not_read_what_it_is_told() -> None:
    """HK4: more than a pipe holds, and nobody reads."""
    warnings = Warnings()
    async with open_env() as env:
        hooks = of(stops("sleep 0.2; exit 0", "exec <&-; sleep 0.1"), env, warnings)
        assert await hooks.on_stop("x" * 5_000_000) is None
    assert warnings == []


@real
async def test_of_a_loud_hook_the_beginning_is_kept() -> None:
    """P7: 100 MB on stdout, and on stderr."""
    loud = "echo begin{0}; head -c 100000000 /dev/zero | tr '\\0' x {0}"
    async with open_env() as env:
        text = await of(starts(loud.format("")), env).on_start()
        reason = await of(stops(loud.format(">&2") + "; exit 2"), env).on_stop("x")
    for said in (text, reason):
        assert said is not None
        assert said.startswith("begin\nxxx")
        assert TEXT_LIMIT <= len(said) <= TEXT_LIMIT + 20
        assert said.endswith("[cut]")


@real
async def test_what_a_hook_prints_is_cleaned() -> None:
    """P5."""
    async with open_env() as env:
        text = await of(starts(r"printf '\033[31mred\033[0m\a \xff'"), env).on_start()
    assert text == "red \ufffd"


@real
async def test_the_last_hooks_are_real_commands_and_killed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HK5, P1."""
    # Time for a slow machine to start them.
    monkeypatch.setattr("supervisor.hooks._calls.END_BUDGET", 8)
    file, told = tmp_path / "pid", tmp_path / "told"
    stubborn = STUBBORN.replace("PID", shlex.quote(str(file)))
    hooks = stops(stubborn, f"cat > {told}.part; mv {told}.part {told}", timeout=1000)
    began = trio.current_time()
    async with open_env() as env:
        with trio.CancelScope() as scope:
            async with of(hooks, env) as pair:
                await pair.on_start()
                scope.cancel()
                await trio.sleep_forever()
        assert not is_there(await read_pid(file))
    assert json.loads(told.read_text())["status"] == "killed"
    assert trio.current_time() - began < 50


# ---- In a runtime ---------------------------------------------------------------------


async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """A loop whose answer is all that it was told."""
    said = [it.text for it in context.history if isinstance(it, UserMessage)]
    yield FinalResult(" / ".join(said))


async def hangs(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("begun")
    await trio.sleep_forever()


async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("begun")
    raise ValueError("out of order")


async def gives_up(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.lowlevel.checkpoint()
    yield FinalResult("half of it", "cancelled")


def runtime_with(directory: Path, hooks: Hooks) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(directory, env=fake_env(), agents=AgentPolicy(hooks=hooks))


@pytest.mark.parametrize(
    ("run", "how", "status"),
    [
        (loop, "wait", "running"),
        (breaks, "wait", "failed"),
        (gives_up, "wait", "killed"),
        (hangs, "stop", "killed"),
        (hangs, "leave", "killed"),
        (hangs, "interrupt", "killed"),
    ],
)
async def test_every_agent_has_its_pair(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    run: Run,
    how: str,
    status: str,
) -> None:
    """HK5."""
    hook = Recorder()
    hooks = Hooks(start=[Hook(hook)], stop=[Hook(hook)])
    with trio.fail_after(1_000):
        with pytest.raises(KeyboardInterrupt) if how == "interrupt" else nullcontext():
            async with runtime_with(tmp_path, hooks) as runtime:
                task = await runtime.launch(Agent(run, "do it"))
                if how == "wait":
                    await task.wait()
                else:
                    await trio.testing.wait_all_tasks_blocked()
                if how == "stop":
                    await task.stop("enough")
                if how == "interrupt":
                    raise KeyboardInterrupt
    assert hook.seen == ["SubagentStart", f"SubagentStop {status}"]
    assert {told["agent_id"] for told in hook.told} == {task.id}


async def says_more(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Goes on after its first answer, with other last words."""
    goes_on = len(context.history) > 1
    yield AssistantMessage("begun" if goes_on else "an answer")
    if not goes_on:
        return
    raise ValueError("out of order")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (loop, ["do it"]),
        (breaks, ["begun"]),
        (hangs, ["begun"]),
        (gives_up, ["half of it"]),
        (says_more, ["an answer", "begun"]),
    ],
)
async def test_stop_hooks_hear_the_last_words_whatever_the_end(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    run: Run,
    words: list[str],
) -> None:
    """The result that the snapshot has, not an answer of before."""
    hook = Recorder(*(["go on"] if run is says_more else []))
    async with runtime_with(tmp_path, Hooks(stop=[Hook(hook)])) as runtime:
        task = await runtime.launch(Agent(run, "do it"))
        with trio.move_on_after(10):
            await task.wait()
        await task.stop()
        ended = task.snapshot()
    assert [told["last_assistant_message"] for told in hook.told] == words
    assert ended.result == words[-1]


async def test_an_agent_that_never_began_has_no_hooks(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HK5."""
    hook = Recorder()
    hooks = Hooks(start=[Hook(hook)], stop=[Hook(hook)])
    async with open_runtime(
        tmp_path,
        env=fake_env(),
        limits=Limits(total=1),
        agents=AgentPolicy(hooks=hooks),
    ) as runtime:
        await runtime.launch(Agent(hangs, "first"))
        second = await runtime.launch(Agent(hangs, "second"))
        await trio.testing.wait_all_tasks_blocked()
        await second.stop()
    assert second.id not in {told["agent_id"] for told in hook.told}
    assert hook.seen == ["SubagentStart", "SubagentStop killed"]


async def test_hooks_speak_to_the_agent_before_its_prompt_and_after_its_answer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HK3, HK6."""
    hooks = Hooks(
        start=[Hook(Recorder("mind the gap"))], stop=[Hook(Recorder("not yet"))]
    )
    async with runtime_with(tmp_path, hooks) as runtime:
        task = await runtime.launch(Agent(loop, "do it"))
        ended = await task.wait()
    assert ended.result == "mind the gap / do it / not yet"


async def test_a_stop_hook_cannot_keep_an_agent_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HK3."""
    hook = Recorder(*["again"] * 100)
    async with runtime_with(tmp_path, Hooks(stop=[Hook(hook)])) as runtime:
        told = runtime.events.subscribe()
        ended = await (await runtime.launch(Agent(loop, "do it"))).wait()
        warned = [it.text for it in told.drain() if isinstance(it, Warned)]
    assert ended.status is TaskStatus.COMPLETED
    assert ended.result == " / ".join(["do it", *["again"] * STOP_BLOCKS])
    assert len(hook.told) == STOP_BLOCKS + 1
    assert len(warned) == 1
    assert "in a row" in warned[0]


def test_what_is_called_like_an_async_function_is_one() -> None:
    async def hook(more: str, told: Mapping[str, Any]) -> str:
        await trio.lowlevel.checkpoint()
        return more

    assert Hook(partial(hook, "more")).matches("x")
    assert Hook(Recorder("mind the gap")).matches("x")


@pytest.mark.parametrize(
    ("printed", "warned"),
    [
        ("{decision: allow}", "it printed broken JSON (Expecting property name"),
        ('{"decision": "allow", "decision": "allow"}', "it printed broken JSON"),
        ("{}", None),
        ("all is well", None),
    ],
)
async def test_an_answer_that_is_broken_json_is_warned_of_and_allows_nothing(
    printed: str, warned: str | None
) -> None:
    """HK4."""
    warnings = Warnings()
    async with open_env() as env:
        hooks = of(asks(f"echo '{printed}'"), env, warnings)
        assert await hooks.on_permission(request()) is None
    assert [warned in text for text in warnings if warned] == [True] * bool(warned)
    assert len(warnings) == bool(warned)
