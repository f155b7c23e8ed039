"""What users import, and from where: `public_names.txt` has a line for each.

A name that is offered has a line, and a line that is taken away is a name that users
lose: both are seen in a diff.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import FunctionType

import pytest

from bench.house import modules, public_names

PAIRS = [
    tuple(line.split())
    for line in (Path(__file__).parent / "public_names.txt").read_text().splitlines()
]


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_a_public_name_is_imported_from_where_it_always_was(
    module: str, name: str
) -> None:
    offered = getattr(importlib.import_module(module), name)
    if isinstance(offered, type | FunctionType):
        # Of one that two modules offer, the one that is nearest to its meaning.
        homes = {home for home, other in PAIRS if other == name}
        assert offered.__module__ in homes, "`__module__` is where users import it"


def test_every_public_name_has_its_line_and_stands_once() -> None:
    offered = [
        (module, name)
        for module, names in public_names(modules()).items()
        for name in names
    ]
    assert sorted(offered) == PAIRS
