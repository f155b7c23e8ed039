"""The locks of a directory: what a process remembers of those it has."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from actors._system import share as _share
from actors.env import real_env


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a name locked")
@pytest.mark.parametrize("ends", ["released", "closed", "unseen"])
def test_nothing_is_remembered_of_claims_that_have_ended(
    tmp_path: Path, ends: str
) -> None:
    """P1: nor of a directory in the place of which there is another."""
    held, directory = set(_share._held), tmp_path / "tasks"
    directory.mkdir()
    share = real_env().files.share(directory)
    assert share.claim("a") is None
    assert share.claim("b") is None
    if ends != "unseen":
        before = directory.rename(tmp_path / "before")
        shutil.copytree(before, directory)
        assert share.holder("c") is None  # it looks where the directory is
        assert len(_share._held - held) == 2
    if ends == "released":
        share.release("a")
        share.release("b")
        assert _share._held == held
    share.close()
    assert _share._held == held
