"""What users import, and from where: `public_names.txt` has a line for each.

A name that is offered has a line, and a line that is taken away is a name that users
lose: both are seen in a diff.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import FunctionType
from typing import get_type_hints

import attrs
import pytest

from bench.house import modules, public_names

PAIRS = [
    tuple(line.split())
    for line in (Path(__file__).parent / "public_names.txt").read_text().splitlines()
]

UNRESOLVED = {"AgentContext", "AgentPolicy"}
"""Of these one field is of a class that is there for type checkers only."""


@pytest.mark.parametrize(("module", "name"), PAIRS)
def test_a_public_name_is_imported_from_where_it_always_was(
    module: str, name: str
) -> None:
    offered = getattr(importlib.import_module(module), name)
    if isinstance(offered, type | FunctionType):
        # Of one that two modules offer, the one that is nearest to its meaning.
        homes = {home for home, other in PAIRS if other == name}
        assert offered.__module__ in homes, "`__module__` is where users import it"


@pytest.mark.parametrize(
    ("module", "name"),
    [pair for pair in PAIRS if not pair[0].startswith("supervisor.simulation")],
)
def test_the_fields_of_a_public_class_have_their_types_for_cattrs(
    module: str, name: str
) -> None:
    """It would look for their names in the public module, which has not all."""
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and attrs.has(kind)) or name in UNRESOLVED:
        return
    types = get_type_hints(kind)
    for field in attrs.fields(kind):
        assert isinstance(field.type, str) or field.type == types[field.name]


def test_every_public_name_has_its_line_and_stands_once() -> None:
    offered = [
        (module, name)
        for module, names in public_names(modules()).items()
        for name in names
    ]
    assert sorted(offered) == PAIRS
