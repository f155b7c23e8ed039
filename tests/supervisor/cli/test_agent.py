"""The command `trio-supervisor agent`, run as people run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from actors.agent import AssistantMessage, TextDelta, ToolCompleted
from actors.agent.hosting import from_data
from tests.actors import model_server as web
from tests.actors.model_server import open_model_server

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "agent.yaml"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system"),
    pytest.mark.limit(130),
]
pytest.importorskip("yaml", reason="the extra `agents` is not installed")


@attrs.frozen
class Done:
    code: int
    output: str
    errors: str

    def events(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.output.splitlines()]

    def of_agents(self) -> list[Any]:
        return [
            from_data(event["event"])
            for event in self.events()
            if event["kind"] == "AgentEvent"
        ]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    hidden = ("ANTHROPIC_", "OPENAI_", "HTTP", "ALL_PROXY", "http", "all_proxy")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(hidden)
    }
    return inherited | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), **more}


async def agent(tmp_path: Path, *arguments: str | Path, **more: str) -> Done:
    with trio.fail_after(120):
        done = await trio.run_process(
            [sys.executable, "-m", "supervisor.cli", "agent", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path, **more),
        )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


async def paced(tmp_path: Path, path: Path, *steps: tuple[str, str]) -> Done:
    """Play a script whose commands wait for files, as JSON: each file is made when
    the words before it have been told, however slow the program is."""
    output = b""
    with trio.fail_after(120), (tmp_path / "errors").open("wb") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "supervisor.cli", "agent", "--json", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        assert process.stdout is not None
        try:
            for words, file in steps:
                while words.encode() not in output:
                    chunk = await process.stdout.receive_some()
                    assert chunk, (words, output)
                    output += chunk
                (tmp_path / file).touch()
            async for chunk in process.stdout:
                output += chunk
            code = await process.wait()
        finally:
            if process.poll() is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
    return Done(code, output.decode(), (tmp_path / "errors").read_text())


def script(
    tmp_path: Path, turns: str, host: str = "[{launch: lead}, {wait: lead}]"
) -> Path:
    path = tmp_path / "script.yaml"
    path.write_text(
        f"agents: {{lead: {{prompt: Go., turns: {turns}}}}}\nhost: {host}\n"
    )
    return path


def processes_of(tmp_path: Path) -> list[str]:
    found: list[str] = []
    if not Path("/proc/self").exists():
        return found
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if os.fsencode(tmp_path) in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


# ---- Scripts -----------------------------------------------------------------


async def test_the_example_does_all_that_it_says(tmp_path: Path) -> None:
    """An agent launches shells and a sub-agent, is moved to the background, gets a
    message, is stopped with its shell, and is resumed."""
    done = await agent(tmp_path, EXAMPLE)
    assert done.errors == ""
    assert done.code == 0, done.output
    told = re.findall(r"^ *[0-9.]+ s  (.*)$", done.output, re.MULTILINE)
    for wanted in (
        r"moved +\w+ +lead",
        r"is told +\w+ +How far",
        r"started +\w+ +the tests",
        r"started +\w+ +a review",
        r"says +\w+ +One of them is done. You asked: How far are you\?",
        r"hears +\w+ ",
        r"stopping +\w+ +the log",
        r"killed +\w+ +watcher",
        r"resumed +\w+ +watcher",
        r"says +\w+ +I was stopped, and am back.",
        r"completed +\w+ +watcher",
        r"completed +\w+ +lead",
    ):
        assert any(re.match(wanted, line) for line in told), (wanted, done.output)
    assert "lead: completed" in done.output
    assert "\x1b" not in done.output


async def test_as_json_every_event_is_an_object_on_a_line(tmp_path: Path) -> None:
    """HL13: what commands print is in the answers to calls, and nowhere else."""
    # Ends that come together with something else are answered together with it: each
    # comes when what was before it has been heard.
    example = EXAMPLE.read_text()
    for before, file in (("sleep 0.3", "asked"), ("printf", "heard")):
        assert example.count(before) == 1
        gate = f"until [ -e {file} ]; do sleep 0.05; done"
        after = gate if file == "asked" else f"{gate}; {before}"
        example = example.replace(before, after)
    path = tmp_path / "example.yaml"
    path.write_text(example)
    done = await paced(
        tmp_path,
        path,
        ('"event":{"text":"How far are you?"', "asked"),
        ('"event":{"text":"<task-notification>', "heard"),
    )
    assert (done.code, done.errors) == (0, "")
    kinds = {event["kind"] for event in done.events()}
    assert {"TaskStarted", "TaskBackgrounded", "TaskResumed", "TaskEnded"} <= kinds
    said = [
        event.text for event in done.of_agents() if isinstance(event, AssistantMessage)
    ]
    assert said.count("I was stopped, and am back. The log was quiet.") == 1
    lead = [
        event["event"]["type"]
        for event in done.events()
        if event["kind"] == "AgentEvent"
        and event["task_id"]
        == next(
            each["task_id"]
            for each in done.events()
            if each["kind"] == "TaskStarted" and each["description"] == "lead"
        )
    ]
    # In order, also across the move.
    assert lead.index("ToolStarted") < lead.index("ToolCompleted")
    assert [kind for kind in lead if kind == "FinalResult"] == ["FinalResult"] * 4


async def test_the_environment_limits_how_many_run(tmp_path: Path) -> None:
    """CO4: with one place the second agent begins when the first has ended."""
    two = "[{launch: lead}, {launch: lead}]"
    done = await agent(
        tmp_path,
        "--json",
        script(tmp_path, "[{think: 0.2, text: Done.}]", two),
        TRIO_SUPERVISOR_MAX_AGENTS="1",
    )
    assert done.code == 0, done.errors
    lives = [
        event["kind"]
        for event in done.events()
        if event["kind"] in ("TaskStarted", "TaskEnded")
    ]
    assert lives == ["TaskStarted", "TaskEnded"] * 2


async def test_a_step_that_runs_an_agent_waits_until_it_runs(tmp_path: Path) -> None:
    """So that a step after it meets an agent that has begun, also where it must wait
    for a place."""
    path = tmp_path / "script.yaml"
    path.write_text(
        "agents:\n"
        "  first: {prompt: Go., turns: [{think: 0.2, text: Done.}]}\n"
        "  lead: {prompt: Go., turns: [{text: 'A.', tools:"
        " [{Bash: {command: sleep 600}}]}, {think: 600, text: Done.}]}\n"
        "host: [{run: first}, {run: lead}, {background: lead}, {stop: lead}]\n"
    )
    done = await agent(tmp_path, path, TRIO_SUPERVISOR_MAX_AGENTS="1")
    assert (done.code, done.errors) == (0, "")
    told = re.findall(
        r"^ *[0-9.]+ s  ((?:started|moved|host) .*|says .*A\.)",
        done.output,
        re.MULTILINE,
    )
    short = [re.sub(r" +[0-9a-f]{8} +| {2,}", " ", line) for line in told]
    assert short[:4] == [
        "host run first: Go.",
        "started first",
        "host run lead: Go.",
        "started lead",
    ]
    assert "moved lead (to the background)" in short
    assert "says A." in short


async def test_a_step_that_runs_an_agent_goes_on_if_that_ends_at_once(
    tmp_path: Path,
) -> None:
    done = await agent(
        tmp_path,
        script(tmp_path, "[{fail: Gone.}]", "[{run: lead}, {pause: 0.1}]"),
    )
    assert done.code == 1
    assert "host                     pause 0.1 s" in done.output


async def test_a_bad_limit_in_the_environment_is_named_and_nothing_starts(
    tmp_path: Path,
) -> None:
    """CO4."""
    done = await agent(
        tmp_path,
        script(tmp_path, "[{text: Done.}]"),
        TRIO_SUPERVISOR_MODEL_LIMITS="opus",
    )
    assert (done.code, done.output) == (2, "")
    assert "TRIO_SUPERVISOR_MODEL_LIMITS must be name=number" in done.errors
    assert os.listdir(tmp_path) == ["script.yaml"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BASH_DEFAULT_TIMEOUT_MS", "soon"),
        ("BASH_MAX_TIMEOUT_MS", "1"),
        ("MAX_OUTPUT_LENGTH", "5"),
        ("DISABLE_BACKGROUND_TASKS", "perhaps"),
    ],
)
async def test_a_bad_limit_of_the_tools_is_named_before_anything_starts(
    tmp_path: Path, variable: str, value: str
) -> None:
    name = f"TRIO_SUPERVISOR_{variable}"
    more = {"TRIO_SUPERVISOR_BASH_DEFAULT_TIMEOUT_MS": "2"} if value == "1" else {}
    done = await agent(
        tmp_path, script(tmp_path, "[{text: Done.}]"), **{name: value}, **more
    )
    assert (done.code, done.output) == (2, "")
    assert name in done.errors.replace("\n", " ")
    assert os.listdir(tmp_path) == ["script.yaml"]


async def test_a_failing_agent_is_a_failure_of_the_command(tmp_path: Path) -> None:
    """HL5, AG13, AG14: with its error, and what it has said."""
    done = await agent(
        tmp_path, script(tmp_path, "[{text: Half of it., fail: 'HTTP 500'}]")
    )
    assert done.code == 1
    assert done.errors == ""
    assert "HTTP 500" in done.output
    assert "lead: failed" in done.output
    assert "  Half of it." in done.output


async def test_an_error_of_a_sub_agents_model_is_an_error_to_its_parent(
    tmp_path: Path,
) -> None:
    """AG13, AG14: with the part that was there, and not as its answer."""
    path = tmp_path / "script.yaml"
    path.write_text(
        """
agents:
  lead:
    prompt: Go.
    turns:
      - tools:
          - Agent: {description: reads, prompt: Read., subagent_type: reader}
      - text: "I heard: {answer}"
  reader:
    description: Reads.
    turns:
      - {text: Half of it., fail: "HTTP 429, slow down"}
"""
    )
    done = await agent(tmp_path, path, "--json")
    assert done.code == 0
    (ended,) = [event for event in done.of_agents() if isinstance(event, ToolCompleted)]
    assert ended.is_error
    last = done.of_agents()[-1]
    assert "failed" in last.text
    assert "HTTP 429, slow down" in last.text
    assert "Half of it." in last.text


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("[{send: lead, text: a}]", "step 1: send lead: a: no step before"),
        ("[{launch: lead}, {background: lead}]", "step 2: background lead: it is not"),
        ("[{launch: lead}, {wait: lead, for: b}]", "step 2: wait lead: b: .*without"),
        ("[{launch: lead}, {stop: lead}, {send: lead, text: a}]", "step 3: send lead"),
    ],
)
async def test_a_step_that_cannot_be_taken_is_named_and_ends_everything(
    tmp_path: Path, host: str, said: str
) -> None:
    turns = "[{text: 'a', tools: [{Bash: {command: sleep 0.2}}]}, {text: Done.}]"
    done = await agent(tmp_path, script(tmp_path, turns, host))
    assert done.code == 1
    assert re.search(f"script.yaml: host, {said}", done.errors), done.errors
    assert "Traceback" not in done.errors
    assert processes_of(tmp_path) == []


async def test_an_agent_that_the_script_stops_is_no_failure(tmp_path: Path) -> None:
    turns = "[{text: 'a', tools: [{Bash: {command: sleep 600}}]}]"
    host = "[{launch: lead}, {wait: lead, for: a}, {stop: lead}]"
    done = await agent(tmp_path, script(tmp_path, turns, host))
    assert (done.code, done.errors) == (0, "")
    assert "lead: killed" in done.output


def forgotten(tmp_path: Path, command: str, *, times: int = 1) -> Path:
    """A script of a model that starts a command and answers without it."""
    start = f"{{Bash: {{command: {command}, run_in_background: true}}}}"
    turn = f"{{tools: [{start}]}}, {{text: All is well.}}"
    return script(tmp_path, f"[{', '.join([turn] * times)}]")


async def test_what_a_model_has_forgotten_is_told_of_while_it_is_waited_for(
    tmp_path: Path,
) -> None:
    """Not in silence, and no longer than was asked for."""
    path = forgotten(tmp_path, "sleep 600")
    done = await agent(tmp_path, path, "--wait", "6")
    assert (done.code, done.errors) == (0, "")
    (waited,) = re.findall(r" waits +\w+ +(\d+) s: sleep 600 \(s\w+\)\n", done.output)
    assert int(waited) >= 5
    assert re.search(r" stopping +s\w+ .*--wait: 6 s are over", done.output)
    assert "lead: completed" in done.output
    assert processes_of(tmp_path) == []


async def test_no_time_to_wait_ends_what_is_left_at_once_and_each_time(
    tmp_path: Path,
) -> None:
    """Zero, with something left, three times over."""
    path = forgotten(tmp_path, "sleep 600", times=3)
    done = await agent(tmp_path, path, "--wait", "0", "--json")
    assert (done.code, done.errors) == (0, "")
    stops = [it for it in done.events() if it["kind"] == "TaskStopRequested"]
    assert [it["reason"] for it in stops] == ["--wait: 0 s are over"] * 3
    assert processes_of(tmp_path) == []


async def test_nothing_is_said_of_what_ends_in_time(tmp_path: Path) -> None:
    path = forgotten(tmp_path, "sleep 0.5")
    done = await agent(tmp_path, path, "--wait", "60", "--json")
    assert (done.code, done.errors) == (0, "")
    kinds = [it["kind"] for it in done.events()]
    assert "StillWaiting" not in kinds and "TaskStopRequested" not in kinds


async def test_the_permission_mode_holds_for_a_script_as_well(tmp_path: Path) -> None:
    turns = "[{tools: [{Bash: {command: touch made}}]}, {text: '{answer}'}]"
    path = script(tmp_path, turns)
    done = await agent(tmp_path, path, "--permission-mode", "deny")
    assert done.code == 0
    assert not (tmp_path / "made").exists()
    await agent(tmp_path, path)
    assert (tmp_path / "made").exists()


async def test_why_a_call_has_failed_stands_behind_it(tmp_path: Path) -> None:
    """AG41: a wrong argument, and one that is denied."""
    wrong = script(tmp_path, "[{tools: [{Bash: {comand: ls}}]}, {text: Done.}]")
    done = await agent(tmp_path, wrong)
    assert re.search(r"failed +\w+ +Bash: .*'comand'.*command", done.output)
    denied = script(tmp_path, "[{tools: [{Bash: {command: ls}}]}, {text: Done.}]")
    done = await agent(tmp_path, denied, "--permission-mode", "deny")
    assert re.search(r"failed +\w+ +Bash: .*is not allowed: .*deny", done.output)


async def test_a_wait_for_an_end_that_cannot_come_fails_with_its_place(
    tmp_path: Path,
) -> None:
    """P9: also if the last that ran was told of by the answer to a call."""
    look = "{Bash: {command: sleep 0.3, run_in_background: true}}"
    for turns in (
        "[{tools: [{Bash: {comand: ls}}]}, {wait: end, text: a}]",
        f"[{{tools: [{look}]}}, {{wait: end, text: a}}, {{wait: end, text: b}}]",
    ):
        done = await agent(tmp_path, script(tmp_path, turns))
        assert done.code == 1
        said = done.output.replace("\n", " ")
        assert re.search(r"script.yaml:1: agent 'lead', turn \d: it waits for", said)
        assert "or remove the wait" in said


@pytest.mark.limit(400)  # It runs the program six times.
async def test_what_is_told_comes_in_the_order_in_which_it_happened(
    tmp_path: Path,
) -> None:
    """HL4: each number once, the times sorted, and an agent's last words before
    its end."""
    for _ in range(3):
        done = await agent(tmp_path, EXAMPLE, "--json")
        events = done.events()
        numbers = [event["seq"] for event in events]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        times = [event["time"] for event in events]
        assert times == sorted(times)
        agents = {
            event["run_id"]: event["task_id"]
            for event in events
            if event["kind"] == "AgentEvent"
        }
        assert len(agents) == 4
        ends = {
            task_id: [
                event["seq"]
                for event in events
                if event["kind"] == "TaskEnded" and event["task_id"] == task_id
            ]
            for task_id in agents.values()
        }
        assert sorted(map(len, ends.values())) == [1, 1, 2]
        for run_id, task_id in agents.items():
            said = [event["seq"] for event in events if event.get("run_id") == run_id]
            # Of the two runs of one of them, the first has ended before the second.
            assert any(said[-1] < end for end in ends[task_id])
        done = await agent(tmp_path, EXAMPLE)
        shown = re.findall(r"^ *([0-9.]+) s  (\w+)", done.output, re.MULTILINE)
        elapsed = [float(seconds) for seconds, _ in shown]
        assert elapsed == sorted(elapsed)
        assert shown[0][1] == "host"
        # Where the host is slow, its last wait is for what has ended already.
        assert [what for _, what in shown if what != "host"][-1] == "completed"


@pytest.mark.parametrize("host", ["[{launch: lead}]", "[{run: lead}]"])
async def test_a_signal_stops_everything(tmp_path: Path, host: str) -> None:
    """And is named as what has stopped it, in the foreground as well."""
    turns = "[{text: 'a', tools: [{Bash: {command: sleep 600}}]}]"
    path = script(tmp_path, turns, host)
    command = [sys.executable, "-m", "supervisor.cli", "agent", str(path)]
    with trio.fail_after(120):
        process = await trio.lowlevel.open_process(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
        )
        assert process.stdout is not None and process.stderr is not None
        output = b""
        while b"calls" not in output:
            output += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        async for chunk in process.stdout:
            output += chunk
        errors = b"".join([chunk async for chunk in process.stderr])
        assert await process.wait() == 130
    assert errors == b""
    assert b"lead: killed" in output
    assert b"SIGINT" in output
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("late", ["pending", "closed", "over"])
def test_a_second_signal_changes_nothing_of_how_it_ends(late: str) -> None:
    """HL3: whether it has not been handed out when nobody listens any more, comes
    right after that, or comes when everything is over."""
    program = f"""
import signal, sys, trio
from supervisor.cli._stopping import Stopping, open_signals

signal.signal(signal.SIGINT, signal.SIG_DFL)
stopping = Stopping(lambda: None)

async def main():
    with open_signals(stopping) as received:
        signal.raise_signal(signal.SIGINT)
        async for number in received:
            stopping.request(number)
            break
        if {late == "pending"}:
            signal.raise_signal(signal.SIGINT)
    if {late == "closed"}:
        signal.raise_signal(signal.SIGINT)

trio.run(main)
if {late == "over"}:
    signal.raise_signal(signal.SIGINT)
sys.exit(stopping.exit_code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_signal_that_comes_when_all_is_done_ends_the_program_as_ever() -> None:
    """HL3: nothing has asked it to stop before."""
    program = """
import signal, trio
from supervisor.cli._stopping import Stopping, open_signals

signal.signal(signal.SIGTERM, signal.SIG_DFL)

async def main():
    with open_signals(Stopping(lambda: None)):
        signal.raise_signal(signal.SIGTERM)

trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


# ---- Mistakes in the call ----------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "SCRIPT|PROMPT"),
        (["nothing.yaml"], "no such file. For a script"),
        (["do something"], "for a prompt, give --model"),
        (["typo.yaml"], "typo.yaml:1: agent 'lead', turn 1, 'tools', entry 1, 'Bsh'"),
        (["."], "directory"),
        (["bad.yaml"], "bad.yaml:1: 'agents'"),
        (["binary.yaml"], "UTF-8"),
        (["good.yaml", "--directory", "bad.yaml"], "--directory"),
        (["good.yaml", "--directory", ""], "--directory"),
        (["good.yaml", "--permission-mode", "x"], "--permission-mode"),
        (["good.yaml", "--settings", "gone.json"], "gone.json"),
        (["good.yaml", "--settings", "bad.yaml"], "--settings"),
        (["good.yaml", "--settings", ""], "--settings"),
        (["good.yaml", "--wait", "-1"], "'-1' is not a number of seconds"),
        (["good.yaml", "--wait", "soon"], "'soon' is not a number of seconds"),
        (["good.yaml", "--wait", "inf"], "'inf' is not a number of seconds"),
        (["good.yaml", "--allow", "Bash("], "'Bash('"),
        (["good.yaml", "--allow", ""], "''"),
        (["good.yaml", "--deny", "Bash()"], "--deny"),
        (["good.yaml", "--agents", "."], "--agents needs --model"),
        (["Hello", "--model", "claude-x", "--agents", "gone"], "ANTHROPIC_API_KEY"),
        (["Hello", "--model", "llama"], "anthropic/MODEL"),
        (["Hello", "--model", "anthropic/"], "anthropic/MODEL"),
        (["", "--model", "claude-x"], "prompt"),
        (["Hello", "--model", "claude-x"], "ANTHROPIC_API_KEY"),
        (["Hello", "--model", "gpt-5"], "OPENAI_API_KEY"),
        (["Hello", "--model", "openai/any"], "OPENAI_API_KEY"),
    ],
)
async def test_a_mistake_is_told_in_a_line_or_two(
    tmp_path: Path, arguments: Sequence[str], said: str
) -> None:
    (tmp_path / "bad.yaml").write_text("agents: 5\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    script(tmp_path, "[{tools: [{Bsh: {}}]}]").rename(tmp_path / "typo.yaml")
    script(tmp_path, "[{text: a}]").rename(tmp_path / "good.yaml")
    done = await agent(tmp_path, *arguments)
    assert done.code == 2
    assert done.output == ""
    assert said in done.errors.replace("\n", " ")
    assert "Traceback" not in done.errors


async def test_help_says_what_it_takes(tmp_path: Path) -> None:
    done = await agent(tmp_path, "--help")
    assert done.code == 0
    for word in (
        "SCRIPT|PROMPT",
        "--model",
        "--json",
        "--allow",
        "--wait",
        "approval_id",
        "--directory",
        "exit code",
        "141",
    ):
        assert word in done.output


# ---- Real models -------------------------------------------------------------


def keys(url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": f"{url}/v1",
        "NO_PROXY": "127.0.0.1",
    }


@pytest.mark.parametrize("model", ["claude-test", "gpt-test"])
async def test_a_real_model_tells_the_same_events(tmp_path: Path, model: str) -> None:
    """It streams, calls two tools in one message, and answers."""
    claude = model.startswith("claude")
    pytest.importorskip("anthropic" if claude else "openai")
    bash = '{"command": "echo from the $0"}'
    if claude:
        first = web.of_anthropic(
            web.text_block("I ", "look."),
            web.tool_block("use_1", "Bash", bash),
            web.tool_block("use_2", "TaskList", "{}"),
            stop="tool_use",
        )
        last = web.of_anthropic(web.text_block("All ", "is well."))
    else:
        deltas = [
            *web.says("I ", "look."),
            *web.calls(0, "use_1", "Bash", bash),
            *web.calls(1, "use_2", "TaskList", "{}"),
        ]
        first = web.of_openai(*deltas, finish="tool_calls")
        last = web.of_openai(*web.says("All ", "is well."))
    async with open_model_server(web.streams(first), web.streams(last)) as server:
        done = await agent(
            tmp_path,
            "Is all well?",
            "--model",
            model,
            "--permission-mode",
            "bypass",
            "--json",
            **keys(server.url),
        )
    assert (done.code, done.errors) == (0, "")
    events = done.of_agents()
    assert [event.text for event in events if isinstance(event, TextDelta)] == [
        "I ",
        "look.",
        "All ",
        "is well.",
    ]
    kinds = [type(event).__name__ for event in events]
    assert kinds.count("ToolStarted") == kinds.count("ToolCompleted") == 2
    assert kinds.count("TokensUsed") == 2
    assert kinds[-1] == "FinalResult"
    sent = [request.body for request in server.requests]
    assert {"Bash", "TaskList", "Agent"} <= {
        tool.get("name") or tool["function"]["name"] for tool in sent[0]["tools"]
    }
    assert "Is all well?" in str(sent[0]["messages"])
    assert "from the" in str(sent[1]["messages"])


async def test_a_request_that_is_made_again_is_shown_with_its_reason_and_its_wait(
    tmp_path: Path,
) -> None:
    """Nobody waits without knowing for what."""
    pytest.importorskip("anthropic")
    error = web.anthropic_error("overloaded_error", "too many of you")
    busy = web.fails(529, error, retry_after_ms="20")
    yes = web.streams(web.of_anthropic(web.text_block("All is well.")))
    async with open_model_server(busy, yes) as server:
        done = await agent(
            tmp_path, "Hello", "--model", "claude-test", **keys(server.url)
        )
    assert done.code == 0
    (line,) = [line for line in done.output.splitlines() if " retries " in line]
    assert "after try 1: HTTP 529, overloaded_error: too many of you" in line


@pytest.mark.parametrize("model", ["claude-test", "gpt-test"])
async def test_an_error_of_the_api_is_a_failure_of_the_command(
    tmp_path: Path, model: str
) -> None:
    """HL5, AG13: it neither hangs nor looks like an answer."""
    claude = model.startswith("claude")
    pytest.importorskip("anthropic" if claude else "openai")
    make = web.anthropic_error if claude else web.openai_error
    error = web.fails(401, make("authentication_error", "invalid key"))
    async with open_model_server(error) as server:
        done = await agent(tmp_path, "Hello", "--model", model, **keys(server.url))
    assert done.code == 1
    assert "invalid key" in done.output
    assert "agent: failed" in done.output
    assert "Traceback" not in done.errors + done.output
