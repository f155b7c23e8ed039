"""The table of rules in b-ids.md names tests that exist and cite them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = {
    *range(1, 7), *range(8, 16), *range(17, 50), 53, 57, 59, 65, 66, 67, 72, 75, 76, 77,
}  # fmt: skip


def rows():
    text = Path(__file__).with_name("b-ids.md").read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| B\d", line)
    ]


def docstring(test):
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ):
            return ast.get_docstring(node) or ""
    raise AssertionError(f"there is no test {test}")


def test_every_rule_has_its_row_and_its_status():
    """B1 to B81, each once; what the project promises is built."""
    table = rows()
    assert [row[0] for row in table] == [f"B{n}" for n in range(1, 82)]
    for id, _, status, tests in table:
        built = int(id[1:]) in BUILT
        assert status.startswith(
            ("built", "deviation: ") if built else "not built: "
        ), id
        assert bool(tests) is built, id


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_tests_named_exist_and_cite_the_rule(row):
    """A test that was renamed is missed here; a deviation is called one there."""
    id, _, status, tests = row
    docstrings = [docstring(test) for test in re.findall(r"`([^`]+)`", tests)]
    for text in docstrings:
        assert re.search(rf"\b{id}\b", text)
    if status.startswith("deviation"):
        assert any("eviation" in text for text in docstrings)
