"""The table of rules in behaviours.md names tests that exist and cite them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WANTED = {
    "SH": [1, 2, 3, 6, 7, 8, 9, 11, 12, 16, 24, 33, 40],
    "OF": [*range(1, 18)],
    "N": [1, 2, 4, *range(6, 13), *range(15, 50)],
    "BG": [*range(1, 10)],
    "CO": [*range(1, 16)],
    "SD": [*range(1, 14)],
    "SM": [1, 2, 3, 5, 6, 7, 8, *range(10, 15), *range(24, 40)],
    "AG": [*range(1, 42)],
    "TR": [*range(1, 21)],
    "HK": [*range(1, 10)],
    "PM": [*range(1, 14)],
    "HL": [*range(1, 16)],
}


def text() -> str:
    return Path(__file__).with_name("behaviours.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text().splitlines()
        if re.match(r"\| [A-Z]+\d", line)
    ]


@cache
def docstrings(path: str) -> dict[str, str]:
    """Map the tests of a file to what they say."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_rule_has_one_row_and_a_test_or_a_reason() -> None:
    """No rule is forgotten, and none is left out without a word why."""
    table = rows()
    assert [row[0] for row in table] == [
        f"{kind}{number}" for kind, numbers in WANTED.items() for number in numbers
    ]
    for id, rule, status, tests in table:
        assert rule, id
        if status.startswith("left out: "):
            assert not tests, id
        else:
            assert status == "built" or status.startswith("deviation: "), id
            assert 1 <= tests.count("`") // 2 <= 3, id


def test_the_list_at_the_end_is_of_those_that_are_left_out() -> None:
    """With the reason that the table has, each on its line."""
    listed = text().partition("\n## Not built\n")[2].partition("\nOf rules")[0]
    assert listed.strip().splitlines() == [
        f"- {id}, {rule}: {status.removeprefix('left out: ')}."
        for id, rule, status, _ in rows()
        if status.startswith("left out: ")
    ]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_tests_named_exist_and_cite_the_rule(row: list[str]) -> None:
    """A test that was renamed is missed here."""
    id, _, _, tests = row
    for test in re.findall(r"`([^`]+)`", tests):
        path, _, name = test.partition("::")
        assert name in docstrings(path), f"there is no test {test}"
        assert re.search(rf"\b{id}\b", docstrings(path)[name]), test
