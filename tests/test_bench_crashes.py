"""The crash campaign of `bench`: it runs, and nothing that it looks for escapes it."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bench.crashes._judge import Found, Life, Line, judge
from bench.crashes._plan import Plan, Whole, plan
from tests.conftest import LIMIT

WHOLE = Whole(seconds=1.0, appends=80, replaces=6)
XML = "<status>completed</status>"
CRASH = "<status>failed</status>\n<ended-by>crash</ended-by>"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_in_a_few_moments_nothing_is_lost() -> None:
    command = [sys.executable, "-m", "bench.crashes", "--moments", "4", "--seed", "5"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 moments, 2 at writes of the journal and 2 by the clock" in done.stdout
    assert "moments with something wrong: 0" in done.stdout


def test_the_same_seed_and_number_are_the_same_moment() -> None:
    moments = [plan(7, number, WHOLE) for number in range(100)]
    assert moments == [plan(7, number, WHOLE) for number in range(100)]
    assert moments != [plan(8, number, WHOLE) for number in range(100)]


def test_half_of_the_moments_are_at_writes_and_all_kinds_are_among_them() -> None:
    moments = [plan(7, number, WHOLE) for number in range(300)]
    at_write = [it for it in moments if it.is_at_write]
    assert len(at_write) == 150
    assert all(_writes(it) for it in at_write)
    assert not any(_writes(it) for it in moments if not it.is_at_write)
    kinds = Counter(
        (life, blow.write, blow.place)
        for it in at_write
        for life, blow in (("first", it.first), ("second", it.second))
        if blow is not None and blow.write is not None
    )
    for life in ("first", "second"):
        for write in ("append", "replace"):
            for place in ("before", "within", "after"):
                assert kinds[life, write, place] > 0
    assert {it.mode for it in moments} == {"inline", "threaded", "durable"}


def _writes(it: Plan) -> bool:
    blows = [blow for blow in (it.first, it.second) if blow is not None]
    return any(blow.write is not None for blow in blows)


def launched(task: str, kind: str, lines: int | None, **more: Any) -> Line:
    line = {"say": "launched", "task": task, "kind": kind, "lines": lines}
    return line | {"notify": "wake", "way": "launch", "parent": None} | more


def seen(note: str, task: str, status: str, xml: str) -> Line:
    line = {"say": "seen", "note": note, "task": task, "status": status, "xml": xml}
    return line | {"owner": "main", "kind": "task"}


def there(
    what: str, *tasks: tuple[str, str], unfinished: list[str] | None = None
) -> Line:
    known = [{"task": task, "status": status} for task, status in tasks]
    return {"say": what, "tasks": known, "unfinished": unfinished or []}


def lives() -> list[Life]:
    """A program with a shell that ended, one that did not, and an agent; it had taken
    one notification, and not acknowledged it."""
    return [
        Life(
            part="first",
            lines=[
                launched("s1", "shell well", 2),
                launched("s2", "shell never", None),
                launched("a1", "agent", 0),
                launched("s3", "shell well", 2),
                {"say": "waited", "task": "s1", "status": "completed"},
                seen("n1", "s1", "completed", XML),
                seen("n2", "s3", "completed", XML),
                {"say": "acking", "note": "n2"},
                {"say": "acked", "note": "n2"},
            ],
            code=-9,
            is_killed=True,
            is_whole=False,
        ),
        Life(
            part="last",
            lines=[
                there("opened", ("s1", "completed"), ("s2", "failed")),
                seen("n1", "s1", "completed", XML),
                {"say": "acking", "note": "n1"},
                {"say": "acked", "note": "n1"},
                seen("n3", "s2", "failed", CRASH),
                {"say": "acking", "note": "n3"},
                {"say": "acked", "note": "n3"},
            ],
            code=0,
            is_killed=False,
            is_whole=True,
        ),
        Life(
            part="look",
            lines=[there("opened", unfinished=["a1"]), there("there")],
            code=0,
            is_killed=False,
            is_whole=True,
        ),
    ]


OUTPUTS = {
    "s1": b"line 1 of a\nline 2 of a\n",
    "s2": b"line 1 of b\n",
    "s3": b"line 1 of c\nline 2 of c\n",
}
JOURNAL = b'{"k":"journal","v":1,"at":"2026-11-23T00:00:00.000+00:00"}\n'


def found(**more: Any) -> Found:
    known: dict[str, Any] = {
        "lives": lives(),
        "outputs": dict(OUTPUTS),
        "journal": JOURNAL,
        "survivors": [],
    }
    return Found(**(known | more))


def test_where_nothing_was_lost_nothing_is_wrong() -> None:
    assert judge(found()) == []


def _without(say: str, **what: str) -> Callable[[list[Life]], None]:
    def change(lives: list[Life]) -> None:
        life = lives[1]
        left = [it for it in life.lines if not _is(it, say, what)]
        assert len(left) < len(life.lines)
        life.lines[:] = left

    return change


def _is(line: Line, say: str, what: dict[str, str]) -> bool:
    return line["say"] == say and what.items() <= line.items()


def _also(life: int, line: Line) -> Callable[[list[Life]], None]:
    def change(lives: list[Life]) -> None:
        lives[life].lines.append(line)

    return change


def _agent_is_gone(lives: list[Life]) -> None:
    lives[2].lines[0] = there("opened")


def _comes_otherwise(lives: list[Life]) -> None:
    (line,) = (it for it in lives[1].lines if _is(it, "seen", {"note": "n1"}))
    line["xml"] = f"{XML} "


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_also(1, seen("n2", "s3", "completed", XML)), "n2 was acknowledged and comes"),
        (_also(2, seen("n1", "s1", "completed", XML)), "n1 was acknowledged and comes"),
        (_without("seen", note="n1"), "n1 was not acknowledged and is missing"),
        (
            _without("seen", note="n3"),
            "the end of task s2 (shell never) was never told",
        ),
        (_comes_otherwise, "n1 comes again with another xml"),
        (_also(1, seen("n4", "s1", "completed", XML)), "s1 (shell well) has 2 notif"),
        (
            _also(1, {"say": "waited", "task": "s1", "status": "failed"}),
            "task s1 (shell well) has ended in more than one way",
        ),
        (_agent_is_gone, "the end of task a1 (agent) was never told"),
        (_also(2, there("opened", ("s9", "running"))), "task s9 is running at the end"),
        (
            _also(1, seen("n5", "s2", "completed", XML)),
            "task s2 (shell never) ended so",
        ),
    ],
)
def test_what_is_lost_repeated_or_contradicted_is_told(
    change: Callable[[list[Life]], None], told: str
) -> None:
    changed = lives()
    change(changed)
    assert any(told in text for text in judge(found(lives=changed)))


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        (b"line 1 of a\nline 2 ", "the output of s1 ends within a line"),
        (b"line 1 of a\n", "s1 is completed with 1 of 2 lines"),
        (b"line 1 of a\nline 3 of a\n", "line 2 of the output of s1 is 'line 3 of a'"),
        (b"line 1 of a\nline 2 of b\n", "the output of s1 is of ['a', 'b']"),
        (OUTPUTS["s1"] + b"line 3 of a\n", "the output of s1 has 3 lines of 2"),
    ],
)
def test_an_output_that_does_not_end_where_it_was_written_is_told(
    contents: bytes, told: str
) -> None:
    wrong = judge(found(outputs=OUTPUTS | {"s1": contents}))
    assert any(told in text for text in wrong)


def test_a_process_that_is_left_is_told() -> None:
    assert judge(found(survivors=["process 7: sleep"])) == [
        "it survives: process 7: sleep"
    ]


def test_what_the_journal_has_open_is_told() -> None:
    lines = JOURNAL + b'{"k":"start","r":"s8-000001","y":"local_bash"}\n'
    ended = b'{"k":"end","r":"s8-000001","s":"completed","n":"n000001"}\n'
    acked = b'{"k":"ack","n":"n000001"}\n'
    assert judge(found(journal=lines)) == ["run s8-000001 has no end in the journal"]
    assert judge(found(journal=lines + ended)) == [
        "notification n000001 of run s8-000001 is open in the journal"
    ]
    assert judge(found(journal=lines + ended + acked)) == []
    (torn,) = judge(found(journal=JOURNAL + b'{"k":'))
    assert "torn" in torn


@pytest.mark.parametrize(("part", "code"), [(0, 0), (1, 1), (1, -9)])
def test_a_program_that_ends_otherwise_is_told(part: int, code: int) -> None:
    changed = lives()
    before = changed[part]
    changed[part] = Life(
        part=before.part,
        lines=before.lines,
        code=code,
        is_killed=before.is_killed,
        is_whole=before.is_whole,
    )
    (text,) = judge(found(lives=changed))
    assert "ended" in text
