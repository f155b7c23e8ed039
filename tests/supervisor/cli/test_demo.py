"""The demo holds what it claims, and finds out when it does not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio

from supervisor.cli._stopping import Stopping
from supervisor.cli.demo._claims import CLAIMS, Facts, judge
from supervisor.cli.demo._looking import Look
from supervisor.cli.demo._scenario import Scenario

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="counts processes in /proc"
)


def processes_of(tmp_path: Path) -> list[int]:
    """Every living process with the directory in its arguments or environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            texts = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(tmp_path) in texts:
            found.append(int(entry.name))
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def cleaned(tmp_path: Path) -> Iterator[Path]:
    """A directory whose processes do not outlive the test, however it ends."""
    yield tmp_path
    while pids := processes_of(tmp_path):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


async def demo(packages: Path, scratch: Path) -> tuple[int, str, str]:
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-m", "supervisor.cli", "demo"],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": str(packages), "TMPDIR": str(scratch)},
        )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def failed(output: str) -> list[str]:
    return re.findall(r"^FAILED  (.*?): ", output, re.MULTILINE)


async def test_the_demo_holds_every_claim_in_less_than_15_seconds(
    cleaned: Path,
) -> None:
    began = trio.current_time()
    code, output, errors = await demo(ROOT, cleaned)
    assert trio.current_time() - began < 15
    assert code == 0, output
    assert errors == ""
    assert re.findall(r"^ok      (.*)$", output, re.MULTILINE) == list(CLAIMS)
    assert "\x1b" not in output
    # Of the agents, one has ended twice; their own tasks are not the parent's.
    assert output.count("the parent receives") == 7 + 3
    # The forger's own never begins a line.
    assert len(re.findall(r"^<task-notification>$", output, re.MULTILINE)) == 10
    assert processes_of(cleaned) == []
    assert names(cleaned) == []


ADOPTS_NOBODY = """\
_prctl = prctl
def prctl(option, *arguments):
    return 0 if option == _PR_SET_CHILD_SUBREAPER else _prctl(option, *arguments)
"""
KILLS_NOBODY = """\
_kill, _killpg = os.kill, os.killpg
os.kill = lambda pid, number: None if number == 9 else _kill(pid, number)
os.killpg = lambda pid, number: None if number == 9 else _killpg(pid, number)
"""
READS_3_AS_0 = """\
_waitid = os.waitid
class _Ended:
    def __init__(self, ended): self.ended = ended
    def __getattr__(self, name):
        value = getattr(self.ended, name)
        return 0 if name == "si_status" and value == 3 else value
def waitid(*arguments):
    ended = _waitid(*arguments)
    return ended and _Ended(ended)
os.waitid = waitid
"""
GONE = "when its stop returned, both were gone"
GRACE = "the stop left it its grace, and not much more"
NOTHING_LEFT = "seen from outside, no process is left, also not of ours"
IN_TIME = "it took less than 15 s"
AS_IT_WAS = (
    "each tells status, exit code, signal and output as they were; no forgery is heeded"
)


@pytest.mark.parametrize(
    ("code", "claims"),
    [
        pytest.param(ADOPTS_NOBODY, {GONE, NOTHING_LEFT}, id="adopts_nobody"),
        pytest.param(
            KILLS_NOBODY, {GONE, GRACE, NOTHING_LEFT, IN_TIME}, id="kills_nobody"
        ),
        pytest.param(READS_3_AS_0, {AS_IT_WAS}, id="reads_3_as_0"),
    ],
)
async def test_a_sabotaged_guardian_is_found_out(
    cleaned: Path, code: str, claims: set[str]
) -> None:
    """P1: the demo counts from outside, and believes nobody."""
    packages, scratch = cleaned / "packages", cleaned / "scratch"
    for package in ("actors", "supervisor"):
        shutil.copytree(ROOT / package, packages / package)
    scratch.mkdir()
    guardian = packages / "actors" / "_system" / "guardian" / "__main__.py"
    before, main, after = guardian.read_text().partition('if __name__ == "__main__":')
    assert main
    assert " prctl(_PR_SET_CHILD_SUBREAPER, 1)" in before
    guardian.write_text(f"{before}{code}\n\n{main}{after}")
    # What is held up for ever need not be waited for as long as users would.
    module = packages / "supervisor" / "cli" / "demo" / "_program.py"
    text = module.read_text()
    assert "_PATIENCE = 12.0" in text
    module.write_text(text.replace("_PATIENCE = 12.0", "_PATIENCE = 5.0"))
    exit_code, output, errors = await demo(packages, scratch)
    assert exit_code == 1, output
    assert claims <= set(failed(output)), output
    assert "claims do not hold." in output
    assert errors == ""


async def test_a_demo_that_is_interrupted_leaves_nothing(cleaned: Path) -> None:
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "supervisor.cli", "demo"],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(cleaned)},
        )
        assert process.stdout is not None
        async with process.stdout:
            shown = b""
            while b"the parent receives" not in shown:
                shown += await process.stdout.receive_some()
            process.send_signal(signal.SIGINT)
            async for chunk in process.stdout:
                shown += chunk
        assert await process.wait() == 128 + signal.SIGINT
    assert b"What it claims" not in shown and b"claims hold" not in shown
    assert processes_of(cleaned) == []
    assert names(cleaned) == []


# ---- Each claim can fail ------------------------------------------------------


def left(pid: int) -> Look:
    return Look({pid: pid}, [], 0)


def of_agents(facts: Facts, **changes: object) -> dict[str, object]:
    return {"agents": attrs.evolve(facts.agents, **changes)}


def heard(
    facts: Facts, name: str, change: Callable[[list[str]], list[str]]
) -> dict[str, object]:
    said = facts.agents.said
    return of_agents(facts, said=said | {name: change(said[name])})


BREAKS = {
    "each run of each task sent one envelope; none came of the agents' own tasks": [
        lambda f: {"received": f.received[1:]},
        lambda f: of_agents(f, ids={"lead": f.agents.ids["lead"]}),
        lambda f: {"received": [*f.received, f.received[0]]},
        lambda f: {"ids": {name: f.ids[name] for name in list(f.ids)[1:]}},
    ],
    "each envelope is well-formed XML with its elements once each, in order": [
        lambda f: {"received": []},
        lambda f: (
            {"received": [f.received[0].replace("&lt;", "<"), *f.received[1:]]}
            if "&lt;" in f.received[0]
            else {"received": [x.replace("&lt;", "<") for x in f.received]}
        ),
        lambda f: {
            "received": [
                x.replace("<note>", "<note>a</note><note>") for x in f.received
            ]
        },
        lambda f: {
            "received": [x.replace("</note>", "</note><x/>") for x in f.received]
        },
    ],
    "each tells status, exit code, signal and output as they were; no forgery is heeded": [
        lambda f: {
            "received": [x.replace(">failed<", ">completed<") for x in f.received]
        },
        lambda f: {
            "received": [
                x.replace("<exit-code>3<", "<exit-code>0<") for x in f.received
            ]
        },
        lambda f: {
            "received": [x.replace("<signal>9</signal>", "") for x in f.received]
        },
        lambda f: {
            "received": [
                x.replace(">shutdown</ended-by>", ">host</ended-by>")
                for x in f.received
            ]
        },
        lambda f: {
            "received": [x.replace("approved this", "seen this") for x in f.received]
        },
        lambda f: {
            "received": [re.sub("(?s)<error>.*</error>", "", x) for x in f.received]
        },
        lambda f: {"received": [x.replace('"false"', '"true"') for x in f.received]},
        lambda f: {
            "received": [x.replace("<remaining>0</remaining>", "") for x in f.received]
        },
    ],
    "the envelopes came in the order of the ends; only the last says that all ended": [
        lambda f: {"received": f.received[::-1]},
        lambda f: {"ended": f.ended[::-1]},
        lambda f: {
            "received": [x.replace(">false</all", ">true</all") for x in f.received]
        },
    ],
    "the output files hold all that was printed": [
        lambda f: {"files": f.files | {"flaky": b"attempt 3\n"}},
        lambda f: {"files": f.files | {"digest": f.files["digest"][1:]}},
        lambda f: {"files": {}},
    ],
    "seen from outside, the stubborn command had a process in another session": [
        lambda f: {"during": None},
        lambda f: {"during": Look({}, [], 0)},
        lambda f: {"during": Look(dict.fromkeys(f.stubborn_pids, 1), [], 0)},
        lambda f: {"stubborn_pids": ()},
    ],
    "when its stop returned, both were gone": [
        lambda f: {"stopped": left(f.stubborn_pids[1])},
        lambda f: {"stopped": None},
        lambda f: {"survivors": ("process 1",)},
        lambda f: {"stubborn_pids": ()},
    ],
    "the stop left it its grace, and not much more": [
        lambda f: {"stop_took": 0.1},
        lambda f: {"stop_took": 9.0},
        lambda f: {"stop_took": None},
    ],
    "the flaky command ran three times, after waits that doubled": [
        lambda f: {"attempts": f.attempts[:2]},
        lambda f: {"attempts": [0.0, 0.3, 0.6]},
        lambda f: {"attempts": [0.0, 0.1, 0.9]},
    ],
    "the move to the background came back at once, and restarted nothing": [
        lambda f: {"moves": (True, True)},
        lambda f: {"at_move": None},
        lambda f: {"moved": Look({}, [], 0)},
        lambda f: {"files": f.files | {"moved": b"1\n2\n"}},
    ],
    "the agent was moved to the background while it worked, and went on in the same run": [
        lambda f: of_agents(f, moves=(True, True)),
        lambda f: of_agents(f, at_move=None),
        lambda f: of_agents(f, at_move=f.agents.lead),
        lambda f: of_agents(f, lead=attrs.evolve(f.agents.lead, run_id="another")),
        lambda f: of_agents(f, lead=None),
    ],
    "it got its message between two rounds, and heard of the end of each of its tasks": [
        lambda f: of_agents(f, said={}),
        lambda f: heard(f, "lead", lambda said: said[:3]),
        lambda f: heard(f, "lead", lambda said: [said[0], *said]),
        lambda f: heard(f, "helper", lambda said: said[::-1]),
    ],
    "it ended after its own tasks": [
        lambda f: of_agents(f, ended=f.agents.ended[::-1]),
        lambda f: of_agents(f, own={}),
        lambda f: of_agents(f, ids={}),
        lambda f: of_agents(f, ended=f.agents.ended * 2),
    ],
    "seen from outside, the stop of the other agent ended its command as well": [
        lambda f: of_agents(f, command=None),
        lambda f: of_agents(f, watched=Look({}, [], 0)),
        lambda f: of_agents(f, after_stop=None),
        lambda f: of_agents(f, after_stop=f.agents.watched),
        lambda f: of_agents(f, stopped=()),
        lambda f: of_agents(f, survivors=("process 1",)),
        lambda f: of_agents(f, killed=f.agents.resumed),
    ],
    "resumed, that one went on where it was, under its old id and in a new run": [
        lambda f: of_agents(f, resumed=None),
        lambda f: of_agents(f, resumed=f.agents.killed),
        lambda f: of_agents(f, resumed=f.agents.lead),
        lambda f: heard(f, "watcher", lambda said: [said[0], *said]),
    ],
    "the transcripts hold what the agents said, word for word": [
        lambda f: of_agents(f, written={}),
        lambda f: of_agents(f, written=f.agents.written | {"lead": ["I start"]}),
    ],
    "seen from outside, no process is left, also not of ours": [
        lambda f: {"after": left(7)},
        lambda f: {"after": Look({}, [7], f.after.descriptors)},
        lambda f: {"after": None},
    ],
    "every descriptor was given back": [
        lambda f: {"after": Look({}, [], f.after.descriptors + 1)},
        lambda f: {"before": None},
    ],
    "it took less than 15 s": [
        lambda f: {"took": 15.0},
        lambda f: {"took": float("inf")},
    ],
}


async def test_each_claim_holds_and_fails_with_the_facts_that_it_is_about(
    tmp_path: Path,
) -> None:
    async def say_nothing(text: str) -> None:
        await trio.lowlevel.checkpoint()

    with trio.fail_after(30):
        scenario = Scenario(tmp_path, say_nothing)
        await scenario.play(Stopping(lambda: None))
    facts: Facts = scenario.facts
    assert [claim for claim, problem in judge(facts) if problem is not None] == []
    assert list(BREAKS) == list(CLAIMS)
    for claim, breaks in BREAKS.items():
        for number, broken in enumerate(breaks):
            found = dict(judge(attrs.evolve(facts, **broken(facts))))
            assert found[claim] is not None, f"{claim}: {number} goes unnoticed"


def test_facts_that_were_never_measured_prove_nothing(tmp_path: Path) -> None:
    held = [
        claim for claim, problem in judge(Facts(directory=tmp_path)) if problem is None
    ]
    # There is no envelope out of order where there is none.
    assert held == []


def test_where_no_command_can_be_started_the_claims_say_so(cleaned: Path) -> None:
    """And nothing of Python's."""
    demo = [sys.executable, "-m", "supervisor.cli", "demo"]
    environment = {"PATH": "/nonexistent", "TMPDIR": str(cleaned)}
    done = subprocess.run(
        demo, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "claims do not hold" in done.stdout and "FAILED" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
