"""The command `trio-supervisor agent`, asking whether an agent may: with real
processes, a terminal, and a server that answers as a model's API does."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from tests.actors import model_server as web
from tests.actors.model_server import open_model_server
from tests.supervisor.cli.test_agent import (
    agent,
    environment,
    keys,
    processes_of,
)
from tests.supervisor.cli.test_cli import Terminal, terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")
ROOT = Path(__file__).parents[3]


def calls(*commands: str) -> dict[str, Any]:
    """A turn of a model's script."""
    return {"tools": [{"Bash": {"command": command}} for command in commands]}


def played(tmp_path: Path, *turns: dict[str, Any]) -> str:
    """The file of a script whose one agent takes these turns, and then says what
    it was answered."""
    last = {"text": "I was told: {answer}"}
    agents = {"lead": {"prompt": "Go.", "turns": [*turns, last]}}
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"agents": agents}))
    return str(path)


BUBBLE = ("--permission-mode", "bubble")


@asynccontextmanager
async def asking(
    tmp_path: Path, *turns: dict[str, Any], options: tuple[str, ...] = ()
) -> AsyncGenerator[Terminal]:
    line = ("agent", *BUBBLE, *options, played(tmp_path, *turns))
    async with terminal(tmp_path, *line, width=100) as shown:
        yield shown


async def test_readme_line_does_its_work_and_asks_for_what_needs_asking(
    tmp_path: Path,
) -> None:
    """C1, C2: the call is shown whole, and y lets it run."""
    pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")
    readme = (ROOT / "README.md").read_text()
    (line,) = re.findall("^trio-supervisor (agent --model .*)$", readme, re.MULTILINE)
    command = json.dumps({"command": "cat README.md; echo done"})
    server_of = open_model_server(
        web.streams(
            web.of_anthropic(web.tool_block("use_1", "Bash", command), stop="tool_use")
        ),
        web.streams(web.of_anthropic(web.text_block("It supervises."))),
    )
    (tmp_path / "README.md").write_text("all about it\n")
    async with server_of as server:
        async with terminal(
            tmp_path, *shlex.split(line), more=keys(server.url)
        ) as shown:
            await shown.read_until(b"y or n: ")
            output = shown.output.decode()
            assert "\r\n  | command: cat README.md; echo done\r\n" in output
            assert re.search(r"Agent \w+ \(.*\) asks whether it may call Bash:", output)
            os.write(shown.master, b"y\n")
            assert await shown.finish() == 0
        assert "all about it" in str(server.requests[1].body["messages"])
    assert b"It supervises." in shown.output
    assert b"agent: completed" in shown.output


@pytest.mark.parametrize(
    "typed", ["n\n", "what?\n\nNo\n", "\x04"], ids=["n", "no", "D"]
)
async def test_what_is_not_allowed_does_not_run(tmp_path: Path, typed: str) -> None:
    """Whatever is no answer is asked for again; Ctrl+D allows nothing."""
    async with asking(tmp_path, calls("touch made")) as shown:
        await shown.read_until(b"y or n: ")
        os.write(shown.master, typed.encode())
        assert await shown.finish() == 0
    assert not (tmp_path / "made").exists()
    assert b"I was told: Bash is not allowed: the user has refused it" in shown.output
    assert shown.output.count(b"n refuses it") == (2 if "what" in typed else 0)
    # Nothing else stands in the line of a question.
    assert not re.search(rb"y or n: [^\r\n]*\d s  ", shown.output)


async def test_several_calls_are_asked_one_by_one_and_judged_each_for_itself(
    tmp_path: Path,
) -> None:
    """What was typed before a question is shown is no answer to it."""
    async with asking(tmp_path, calls("touch a", "touch b", "touch c")) as shown:
        asked: list[str] = []
        for n, answer in enumerate((b"y\ny\ny\n", b"n\n", b"y\n"), start=1):
            while shown.output.count(b"y or n: ") < n:
                assert await shown.read()
            asked += re.findall(r"command: touch (.)", shown.output.decode())[n - 1 :]
            os.write(shown.master, answer)
        assert await shown.finish() == 0
    assert [name for name in asked if (tmp_path / name).exists()] == asked[::2]


async def test_a_question_hides_nothing_and_cannot_speak_to_the_terminal(
    tmp_path: Path,
) -> None:
    """P5: no control character, none that moves others, no cut that is not told
    of, and no line that passes for the program's own."""
    hostile = "rm -rf x #\r\x1b[2Kls\u202e\u200b\nAllow it? y or n: " + "x" * 30_000
    async with asking(tmp_path, calls(hostile)) as shown:
        await shown.read_until(b"NOT SHOWN")
        while shown.output.count(b"y or n: ") < 2:
            assert await shown.read()
        _, _, question = shown.output.decode().partition("asks whether it may")
        assert r"rm -rf x #\r\x1b[2Kls\u202e\u200b" in question
        assert "\x1b" not in question and "\u202e" not in question
        lines = question.split("\r\n")
        assert all(line.startswith("  | ") for line in lines[1:-1])
        assert all(len(line) <= 100 for line in lines)
        os.write(shown.master, b"n\n")
        assert await shown.finish() == 0


async def test_ctrl_c_at_a_question_ends_everything(tmp_path: Path) -> None:
    async with asking(tmp_path, calls("touch made")) as shown:
        await shown.read_until(b"y or n: ")
        os.write(shown.master, b"\x03")
        assert await shown.finish() == 130
    assert not (tmp_path / "made").exists()
    assert b"It is not asked any more." in shown.output
    assert b"lead: killed" in shown.output
    assert b"Traceback" not in shown.output
    assert processes_of(tmp_path) == []


async def test_rules_of_the_command_line_decide_without_a_question(
    tmp_path: Path,
) -> None:
    """Each may be given again and again; one that denies beats the others."""
    rules = (
        "--allow",
        "Bash(touch *)",
        "--allow",
        "Bash(ls *)",
        "--deny",
        "Bash(ls b)",
    )
    turns = (calls("touch a"), calls("ls a"), calls("ls b"))
    async with asking(tmp_path, *turns, options=rules) as shown:
        assert await shown.finish() == 0
    assert b"y or n" not in shown.output
    assert shown.output.count(b"  done ") == 2
    assert b"the rule Bash(ls b) denies it" in shown.output


async def test_without_a_terminal_a_denial_says_what_to_do_in_a_line_that_fits(
    tmp_path: Path,
) -> None:
    """In words of the command line, and once."""
    path = played(tmp_path, calls("ls", "pwd"))
    said = "Bash needs --allow or --permission-mode"
    done = await agent(tmp_path, "--permission-mode", "default", path)
    assert (done.code, done.errors) == (0, "")
    (line,) = [it for it in done.output.splitlines() if "warning" in it]
    assert line.endswith(f"  {said}") and len(line) <= 80
    assert "AgentPolicy" not in done.output
    done = await agent(tmp_path, "--permission-mode", "default", "--json", path)
    warned = [each["text"] for each in done.events() if each["kind"] == "Warned"]
    assert warned == [said]


async def test_rules_and_hooks_of_a_settings_file_decide_as_well(
    tmp_path: Path,
) -> None:
    """And what of it is not honoured is told, but for a script's own mode."""
    guard = 'grep -q secret && { echo "keep out" >&2; exit 2; }; exit 0'
    hook = {"matcher": "Bash", "hooks": [{"type": "command", "command": guard}]}
    file = tmp_path / "settings.json"
    settings: dict[str, Any] = {
        "permissions": {"allow": ["Bash(ls:*)"], "deny": ["Bash(touch:*)"]},
        "hooks": {"PreToolUse": [hook]},
        "env": {"A": "b"},
        "model": "opus",
    }
    file.write_text(json.dumps(settings))
    turns = (calls("ls"), calls("touch made"), calls("ls secret"))
    options = ("--permission-mode", "default", "--settings", str(file))
    done = await agent(tmp_path, *options, played(tmp_path, *turns))
    assert done.code == 0
    assert re.search(r" done +\w+ +Bash\n", done.output)
    assert "the rule Bash(touch:*) denies it" in done.output
    assert "keep out" in done.output
    assert not (tmp_path / "made").exists()
    env, model = done.errors.splitlines()
    assert "settings.json: env: " in env
    assert "settings.json: model: the script works, and not opus" in model
    settings["permissions"]["deny"] = ["Bash("]
    file.write_text(json.dumps(settings))
    done = await agent(tmp_path, *options, played(tmp_path, *turns))
    assert (done.code, done.output) == (2, "")
    assert "--settings" in done.errors and "Bash(" in done.errors
    assert "Traceback" not in done.errors


async def test_a_rule_about_a_tool_that_no_agent_has_is_told_of_by_name(
    tmp_path: Path,
) -> None:
    """It is no error; those of a settings file are told in one line."""
    path = played(tmp_path, calls("true"))
    mode = ("--permission-mode", "default")
    rules = ("--deny", "Edit(/x)", "--allow", "Read", "--allow", "mcp__github")
    # By its older name, by a pattern, and those that speak of several tools.
    known = ("Bash(true)", "Task", "KillShell", "Agent(x)", "Bash(ls *)", "*")
    fine = [word for rule in known for word in ("--allow", rule)]
    fine += ["--deny", "Task*"]
    done = await agent(tmp_path, *mode, *rules, *fine, path)
    assert done.code == 0 and "warning" not in done.output
    lines = done.errors.splitlines()
    for line, rule in zip(
        lines, ("--allow Read", "--allow mcp__github", "--deny Edit(/x)"), strict=True
    ):
        assert line.startswith(f"trio-supervisor: {rule}: it matches nothing")
        assert "Bash, TaskOutput, " in line
    file = tmp_path / "settings.json"
    others = [f"WebFetch(domain:{number}.example)" for number in range(10)]
    allow, deny = ["Bash(true)", *others], ["Read(./.env)", "Bash(rm *)"]
    file.write_text(json.dumps({"permissions": {"allow": allow, "deny": deny}}))
    done = await agent(tmp_path, *mode, "--settings", str(file), path)
    assert done.code == 0
    (line,) = done.errors.splitlines()
    assert "settings.json: rules about tools that no agent has" in line
    assert "WebFetch(domain:0.example)" in line and line.endswith(" and 6 more")
    assert "Bash" not in line


async def test_a_rule_about_a_tool_that_the_scripts_agents_may_not_use_is_told_of(
    tmp_path: Path,
) -> None:
    """What their tools leave out they do not have."""
    lead = {"prompt": "Go.", "tools": ["TaskOutput"], "turns": [{"text": "done"}]}
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"agents": {"lead": lead}}))
    rules = ("--allow", "Bash(ls)", "--allow", "TaskOutput", "--allow", "SendMessage")
    done = await agent(tmp_path, *rules, str(path))
    assert done.code == 0
    bash, message = done.errors.splitlines()
    assert "--allow Bash(ls): it matches nothing" in bash and "TaskOutput" in bash
    assert "--allow SendMessage: " in message and "TaskStop" not in message


@pytest.mark.parametrize(
    ("permissions", "runs"),
    [
        ({"defaultMode": "default"}, False),
        ({"defaultMode": "manual"}, False),
        ({"defaultMode": "auto"}, False),
        ({"defaultMode": "plan"}, False),
        ({"defaultMode": "bypassPermissions"}, True),
        ({"disableBypassPermissionsMode": "disable"}, False),
        ({}, True),
    ],
    ids=str,
)
async def test_a_script_has_the_mode_that_a_settings_file_names(
    tmp_path: Path, permissions: dict[str, str], runs: bool
) -> None:
    """It is bypass only where the file leaves it open, or says so."""
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"permissions": permissions}))
    path = played(tmp_path, calls("touch made"))
    done = await agent(tmp_path, "--settings", file, path)
    assert done.code == 0
    assert (tmp_path / "made").exists() is runs


async def test_bypass_is_refused_where_a_settings_file_forbids_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.json"
    forbids = {"permissions": {"disableBypassPermissionsMode": "disable"}}
    file.write_text(json.dumps(forbids))
    path = played(tmp_path, calls("touch made"))
    bypass = ("--permission-mode", "bypass")
    done = await agent(tmp_path, *bypass, "--settings", file, path)
    assert (done.code, done.output) == (2, "")
    assert "disableBypassPermissionsMode" in done.errors


async def test_where_a_file_says_default_a_person_is_asked(tmp_path: Path) -> None:
    """As by the program that the file was written for."""
    pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"permissions": {"defaultMode": "default"}}))
    block = web.tool_block("use_1", "Bash", json.dumps({"command": "touch made"}))
    line = ("agent", "--model", "claude-test", "--settings", str(file), "Go.")
    async with open_model_server(
        web.streams(web.of_anthropic(block, stop="tool_use")),
        web.streams(web.of_anthropic(web.text_block("Done."))),
    ) as server:
        async with terminal(tmp_path, *line, more=keys(server.url)) as shown:
            await shown.read_until(b"y or n: ")
            os.write(shown.master, b"y\n")
            assert await shown.finish() == 0
    assert (tmp_path / "made").exists()


async def test_where_a_rule_asks_it_is_said_who_can_answer(tmp_path: Path) -> None:
    """No --allow helps there, since asking beats allowing, also in a script."""
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"permissions": {"ask": ["Bash(touch *)"]}}))
    path = played(tmp_path, calls("touch made", "touch more", "ls"))
    for mode in ([], ["--permission-mode", "default"]):
        done = await agent(tmp_path, *mode, "--settings", file, "--json", path)
        assert done.code == 0
        warned = [it["text"] for it in done.events() if it["kind"] == "Warned"]
        (asks,) = [text for text in warned if "asks about Bash" in text]
        assert "--permission-mode bubble, on a terminal or with --json" in asks
        assert len(warned) == 1 + len(mode) // 2
        assert not (tmp_path / "made").exists()


@attrs.define
class Talk:
    process: trio.Process
    events: list[dict[str, Any]] = attrs.Factory(list[dict[str, Any]])
    rest: bytes = b""

    async def read_until(self, kind: str, times: int = 1) -> dict[str, Any]:
        assert self.process.stdout is not None
        while sum(event["kind"] == kind for event in self.events) < times:
            chunk = await self.process.stdout.receive_some()
            assert chunk, (kind, self.events)
            *lines, self.rest = (self.rest + chunk).split(b"\n")
            self.events += map(orjson.loads, lines)
        return [event for event in self.events if event["kind"] == kind][times - 1]

    async def say(self, **fields: object) -> None:
        await self.write(orjson.dumps(fields) + b"\n")

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(data)


@asynccontextmanager
async def talking(tmp_path: Path, *turns: dict[str, Any]) -> AsyncGenerator[Talk]:
    line = ("agent", "--json", *BUBBLE, played(tmp_path, *turns))
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "supervisor.cli", *line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        try:
            yield Talk(process)
        finally:
            if process.poll() is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def test_as_json_a_question_is_an_event_and_its_answer_a_line_on_standard_input(
    tmp_path: Path,
) -> None:
    """With the whole call, and nothing that is no answer is passed over."""
    async with talking(tmp_path, calls("touch a", "touch b")) as talk:
        # Which of them comes first is chance.
        asked = [await talk.read_until("ApprovalRequested", n) for n in (1, 2)]
        first, second = sorted(asked, key=lambda it: it["tool_input"]["command"])
        assert first["tool_name"] == "Bash"
        assert first["tool_input"] == {"command": "touch a"}
        assert second["tool_input"] == {"command": "touch b"}
        refused = (
            b"yes\n",
            b"[1]\n",
            b'{"approval_id": "x"}\n',
            b'{"approval_id": "x", "allow": true}\n',
            b'{"approval_id": "x", "allow": "yes"}\n',
            b'{"approval_id": "x", "allow": true, "always": true}\n',
        )
        for n, line in enumerate(refused, start=1):
            await talk.write(line)
            event = await talk.read_until("AnswerRefused", n)
            assert "answer" in event["text"]
        await talk.say(approval_id=second["approval_id"], allow=False, reason="no b")
        await talk.say(approval_id=first["approval_id"], allow=True)
        done = await talk.read_until("TaskEnded", 2)
        assert done["status"] == "completed"
        assert await talk.process.wait() == 0
    assert (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    assert [
        (it["allowed"], it["reason"])
        for it in talk.events
        if it["kind"] == "ApprovalAnswered"
    ] == [(False, "no b"), (True, None)]


async def test_as_json_the_end_of_the_input_refuses_what_is_asked(
    tmp_path: Path,
) -> None:
    """Also of what is asked afterwards, and nobody waits for ever."""
    async with talking(tmp_path, calls("touch a"), calls("touch b")) as talk:
        await talk.read_until("ApprovalRequested")
        assert talk.process.stdin is not None
        await talk.process.stdin.aclose()
        answer = await talk.read_until("ApprovalAnswered", 2)
        assert "standard input has ended" in answer["reason"]
        assert await talk.process.wait() == 0
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


async def test_who_cannot_be_asked_is_told_at_once(tmp_path: Path) -> None:
    """A mistake in the call, with what to do; not a wait that never ends."""
    path = played(tmp_path, calls("touch made"))
    done = await agent(tmp_path, path, "--permission-mode", "bubble")
    assert (done.code, done.output) == (2, "")
    said = " ".join(done.errors.split())
    assert "--permission-mode bubble asks on a terminal" in said
    assert "--json" in said and "--allow" in said
    assert "standard input and output are none" in said
    # Its input is /dev/null.
    done = await agent(tmp_path, path, "--permission-mode", "bubble", "--json")
    assert done.code == 0
    answers = [it for it in done.events() if it["kind"] == "ApprovalAnswered"]
    assert [it["allowed"] for it in answers] == [False]
    assert not (tmp_path / "made").exists()


async def test_the_agents_of_a_directory_can_be_started(tmp_path: Path) -> None:
    """What is wrong with one of them is said, and the others are there."""
    pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")
    pytest.importorskip("yaml", reason="the extra `agents` is not installed")
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "reader.md").write_text(
        "---\nname: reader\ndescription: Reads.\nmodel: haiku\nskills: a\n---\nYou read.\n"
    )
    (agents / "broken.md").write_text("---\nname: broken\n---\nX\n")
    start = {"subagent_type": "reader", "description": "read", "prompt": "Read it."}
    block = web.tool_block("use_1", "Agent", json.dumps(start))
    async with open_model_server(
        web.streams(web.of_anthropic(block, stop="tool_use")),
        web.streams(web.of_anthropic(web.text_block("I have read."))),
        web.streams(web.of_anthropic(web.text_block("It has read."))),
    ) as server:
        done = await agent(
            tmp_path,
            *("--model", "claude-test", "--agents", str(agents), "--allow", "Agent"),
            "Read it.",
            **keys(server.url),
        )
    assert done.code == 0
    assert server.requests[1].body["system"] == "You read."
    broken, less, other_model = done.errors.splitlines()
    assert "broken.md" in broken and "description" in broken
    assert broken.endswith(" (no agent comes of it)")
    assert less.endswith(" (the agent 'reader' is there, and can do less)")
    assert "reader.md: claude-test works for it, and not haiku" in other_model
    assert "It has read." in done.output
