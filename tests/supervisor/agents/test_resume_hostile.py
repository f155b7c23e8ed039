"""What the directory says of agents, when somebody else has written to it.

Whatever is planted there, other agents are launched and resumed as before, no agent
gains anything by it, and what was wrong is told by a warning that names the agent.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
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
    FinalResult,
    UserMessage,
)
from actors.env import Env
from actors.testing import FakeFiles, fake_env
from actors.transcript import AgentMeta
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition
from supervisor.permissions import Permissions
from supervisor.runtime import (
    MessageRefused,
    ResumeRefused,
    Runtime,
    TaskRestartScheduled,
    UnknownTask,
    Warned,
    open_runtime,
)

ID, OTHER = "0bad0bad", "600d600d"
LONG = 60.0


def sound(agent_id: str = ID, **fields: Any) -> dict[str, Any]:
    said = {
        "agent_id": agent_id,
        "run_id": f"{agent_id}-000001",
        "status": "running",
        "type": "reader",
        "prompt": "go",
    }
    return {**said, **fields}


def plant(env: Env, directory: Path, said: object, agent_id: str = ID) -> None:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    env.files.make_directory(directory)
    env.files.replace(directory / f"agent-{agent_id}.meta.json", text)


class Look:
    """Agents that only look at what they are."""

    def __init__(self) -> None:
        self.seen: dict[str, AgentContext] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    async def run(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        self.facts[context.agent_id] = {
            "cwd": context.cwd,
            "mode": context.permission_mode,
            "depth": context.depth,
            "tools": {tool.name for tool in context.tools},
            "read": [m.text for m in context.history if isinstance(m, UserMessage)],
            "deadline": context.deadline,
        }
        yield FinalResult("looked")


READER = AgentDefinition(
    name="reader",
    description="Reads.",
    prompt="Read.",
    tools=("TaskList", "TaskOutput"),
    max_turns=7,
)


def policy_of(look: Look) -> AgentPolicy:
    return AgentPolicy(
        run=look.run,
        definitions={"reader": READER},
        permissions=Permissions(mode="plan"),
    )


def warnings_of(events: Any, agent_id: str) -> list[str]:
    return [
        event.text
        for event in events.drain()
        if isinstance(event, Warned)
        and (event.task_id == agent_id or f"agent-{agent_id}" in event.text)
    ]


async def others_are_well(runtime: Runtime, look: Look) -> None:
    """One that is launched completes, and one of an earlier program goes on."""
    fresh = await runtime.launch(Agent(look.run, "fresh"))
    assert (await fresh.wait()).status.value == "completed"
    assert len(fresh.snapshot().run_id) < 30
    again = await runtime.resume(OTHER)
    assert (await again.wait()).status.value == "completed"
    assert [m.agent_id for m in runtime.unfinished_agents() if m.agent_id != ID] == []


async def see(said: object) -> tuple[str, list[str], dict[str, Any]]:
    """Plant it, resume it and look; return how that went, the warnings that name the
    agent, and what it is."""
    env, look, directory = fake_env(), Look(), Path("/tasks")
    plant(env, directory, said)
    plant(env, directory, sound(OTHER), OTHER)
    with trio.fail_after(LONG):
        async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
            events = runtime.events.subscribe()
            listed = [meta.agent_id for meta in runtime.unfinished_agents()]
            assert OTHER in listed
            try:
                task = await runtime.resume(ID)
            except (ResumeRefused, UnknownTask) as error:
                how = type(error).__name__
            else:
                how = (await task.wait()).status.value
            with_it = warnings_of(events, ID)
            await others_are_well(runtime, look)
            # What it was told of it can be told on.
            json.dumps([attrs.asdict(meta) for meta in runtime.unfinished_agents()])
        # And the next program reads what this one has written.
        async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
            events = runtime.events.subscribe()
            assert runtime.agent_meta(OTHER) is not None
            await others_are_well(runtime, look)
            assert warnings_of(events, OTHER) == []
    return how, with_it, look.facts.get(ID, {})


def check_rights(facts: dict[str, Any]) -> None:
    assert facts["tools"] <= {"TaskList", "TaskOutput"}
    assert facts["mode"] in ("plan", "deny")
    assert 0 <= facts["depth"] <= 1_000


WRONG: dict[str, list[Any]] = {
    "agent_id": [OTHER, "", "../x", 5, None],
    "run_id": [
        f"{ID}-" + "9" * 4_300,
        f"{ID}-" + "9" * 13,
        f"{ID}-",
        f"{ID}-１２",
        f"{ID}-1\n",
        f"../{OTHER}-000001",
        "",
        None,
        7,
    ],
    "status": ["", "Running", "done", "running ", "Paused", "x" * 99, None, 1],
    "type": [None, 3, ["reader"]],
    "description": [None, 4],
    "owner": [5, ["main"]],
    "prompt": [None, 1],
    "system": [True],
    "tools": ["Bash", [1], [None], {"Bash": 1}, 0],
    "disallowed_tools": [None, "Bash", [5]],
    "model": [5],
    "cwd": ["", " ", "/a\0b", "/" + "x" * 5_000, 7, ["/"]],
    "session": [5],
    "above": [None, "x", [5], {"x": 1}, ["x"] * 1_001],
    "depth": [-1, -(10**18), True, 1.0, "0", None, 1_001, 10**400, 1e400],
    "permission_mode": [5, "x" * 65, ["bypass"]],
    "forked": [1, None, "false"],
    "one_shot": [0, None],
    "resumes": [-1, True, 2**63, 10**4_000, 1.5, None, "1"],
    "error": [5],
    "ended_by": [5, "x" * 65, ["user"]],
    "deadline": [-1, True, 10**400, "5", [5]],
    "max_turns": [-1, True, 1.5, 10**400],
    "stall_warning": [-1, True, "x"],
    "stall_limit": [-0.5, False],
    "reminders": [-1, None, True, 0.5],
    "shutdown": [-1, None, True, 10**400],
    "tokens_left": [-1, True, 1.0, 10**4_000],
    "cost_left": [-1, True, 10**400, "free"],
    "tokens_used": [-1, True, 1.0, 10**4_000, None],
    "cost_used": [-1, True, 10**400, "free", None],
    "heard": ["x" * 201, 5, ["x"], True],
    "messages": [
        None,
        "hello",
        ["hello"],
        [["hello"]],
        [["hello", 5]],
        [["hello", None, None]],
        [[5, None]],
        [["", None]],
        [{"text": "hello"}],
        [["x" * 2_000_001, None]],
        [["x", None]] * 2_001,
    ],
}


def test_every_field_of_a_meta_has_values_that_it_cannot_have() -> None:
    """The list below leaves out no field, also of those to come."""
    assert WRONG.keys() == {field.name for field in attrs.fields(AgentMeta)}


@pytest.mark.parametrize("field", WRONG)
async def test_a_meta_with_a_value_that_it_cannot_have_is_none(field: str) -> None:
    """TR6, TR9: it is told by a warning that names the file, and touches nobody."""
    for value in WRONG[field]:
        how, told, facts = await see(sound(**{field: value}))
        assert how == "UnknownTask", value if len(repr(value)) < 99 else field
        assert any("could not be read" in text for text in told)
        assert all(len(text) < 500 for text in told)
        assert facts == {}


TEXT = json.dumps(sound()).encode()


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        TEXT[:-1],
        TEXT + TEXT,
        TEXT[:-1] + b', "status": "completed"}',
        TEXT[:-1] + b', "depth": NaN}',
        TEXT[:-1] + b', "deadline": Infinity}',
        TEXT[:-1] + b', "deadline": 1e999}',
        TEXT[:-1] + b', "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        TEXT[:-1] + b', "more": ' + b"9" * 5_000 + b"}",
        TEXT[:-1] + b', "more": {"a": 1, "a": 2}}',
        TEXT.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b'"go"', b'"\xff"'),
        TEXT + b" " * 8 * 2**20,
        b"\0" * 1_000,
    ],
    ids=range(18),
)
async def test_a_file_that_is_no_meta_is_none(contents: bytes) -> None:
    """TR6, TR9: broken, ambiguous, too deep, too large, or of another encoding."""
    how, told, _ = await see(contents)
    assert how == "UnknownTask"
    assert any("could not be read" in text for text in told)


async def test_what_a_later_version_has_added_is_passed_over() -> None:
    """TR9: as long as it could be read at all."""
    how, told, facts = await see(sound(added={"a": [1, {"b": None}]}, version=9))
    assert how == "completed" and not told
    check_rights(facts)


nasty = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, 10**400, -1]),
    st.floats(),
    st.text(st.characters(codec=None, categories=None), max_size=8),
    st.sampled_from(["/", "..", "bypass", "main", "a\x1b]0;x\x07", "9" * 4_300]),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.lists(st.text(max_size=3) | st.none(), max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([field.name for field in attrs.fields(AgentMeta)]),
        nasty,
        max_size=4,
    )
)
def test_no_meta_breaks_another_agent_or_gains_anything(
    fields: dict[str, Any],
) -> None:
    """TR6, TR9, PM2: whatever is in some of its fields."""

    async def main() -> None:
        how, told, facts = await see(sound(**fields))
        if how == "UnknownTask":
            assert told
        if facts:
            # The type decides, and this one may be another.
            if fields.get("type", "reader") == "reader":
                check_rights(facts)
            assert facts["mode"] in ("plan", "deny")
            assert 0 <= facts["depth"] <= 1_000

    trio.run(main)


async def test_the_number_of_a_run_from_a_file_is_that_of_its_agent_alone() -> None:
    """TR15: also the highest that there can be; after it come those of the runtime."""
    env, look, directory = fake_env(), Look(), Path("/tasks")
    plant(env, directory, sound(run_id=f"{ID}-{10**12 - 2}"))
    async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
        for number in (10**12 - 1, 10**12):
            task = await runtime.resume(ID)
            assert (await task.wait()).run_id == f"{ID}-{number}"
        other = await runtime.launch(Agent(look.run, "other"))
        assert (await other.wait()).run_id == f"{other.id}-000003"
    for last in (f"{ID}-000001", f"{ID}-000002"):
        # What was written can be read by each of the next ones.
        async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
            task = await runtime.resume(ID)
            assert (await task.wait()).run_id == last


async def test_the_highest_number_of_resumes_in_a_file_does_not_end_them() -> None:
    """A8: what is written of it then can be read again."""
    env, look, directory = fake_env(), Look(), Path("/tasks")
    plant(env, directory, sound(resumes=10**12))
    for _ in range(3):
        async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
            assert (await (await runtime.resume(ID)).wait()).error is None


class Counting(FakeFiles):
    """Files that count how often those about agents are opened."""

    opened = 0

    def _count(self, path: Path) -> None:
        self.opened += path.name.endswith(".meta.json")

    def size(self, path: Path) -> int | None:
        self._count(path)
        return super().size(path)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        self._count(path)
        return super().read_at(path, offset, limit)

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        self._count(path)
        return super().read_tail(path, limit)


async def test_what_is_kept_of_an_agent_is_opened_no_more_than_it_takes() -> None:
    """A8: each file may be large, and whoever reads it holds up everybody."""
    fake, look, directory = fake_env(), Look(), Path("/tasks")
    files = Counting()
    env = Env(clock=fake.clock, ids=fake.ids, processes=fake.processes, files=files)
    for agent_id in (ID, OTHER):
        plant(env, directory, sound(agent_id), agent_id)
    async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
        files.opened = 0
        assert runtime.agent_meta(ID) is not None
        assert files.opened == 1
        files.opened = 0
        # Of each its size, to read the small ones first.
        assert len(runtime.unfinished_agents()) == 2
        assert files.opened == 4
        files.opened = 0
        await (await runtime.resume(ID)).wait()
        # Before it is had alone, and then what it is.
        assert files.opened == 2


async def test_a_resumed_agent_is_as_deep_as_the_agent_above_it_says() -> None:
    """AG12: a file that says less is not believed."""
    env, look, directory = fake_env(), Look(), Path("/tasks")
    depths: list[int] = []

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        plant(env, directory, sound(owner=context.agent_id, depth=0))
        task = await runtime.resume(ID)
        depths.append(task.snapshot().depth or 0)
        await task.wait()
        yield FinalResult("done")

    async with open_runtime(directory, env=env, agents=policy_of(look)) as runtime:
        task = await runtime.launch(Agent(above, "go"))
        assert (await task.wait()).error is None
    assert depths == [1]


# Its directory


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host runs, with a place in it, one beside it, and links."""
    home = tmp_path / "home"
    (home / "inner").mkdir(parents=True)
    (tmp_path / "home2").mkdir()
    (home / "out").symlink_to(tmp_path / "home2")
    (home / "loop").symlink_to(home / "loop")
    (tmp_path / "in").symlink_to(home / "inner")
    monkeypatch.chdir(home)
    return home


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (None, True),
        ("{home}", True),
        ("{home}/inner", True),
        ("{home}/inner/../inner", True),
        ("{home}/gone", True),
        ("inner", True),
        (".", True),
        ("{home}/../in", True),
        ("/", False),
        ("{home}/..", False),
        ("..", False),
        ("{home}2", False),
        ("{home}/out", False),
        ("{home}/out/../../home2", False),
        ("out", False),
        ("~", True),
    ],
)
async def test_a_directory_from_a_file_counts_only_below_the_hosts(
    places: Path, said: str | None, counts: bool
) -> None:
    """TR15: links are followed, and what is changed is told. ``resume(cwd=)`` and the
    directory of the agent that is given say more than the host's."""
    from actors.env import real_env

    look, directory = Look(), places.parent / "tasks"
    cwd = None if said is None else said.format(home=places)
    for word in ("nothing", "agent", "cwd"):
        plant(real_env(), directory, sound(cwd=cwd))
        with trio.fail_after(LONG):
            async with open_runtime(directory, agents=policy_of(look)) as runtime:
                events = runtime.events.subscribe()
                if word == "agent":
                    agent = Agent(look.run, "x", cwd=str(places.parent))
                    task = await runtime.resume(ID, agent=agent)
                elif word == "cwd":
                    task = await runtime.resume(ID, cwd=places.parent)
                else:
                    task = await runtime.resume(ID)
                assert (await task.wait()).status.value == "completed"
        now, told = look.facts[ID]["cwd"], warnings_of(events, ID)
        if word == "nothing":
            assert now == (cwd if counts else None)
            assert [repr(cwd) in text and "cwd=" in text for text in told] == (
                [] if counts else [True]
            )
        elif word == "cwd":
            assert now == str(places.parent) and told == []
        elif said is not None and said not in ("/", "..", "{home}/out/../../home2"):
            assert now == cwd and told == []


async def test_a_directory_from_a_file_counts_only_below_that_of_the_agent_above(
    places: Path,
) -> None:
    """TR15: with no directory of its own it has that one."""
    from actors.env import real_env

    look, directory = Look(), places.parent / "tasks"

    async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number, cwd in enumerate(said):
            id = f"{number}bad0bad"
            planted = sound(id, owner=context.agent_id, cwd=cwd)
            plant(real_env(), directory, planted, id)
            task = await runtime.resume(id)
            await task.wait()
            seen.append(look.facts[id]["cwd"])
        yield FinalResult("done")

    inner = str(places / "inner")
    said = [str(places), None, inner, "inner/deep", "/"]
    seen: list[str | None] = []
    with trio.fail_after(LONG):
        async with open_runtime(directory, agents=policy_of(look)) as runtime:
            agent = Agent(above, "go", cwd=inner)
            assert (await (await runtime.launch(agent)).wait()).error is None
    assert seen == [inner, inner, inner, "inner/deep", inner]


# ---- A disk that fails ---------------------------------------------------------------


class Failing(FakeFiles):
    """Files of which one cannot be read as long as ``path`` is set."""

    path: Path | None = None
    # So many reads of it go well before.
    left = 0

    def _fail(self, path: Path) -> None:
        if path == self.path:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def size(self, path: Path) -> int | None:
        self._fail(path)
        return super().size(path)

    def read_at(self, path: Path, offset: int, limit: int) -> bytes:
        self._fail(path)
        # In small pieces, so that each of several can fail.
        return super().read_at(path, offset, min(limit, 900))

    def read_tail(self, path: Path, limit: int) -> tuple[bytes, bool]:
        self._fail(path)
        return super().read_tail(path, limit)


async def says_much(context: AgentContext) -> AsyncIterator[AgentEvent]:
    for number in range(20):
        yield AssistantMessage(f"part {number}")
    await trio.sleep_forever()


class Left:
    """A directory with an agent that is unfinished and has said much."""

    def __init__(self) -> None:
        fake = fake_env()
        self.files = Failing()
        self.env = attrs.evolve(fake, files=self.files)
        self.directory = Path("/tasks")
        self.heard: list[list[str]] = []
        self.policy = AgentPolicy(run=self._run)
        self.id = ""

    async def _run(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        self.heard.append([getattr(m, "text", "") for m in context.history])
        yield FinalResult("heard")

    async def make(self) -> None:
        async with open_runtime(self.directory, env=self.env) as runtime:
            task = await runtime.launch(Agent(says_much, "go"))
            await trio.testing.wait_all_tasks_blocked()
            self.id = task.id
            await runtime.transcripts.flush()

    def open(self) -> Any:
        env = attrs.evolve(self.env, processes=fake_env().processes)
        return open_runtime(self.directory, env=env, agents=self.policy)

    def file(self, ending: str) -> Path:
        return self.directory / f"agent-{self.id}{ending}"


async def test_an_agent_is_not_resumed_with_a_part_of_its_conversation() -> None:
    """TR6: each read of its files in turn fails; it is refused, with the reason and
    the path, or goes on with all that was said."""
    left = Left()
    all_said = ["go", *(f"part {number}" for number in range(20)), "more"]
    with trio.fail_after(LONG):
        for ending in (".jsonl", ".meta.json"):
            refused = 0
            for at in range(100):
                await left.make()
                left.files.path = left.file(ending)
                async with left.open() as runtime:
                    before = left.files.contents(left.file(".jsonl"))
                    left.files.left = at
                    told, task = "", None
                    try:
                        task = await runtime.resume(left.id, "more")
                    except ResumeRefused as error:
                        told = str(error)
                    if task is None:
                        refused += 1
                        assert str(left.files.path) in told
                        assert os.strerror(errno.EIO) in told
                        assert left.files.contents(left.file(".jsonl")) == before
                        left.files.path = None
                        task = await runtime.resume(left.id, "more")
                    await task.wait()
                    assert left.heard.pop() == all_said
                    await runtime.transcripts.flush()
                    left.files.path = None
                if left.files.left >= 0:
                    break
            assert left.files.left >= 0 and refused >= (5 if ending == ".jsonl" else 2)


async def test_one_that_cannot_be_read_is_told_by_its_name_and_the_others_listed() -> (
    None
):
    """TR6: neither is it taken for one that is not there, whoever asks."""
    left = Left()
    await left.make()
    bad = left.id
    await left.make()
    path = left.directory / f"agent-{bad}.meta.json"
    with trio.fail_after(LONG):
        async with left.open() as runtime:
            events = runtime.events.subscribe()
            for well in range(2):
                left.files.path, left.files.left = path, well
                listed = runtime.unfinished_agents()
                assert [meta.agent_id for meta in listed] == [left.id]
                (told,) = warnings_of(events, bad)
                assert str(path) in told and os.strerror(errno.EIO) in told
            for ask in (runtime.agent_meta, runtime.abandon_agent):
                with pytest.raises(OSError, match=str(path)):
                    ask(bad)
            # The second time it is read, when nobody else changes it any more.
            left.files.left = 1
            with pytest.raises(OSError, match=str(path)):
                runtime.abandon_agent(bad)
            left.files.left = 0
            with pytest.raises(MessageRefused, match=str(path)):
                await runtime.send(bad, "hello")
            output = {tool.name: tool for tool in runtime.tools_for(None)}["TaskOutput"]
            answer = await output.call({"task_id": bad})
            assert answer.is_error and os.strerror(errno.EIO) in answer.text
            left.files.path = None
            assert len(runtime.unfinished_agents()) == 2
            assert runtime.abandon_agent(bad)


async def test_a_run_after_a_crash_does_not_begin_without_what_was_said() -> None:
    """TR6, AG21: it fails, with the reason and the path, and the next one knows all."""
    left = Left()
    heard: list[list[str]] = []

    async def crashes(context: AgentContext) -> AsyncIterator[AgentEvent]:
        heard.append([getattr(m, "text", "") for m in context.history])
        if len(heard) > 1:
            yield FinalResult("done")
            return
        yield AssistantMessage("said")
        await runtime.transcripts.flush()
        left.files.path = left.directory / f"agent-{context.agent_id}.jsonl"
        left.files.left = 0
        raise RuntimeError("crash")

    with trio.fail_after(LONG):
        async with left.open() as runtime:
            events = runtime.events.subscribe()
            task = await runtime.launch(
                Agent(crashes, "go"), restart="transient", intensity=9
            )
            async for event in events:
                if isinstance(event, TaskRestartScheduled) and len(heard) == 1:
                    why = event.error or ""
                    if os.strerror(errno.EIO) in why and str(left.files.path) in why:
                        break
            left.files.path = None
            assert (await task.wait()).status.value == "completed"
    assert len(heard) == 2 and heard[1][:2] == ["go", "said"]
