"""Every benchmark runs, once and small; no test judges a time."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from bench import cost
from bench.__main__ import all_cases, main, select
from bench._case import Case, Figures, Result, Row, Spread, Target, percentile, run_case
from bench._report import format_number, format_table
from bench.limit import Limit

TARGETED = {f"PF{number}" for number in range(1, 29)}


@pytest.mark.parametrize("case", all_cases(small=True), ids=lambda case: case.name)
def test_the_case_runs_and_every_figure_is_there(case: Case) -> None:
    results = run_case(case, 1, judge=False)
    assert [result.row for result in results] == list(case.rows)
    for result in results:
        for figure in (result.ours, result.base, result.ratio):
            assert math.isfinite(figure.median) and figure.median > 0, result.row.what
        assert result.holds is None


@pytest.mark.parametrize("small", [True, False])
def test_every_figure_that_is_promised_has_a_row_with_its_target(small: bool) -> None:
    """PF1 to PF28."""
    rows = [row for case in all_cases(small=small) for row in case.rows]
    assert {row.id for row in rows if row.target is not None} == TARGETED


def makers_of_cases() -> list[ast.FunctionDef]:
    directory = Path(cost.__file__).parent
    trees = [ast.parse(path.read_text()) for path in directory.glob("*.py")]
    makers = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and "Case" in ast.unparse(node.returns)
    ]
    assert makers
    return makers


def set_twice(function: ast.FunctionDef) -> set[str]:
    """Return the names that it sets twice, or in a loop."""
    names = [
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    loops = [
        node.target
        for node in ast.walk(function)
        if isinstance(node, ast.For | ast.comprehension)
    ]
    looped = {
        node.id
        for target in loops
        for node in ast.walk(target)
        if isinstance(node, ast.Name)
    }
    return looped | {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("maker", makers_of_cases(), ids=lambda maker: maker.name)
def test_what_a_part_measures_with_is_set_once(maker: ast.FunctionDef) -> None:
    """A part runs when all is set up: it would measure with what was set last."""
    used = {
        node.id
        for part in ast.walk(maker)
        if isinstance(part, ast.Lambda)
        for node in ast.walk(part.body)
        if isinstance(node, ast.Name)
        and node.id not in [argument.arg for argument in part.args.args]
    }
    assert used & set_twice(maker) == set()


def case_of(target: Target, *rounds: tuple[float, float]) -> Case:
    """A case that measures 'ours' and 'base' so in its rounds."""
    left = list(rounds)

    def measure() -> Figures:
        ours, base = left.pop(0)
        return {"ours": ours, "base": base}

    row = Row(
        id="PF0", what="a thing", ours="ours", base="base", unit="1/s", target=target
    )
    return Case(name="made up", parts=[measure], rows=[row])


def test_the_ratio_is_taken_within_a_round_and_the_median_is_judged() -> None:
    case = case_of(Target(">=", 2), (30, 10), (100, 100), (2, 1))
    (result,) = run_case(case, 3, judge=True)
    assert result.ratio == Spread(median=2, min=1, max=3)
    assert result.ours.median == 30
    assert result.base.median == 10
    assert result.holds is True


@pytest.mark.parametrize(
    ("target", "holds"),
    [
        (Target(">=", 2), True),
        (Target(">=", 2.1), False),
        (Target("<=", 2), True),
        (Target("<=", 1.9), False),
        (Target("<=", 4, of="ours"), True),
        (Target("<=", 3, of="ours"), False),
    ],
    ids=str,
)
def test_a_target_holds_up_to_its_very_value(target: Target, holds: bool) -> None:
    (result,) = run_case(case_of(target, (4, 2)), 1, judge=True)
    assert result.holds is holds


def test_parts_alternate_so_that_noise_hits_all() -> None:
    order: list[str] = []

    def part(name: str) -> Figures:
        order.append(name)
        return {name: 1.0}

    case = Case(
        name="order", parts=[lambda: part("ours"), lambda: part("base")], rows=[]
    )
    run_case(case, 3, judge=True)
    assert order == ["ours", "base"] * 3


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.95) == 95
    assert percentile([7.0], 0.95) == 7


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0912, "0.0912"),
        (25.04, "25"),
        (999.9, "1000"),
        (4465.2, "4465"),
        (48_700, "48.7k"),
        (999_600, "1M"),
        (6_543_210, "6.54M"),
    ],
)
def test_a_number_is_shown_short(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_the_table_says_what_does_not_hold() -> None:
    def result(holds: bool | None) -> Result:
        one = Spread(median=1, min=1, max=1)
        row = Row(
            id="PF0",
            what="a thing",
            ours="a",
            base="b",
            unit="1/s",
            target=Target(">=", 2),
        )
        return Result(row=row, ours=one, base=one, ratio=one, holds=holds)

    lines = format_table([result(True), result(False), result(None)]).splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["yes", "NO", "2"]


def test_an_unknown_id_is_named_together_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no benchmark 'PF99', only PF1, PF2, .*PF12"):
        select(all_cases(small=True), ["PF1", "PF99"])


def test_the_command_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    main(["--once", "--only", "PF2", "--json", str(file)])
    assert "send to a mailbox of 100 / trio channel(100)" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert {row["id"] for row in report["rows"]} == {"PF2"}
    assert report["rows"][0]["target"] == {"sense": ">=", "value": 10, "of": "ratio"}
    assert report["rows"][0]["holds"] is None
    assert report["once"] is True and report["rounds"] == 1


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--only", "PF99"]])
def test_bad_arguments_end_with_2_and_name_the_value(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part in cost.PARTS for name in cost.PARTS[part]]
)
def test_the_calls_for_a_task_are_counted_and_nearly_the_same_each_time(
    part: str, name: str
) -> None:
    """What two commits are compared by must not depend on the load."""
    program = cost.PARTS[part][name]
    first, second = cost.calls(program, 200), cost.calls(program, 200)
    assert first > 10
    assert second == pytest.approx(first, rel=0.1)


def test_a_task_takes_no_more_calls_than_are_held() -> None:
    """With 3 % of slack, where the figures were taken; elsewhere it says so. In a
    process of its own, where nobody else adds to the calls."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.cost", "--check"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("which is held" in done.stdout) is cost.is_held_here()
    assert ("nothing is compared here" in done.stdout) is not cost.is_held_here()


def test_a_task_that_takes_more_calls_than_are_held_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = sys.version_info[:2], trio.__version__
    monkeypatch.setattr(cost, "_HELD_FOR", here)
    bare = {"bare": cost.PARTS["PF12 stop_all"]["bare"]}
    monkeypatch.setattr(cost, "PARTS", {"PF12 stop_all": bare})
    found = cost.calls(bare["bare"], 50)
    for held, is_more in ((found / 1.02, False), (found / 1.06, True)):
        monkeypatch.setattr(cost, "HELD", {"PF12 stop_all": {"bare": held}})
        with pytest.raises(SystemExit) if is_more else nullcontext():
            cost.main(["--check", "--tasks", "50"])
        assert ("MORE THAN" in capsys.readouterr().out) is is_more


def test_an_idle_task_is_little_work_for_the_collector() -> None:
    """PF12: a full collection looks at all of it."""
    assert 10 < cost.tracked(200) < 26


def test_the_limit_has_told_each_end_once_and_knows_no_task_any_more() -> None:
    async def main() -> None:
        async def work() -> str:
            return "<done>\0"

        async def sleep() -> str:
            await trio.sleep_forever()
            return ""

        async with Limit().opened() as limit:
            task, idle = await limit.launch(work), await limit.launch(sleep)
            assert await task.wait() == "completed"
            await limit.stop_all()
            assert (idle.status, limit.live) == ("killed", {})
            notes = [await anext(limit) for _ in range(2)]
            assert [note.task for note in notes] == [task, idle]
            assert "<result>&lt;done&gt;</result>" in notes[0].xml
            for note in notes:
                note.ack()
            assert limit.unread == {}

    trio.run(main)


def test_the_costs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    cost.main(["--tasks", "20"])
    out = capsys.readouterr().out
    assert all(f"{part}: Python calls a task" in out for part in cost.PARTS)


def test_the_instructions_are_those_of_more_tasks_less_those_of_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the place of valgrind, which takes minutes: 7,000 for each task, and
    some for the start."""
    tool = tmp_path / "valgrind"
    tool.write_text(
        f"#!{sys.executable}\n"
        "import re, sys\n"
        "n = int(re.findall('[0-9]+', sys.argv[-1])[-1])\n"
        "print(f'==1== I   refs:      {1_000_000 + 7_000 * n:,}', file=sys.stderr)\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cost.instructions("PF4 launch to acknowledgement", "bare") == 7_000


def test_a_number_of_tasks_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cost.main(["--tasks", "0"])
    assert "--tasks must be 1 or more, not 0" in capsys.readouterr().err
