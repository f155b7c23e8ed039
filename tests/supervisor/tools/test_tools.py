"""What all tools have in common: schemas, strict arguments, owners, errors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import Context
from actors.work import Report
from supervisor.runtime import Limits, Runtime, open_runtime
from supervisor.settings import Settings
from supervisor.tools import Tool, ToolResult
from supervisor.tools._arguments import Field, Refused, object_schema, read_arguments
from supervisor.tools._set import tools_for
from tests.supervisor.jobs import Job, forever, returns

NAMES = [
    *("Bash", "TaskOutput", "TaskStop", "TaskList", "TaskWrite", "TaskMonitor"),
    "KillShell",
]


def tool(runtime: Runtime, name: str, owner: str | None = None) -> Tool:
    (found,) = (t for t in tools_for(runtime, owner, Settings()) if t.name == name)
    return found


# Schemas


async def test_the_tools_have_their_names_and_nothing_vague(tmp_path: Path) -> None:
    """The contract with models: names, descriptions, strict schemas."""
    async with open_runtime(tmp_path) as runtime:
        tools = runtime.tools_for("main")
    assert [t.name for t in tools] == NAMES
    for t in tools:
        assert len(t.description) > 80 and t.description.endswith("\n")
        assert t.schema["type"] == "object"
        assert t.schema["additionalProperties"] is False
        assert set(t.schema["required"]) <= set(t.schema["properties"])
        for name, field in t.schema["properties"].items():
            assert field["type"] in ("string", "integer", "boolean")
            assert field["description"].endswith(".")
            # What every provider's dialect of JSON schema has.
            assert set(field) <= {
                *("type", "description", "default", "minimum", "maximum")
            }
            assert ("default" in field) <= (name not in t.schema["required"])
        json.dumps([t.name, t.description, t.schema], allow_nan=False)


async def test_the_schema_of_task_output_has_known_bounds_and_an_offset(
    tmp_path: Path,
) -> None:
    """BG6; timeout 0 to 600000 ms, 30000 by default. The offset is our own."""
    async with open_runtime(tmp_path) as runtime:
        schema = tool(runtime, "TaskOutput").schema
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["task_id"]
    assert list(schema["properties"]) == ["task_id", "block", "timeout", "offset"]
    block, timeout = schema["properties"]["block"], schema["properties"]["timeout"]
    assert (block["type"], block["default"]) == ("boolean", True)
    # Whole milliseconds: a number of another kind is refused by name.
    assert timeout["type"] == "integer"
    assert [timeout[k] for k in ("minimum", "maximum", "default")] == [
        *(0, 600_000, 30_000)
    ]


async def test_settings_reach_the_tools(tmp_path: Path) -> None:
    """CO4: without background tasks nothing offers one."""
    given = Settings(bash_default_timeout=5, bash_max_timeout=7)
    off = Settings(background_tasks=False)
    async with open_runtime(tmp_path) as runtime:
        timeout = tools_for(runtime, None, given)[0].schema["properties"]["timeout"]
        bash = tools_for(runtime, None, off)[0]
    assert (timeout["default"], timeout["maximum"]) == (5, 7)
    assert "run_in_background" not in bash.schema["properties"]
    assert "background" not in bash.description.replace(
        "what it has started in the background", ""
    )


async def test_the_environment_is_read_when_the_tools_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CO4: a bad variable is told by name, and not to the model; what was read
    holds for the runtime."""
    async with open_runtime(tmp_path) as runtime:
        monkeypatch.setenv("TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS", "0x10")
        with pytest.raises(
            ValueError, match=r"TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS.*'0x10'"
        ):
            runtime.tools_for(None)
        monkeypatch.setenv("TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS", "9000")
        for owner in (None, "main"):
            bash = runtime.tools_for(owner)[0]
            assert bash.schema["properties"]["timeout"]["maximum"] == 9000
            monkeypatch.setenv("TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS", "8000")


async def test_bad_arguments_of_the_host_are_named(tmp_path: Path) -> None:
    """The house."""
    async with open_runtime(tmp_path) as runtime:
        with pytest.raises(TypeError, match=r"owner.*7"):
            tools_for(runtime, 7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"settings.*{}"):
            tools_for(runtime, None, {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"tool_use_id.*7"):
            await tool(runtime, "TaskList").call({}, tool_use_id=7)  # type: ignore[arg-type]


# Texts


async def test_the_text_of_the_stop_says_what_ends_and_when_it_answers(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        stop = tool(runtime, "TaskStop").description
        kill = tool(runtime, "KillShell").description
    assert "waits until it has really ended" in stop
    assert "All processes that the task has started are ended" in stop
    assert "you are not told of that end again" in stop
    assert "Only your own tasks can be stopped" in stop
    assert "task_id" in stop
    assert "all: true, which stops all of your background tasks" in stop
    assert "Older name of TaskStop" in kill
    assert "shell_id" in kill


async def test_no_description_tells_the_model_to_end_its_response(
    tmp_path: Path,
) -> None:
    """N47."""
    async with open_runtime(tmp_path) as runtime:
        for t in runtime.tools_for(None):
            assert not tells_to_end(t.description)


def tells_to_end(text: str) -> bool:
    return bool(
        re.search(r"(end|finish|stop|yield)\w* (your|the|this) (turn|response)", text)
    )


# Arguments

FIELDS = (
    Field("name", "A name."),
    Field("count", "A count.", "integer", required=False, minimum=0, maximum=9),
    Field("flag", "A flag.", "boolean", required=False, default=True),
)


def test_what_did_not_come_has_its_default_or_is_none() -> None:
    """Nothing is guessed: each field has a value."""
    assert read_arguments(FIELDS, {"name": "x"}) == {
        "name": "x",
        "count": None,
        "flag": True,
    }


def test_a_whole_number_may_be_written_with_a_point() -> None:
    """JSON knows no other numbers: 3.0 is as good as 3."""
    count = read_arguments(FIELDS, {"name": "x", "count": 3.0})["count"]
    assert (count, type(count)) == (3, int)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (None, "must be an object, not null"),
        ([], "must be an object, not an array"),
        ("{}", "must be an object, not '{}'"),
        ({}, "name is missing"),
        ({"name": None}, "name must be a string, not null"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"name": {"a": 1}}, "name must be a string, not an object"),
        ({"name": "x", "count": "3"}, "count must be a whole number, not '3'"),
        ({"name": "x", "count": True}, "count must be a whole number, not true"),
        ({"name": "x", "count": 1.5}, "count must be a whole number, not 1.5"),
        ({"name": "x", "count": float("nan")}, "count must be .*, not nan"),
        ({"name": "x", "count": float("inf")}, "count must be .*, not inf"),
        ({"name": "x", "count": -1}, "count must be at least 0, not -1"),
        ({"name": "x", "count": 10}, "count must be at most 9, not 10"),
        ({"name": "x", "count": 10**5000}, "at most 9, not a number of many digits"),
        ({"name": "x", "flag": 1}, "flag must be true or false, not 1"),
        ({"name": "x", "flag": "yes"}, "flag must be true or false, not 'yes'"),
        ({"name": "x", "nmae": 1}, "unknown: 'nmae'; allowed: name, count, flag"),
        ({"flag": 0, "count": []}, "name is missing; count must .*; flag must "),
    ],
)
def test_wrong_arguments_are_named_with_their_value_and_what_is_allowed(
    arguments: object, words: str
) -> None:
    """An error that a model can act on: all of it at once."""
    with pytest.raises(Refused, match=words) as caught:
        read_arguments(FIELDS, arguments)
    assert caught.value.code == "invalid_arguments"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())  # with lone surrogates
    | st.just(10**100),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_arguments_fit_the_schema_or_are_refused_in_few_words(
    arguments: Any,
) -> None:
    """Strict validation never raises anything else."""
    try:
        values = read_arguments(FIELDS, arguments)
    except Refused as error:
        text = str(error)
    else:
        text = ""
        assert isinstance(values["name"], str) and set(arguments) <= set(values)
    assert len(text) < 2_000
    text.encode()
    assert object_schema(FIELDS)["required"] == ["name"]


def test_a_deep_or_huge_argument_costs_nothing() -> None:
    """Shown in a few words, whatever its size."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10_000_000, {"a" * 10**6: deep}):
        with pytest.raises(Refused) as caught:
            read_arguments(FIELDS, {"name": "x", "count": value})
        assert len(str(caught.value)) < 300
    with pytest.raises(Refused, match="and 995 more") as caught:
        read_arguments(FIELDS, {"name": "x", **{f"f{n}": n for n in range(1000)}})
    assert len(str(caught.value)) < 300


KEYS = ("command", "task_id", "shell_id", "text", "timeout", "block", "offset", "cwd")
# No text that could be a command, and no id of a task.
HOSTILE = st.dictionaries(
    st.sampled_from(KEYS) | st.text(), JSON.filter(lambda v: not isinstance(v, str))
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), JSON | HOSTILE), min_size=10, max_size=20
    )
)
def test_no_call_raises_or_changes_anything_whatever_its_arguments(
    tmp_path: Path, calls: list[tuple[str, Any]]
) -> None:
    """P10: hostile arguments are answered with errors; each answer is JSON."""

    async def main() -> None:
        # A directory has but one program: what another has left would be told.
        async with open_runtime(tmp_path, journal=False) as runtime:
            await runtime.launch(Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            tools = {t.name: t for t in tools_for(runtime, None, Settings())}
            with runtime.events.subscribe() as events:
                before = runtime.tasks()
                for name, arguments in calls:
                    result = await tools[name].call(arguments)
                    assert result.is_error == (name != "TaskList" or arguments != {})
                    result.text.encode()
                    json.dumps(result.data, allow_nan=False)
                after = runtime.tasks()
                assert [t.id for t in after] == [t.id for t in before]
                assert not any(t.status.is_terminal or t.stopping for t in after)
                assert events.drain() == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("name", ["TaskOutput", "TaskStop", "TaskWrite", "KillShell"])
@given(text=st.text(st.characters()))
@settings(max_examples=20, deadline=None)
def test_any_text_as_an_id_is_answered(tmp_path: Path, name: str, text: str) -> None:
    """AG39."""

    async def main() -> ToolResult:
        async with open_runtime(tmp_path) as runtime:
            key = "shell_id" if name == "KillShell" else "task_id"
            arguments = {key: text} | ({"text": text} if name == "TaskWrite" else {})
            return await tool(runtime, name).call(arguments)

    result = trio.run(main)
    assert result.is_error and result.data == {"error": "unknown_task"}
    result.text.encode()


# Whose tasks


@asynccontextmanager
async def two_owners(directory: Path) -> AsyncGenerator[tuple[Runtime, str, str], None]:
    """Give a runtime and the ids of a task of "main" and of one of "other"."""
    async with open_runtime(directory) as runtime:
        mine = await runtime.launch(Job(forever), description="mine", owner="main")
        other = await runtime.launch(Job(forever), description="other", owner="other")
        yield runtime, mine.id, other.id


BY_ID = [
    ("TaskOutput", "task_id", {}),
    ("TaskStop", "task_id", {}),
    ("KillShell", "shell_id", {}),
    ("TaskWrite", "task_id", {"text": "x"}),
]


@pytest.mark.parametrize(("name", "key", "more"), BY_ID)
async def test_the_task_of_another_owner_is_denied_and_left_alone(
    name: str, key: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """SH38."""
    async with two_owners(tmp_path) as (runtime, mine, other):
        for owner in ("main", None):
            result = await tool(runtime, name, owner).call({key: other} | more)
            assert result.is_error and result.data == {"error": "access_denied"}
            assert "Access denied" in result.text
            assert (mine in result.text) == (owner == "main")
        assert not runtime.get(other).stopping


@pytest.mark.parametrize(("name", "key", "more"), BY_ID)
async def test_an_unknown_id_lists_the_running_tasks(
    name: str, key: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """AG39, SH38: those of the owner."""
    async with two_owners(tmp_path) as (runtime, mine, other):
        result = await tool(runtime, name, "main").call({key: "s1234567"} | more)
        assert result.is_error and result.data == {"error": "unknown_task"}
        assert "'s1234567'" in result.text
        assert f"- {mine} local_agent (running): mine" in result.text
        assert other not in result.text
        nobody = await tool(runtime, name).call({key: "s1234567"} | more)
        assert nobody.text.endswith("No task is running.")


async def test_an_unknown_id_lists_only_the_first_of_very_many(tmp_path: Path) -> None:
    """AG39."""
    async with open_runtime(tmp_path) as runtime:
        for _ in range(30):
            await runtime.launch(Job(forever))
        text = (await tool(runtime, "TaskStop").call({"task_id": "?"})).text
        assert text.count("\n- ") == 20 and text.endswith("and 10 more; see TaskList")


# Errors of the runtime


async def test_a_stopping_runtime_is_told_as_such(tmp_path: Path) -> None:
    """An error that a model can act on."""
    async with open_runtime(tmp_path) as runtime:
        bash = tool(runtime, "Bash")
    for background in (False, True):
        result = await bash.call({"command": "true", "run_in_background": background})
        assert result.is_error and result.data == {"error": "stopping"}
    assert runtime.tasks() == []


async def test_a_full_backlog_is_told_as_such(tmp_path: Path) -> None:
    """P6: the model can still work in the foreground."""
    async with open_runtime(tmp_path, limits=Limits(backlog=1)) as runtime:
        await (await runtime.launch(returns("done"))).wait()
        before = runtime.tasks()
        result = await tool(runtime, "Bash").call(
            {"command": "true", "run_in_background": True}
        )
        assert result.is_error and result.data == {"error": "backlog_full"}
        assert "1 notifications" in result.text and "foreground" in result.text
        assert runtime.tasks() == before


async def test_a_task_that_would_wait_for_itself_is_told_as_such(
    tmp_path: Path,
) -> None:
    """WouldDeadlock: an agent may be given its own id."""
    results: list[ToolResult] = []

    async with open_runtime(tmp_path) as runtime:

        async def ask(ctx: Context[object], report: Report) -> None:
            for name in ("TaskOutput", "TaskStop"):
                call = tool(runtime, name).call
                results.append(await call({"task_id": report.task_id}))

        snapshot = await (await runtime.launch(Job(ask))).wait()
    assert snapshot.status.value == "completed"
    assert [result.data for result in results] == [{"error": "own_task"}] * 2


@pytest.mark.parametrize("name", NAMES)
async def test_a_cancelled_call_does_nothing(name: str, tmp_path: Path) -> None:
    """Cancelled passes through, and before the first step nothing has happened."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        arguments = {
            "Bash": {"command": "true", "run_in_background": True},
            "KillShell": {"shell_id": task.id},
            "TaskWrite": {"task_id": task.id, "text": "x"},
            "TaskList": {},
        }.get(name, {"task_id": task.id})
        with trio.CancelScope() as scope:
            scope.cancel()
            await tool(runtime, name).call(arguments)
        assert scope.cancelled_caught
        assert [(t.id, t.stopping) for t in runtime.tasks()] == [(task.id, False)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_refused_call_lets_others_run(name: str, tmp_path: Path) -> None:
    """A model that repeats a mistake must not keep the host from anything."""
    async with open_runtime(tmp_path) as runtime:
        with trio.testing.assert_checkpoints():
            assert (await tool(runtime, name).call({"?": 1})).is_error


async def test_an_error_of_our_own_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: what nobody expected is no answer for a model."""
    async with open_runtime(tmp_path) as runtime:

        def broken(owner: str | None = None) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(runtime, "tasks", broken)
        with pytest.raises(ZeroDivisionError):
            await tool(runtime, "TaskList").call({})
