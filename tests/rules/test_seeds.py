"""The tables of features in seeds.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rules.test_behaviour_ids import ROOT, docstrings


def tables() -> dict[str, list[list[str]]]:
    """The rows below each heading, cell by cell."""
    text = Path(__file__).with_name("seeds.md").read_text(encoding="utf-8")
    found: dict[str, list[list[str]]] = {}
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("| ")]
        found[heading] = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]
        ]
    return found


FEATURES = [
    pytest.param(row, id=f"{heading[9:12]} {row[0]}"[:60])
    for heading, table in tables().items()
    for row in table
]


def test_there_is_one_table_for_each_document() -> None:
    headings = [heading.partition(":")[0] for heading in tables()]
    assert headings == [f"Document 00{number}" for number in range(5)]
    assert all(len(table) >= 15 for table in tables().values())


@pytest.mark.parametrize("row", FEATURES)
def test_a_feature_has_a_place_and_tests_that_exist_or_a_reason(row: list[str]) -> None:
    """A test that was renamed is missed here, and so is a file that was moved."""
    feature, where, tests = row
    named = re.findall(r"`([^`]+)`", tests)
    assert feature and where
    assert len(named) <= 3
    if not where.startswith(("left out: ", "not built")):
        assert named
    for test in named:
        path, _, name = test.partition("::")
        assert name in docstrings(path), f"there is no test {test}"
    for file in re.findall(r"`((?:actors|supervisor|examples)/[^`:]*)", where):
        assert (ROOT / file).exists(), file
