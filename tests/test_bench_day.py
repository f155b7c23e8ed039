"""The long runs of `bench`, in small: no test judges a time or a machine."""

from __future__ import annotations

import os
import sys

import pytest

from bench import crowd, load, soak
from bench.soak import Count, growth

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it counts what is in /proc"
)
FLAT = Count(rss_kb=50_000, descriptors=12, threads=2, processes=3, files=60)


def test_what_stays_or_shrinks_has_not_grown() -> None:
    fewer = Count(rss_kb=54_000, descriptors=11, threads=1, processes=2, files=32)
    assert growth([FLAT] * 24) == []
    assert growth([FLAT] * 23 + [fewer]) == []


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (Count(55_001, 12, 2, 3, 60), "memory from 50000 kB to 55001 kB"),
        (Count(50_000, 13, 2, 3, 60), "descriptors from 12 to 13"),
        (Count(50_000, 12, 3, 3, 60), "threads from 2 to 3"),
        (Count(50_000, 12, 2, 4, 60), "processes from 3 to 4"),
        (Count(50_000, 12, 2, 3, 61), "files from 60 to 61"),
    ],
)
def test_what_has_grown_is_named_with_its_figures(last: Count, told: str) -> None:
    assert growth([FLAT] * 23 + [last]) == [told]


@linux
def test_a_short_day_of_tasks_is_told_hour_by_hour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    soak.main(["--shells", "48", "--notifications", "240"])
    *_, last, verdict = capsys.readouterr().out.splitlines()
    assert last.split()[:3] == ["24", "48", "240"]
    assert "grew" in verdict


@pytest.mark.skipif(os.name != "posix", reason="there are no shells here")
@pytest.mark.parametrize("places", ["1", "3"])
def test_in_a_small_crowd_nothing_is_wrong(
    capsys: pytest.CaptureFixture[str], places: str
) -> None:
    code = crowd.main(["--agents", "12", "--rounds", "3", "--places", places])
    shown = capsys.readouterr().out
    assert "12 ends, 12 notifications, 6 moved" in shown
    assert "WRONG" not in shown and code == 0


def test_a_light_load_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    load.main(["--shells", "3", "--seconds", "0.2"])
    shown = capsys.readouterr().out
    assert "3 shells printed" in shown
    assert "longest step" in shown


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (soak.main, ["--shells", "0"]),
        (soak.main, ["--shells", "9", "--notifications", "8"]),
        (crowd.main, ["--places", "0"]),
        (load.main, ["--shells", "0"]),
        (load.main, ["--seconds", "0"]),
        (load.main, ["--seconds", "nan"]),
    ],
)
def test_impossible_sizes_are_refused(main: object, arguments: list[str]) -> None:
    assert callable(main)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
