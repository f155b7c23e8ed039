"""The garbage collector looks less often while a long transcript is read, and while many
tasks are stopped."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from actors._kernel.collector import fewer_collections


@pytest.fixture(autouse=True)
def threshold() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_the_threshold_is_as_before_also_after_an_error_or_for_two_at_once(
    threshold: tuple[int, int, int],
) -> None:
    """PF11, PF12."""
    with pytest.raises(KeyError), fewer_collections():
        assert gc.get_threshold()[0] > threshold[0]
        with fewer_collections():
            pass
        assert gc.get_threshold()[0] > threshold[0]
        raise KeyError
    assert gc.get_threshold() == threshold


@pytest.mark.parametrize("chosen", [(0, 10, 10), (5_000_000, 10, 10), (500, 5, 5)])
def test_what_the_program_chooses_meanwhile_stays(chosen: tuple[int, int, int]) -> None:
    """PF11, PF12."""
    with fewer_collections():
        gc.set_threshold(*chosen)
        with fewer_collections():
            pass
    assert gc.get_threshold() == chosen
