"""The page on what is deterministic: each place that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import supervisor.simulation
from tests.tutorial import ROOT

PAGE = (ROOT / "docs/determinism.md").read_text(encoding="utf-8")

HERE = Path(supervisor.simulation.__file__).parent
TRIO = Path(trio.__file__).parent

_PLACES = re.compile(r"`([\w/]+\.py)`((?:(?:,? and |,? )`\w+`)*)")


def places() -> list[tuple[str, str]]:
    return [
        (file, name)
        for file, names in _PLACES.findall(PAGE)
        for name in re.findall(r"`(\w+)`", names) or [""]
    ]


@pytest.mark.parametrize(("file", "name"), dict.fromkeys(places()))
def test_each_place_is_there(file: str, name: str) -> None:
    path = TRIO.parent / file if file.startswith("trio/") else HERE / file
    if file == "trio/_core/_io_epoll.py" and not path.is_file():
        pytest.skip("another system")
    source = path.read_text(encoding="utf-8")
    wanted = rf"^\s*(?:async )?(?:def|class) {name}\b|^{name}\b"
    assert not name or re.search(wanted, source, re.MULTILINE), f"{file} has no {name}"


def test_the_page_names_many_places_of_both() -> None:
    files = [file for file, _ in places()]
    assert len([it for it in files if it.startswith("trio/")]) > 10
    assert len([it for it in files if not it.startswith("trio/")]) > 15
