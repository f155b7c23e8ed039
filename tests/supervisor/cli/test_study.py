"""``trio-supervisor sim study``: what it writes, with matplotlib and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.cli._command import command
from supervisor.simulation.studies import study


@pytest.mark.parametrize("name", ["restarts", "cancels"])
def test_the_command_writes_rows_table_and_plot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for folder in ("one", "other"):
        out = str(tmp_path / folder)
        assert command(["sim", "study", name, "--small", "--out", out]) == 0
    plots = [(tmp_path / it / "plot.svg").read_text() for it in ("one", "other")]
    assert plots[0] == plots[1]
    for words in study(name).measures.values():
        assert words in plots[0]
    table = (tmp_path / "one" / "table.md").read_text()
    assert table in capsys.readouterr().out


def test_without_matplotlib_the_command_says_that_there_is_no_plot(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command(["sim", "study", "cancels", "--small", "--out", str(tmp_path)]) == 0
    assert "pip install 'trio-supervisor[plots]'" in capsys.readouterr().out
    assert {it.name for it in tmp_path.iterdir()} == {"rows.csv", "table.md"}
    (tmp_path / "file").write_text("")
    assert (
        command(["sim", "study", "cancels", "--small", "--out", str(tmp_path / "file")])
        == 2
    )


def test_a_study_is_written_into_a_folder_of_its_own_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("mine")
    assert command(["sim", "study", "cancels", "--small"]) == 0
    files = [str(Path("study-cancels", it)) for it in ("rows.csv", "table.md")]
    assert f"written: {', '.join(files)}\n" in capsys.readouterr().out
    assert all(Path(it).read_text().endswith("\n") for it in files)
    assert Path("rows.csv").read_text() == "mine"
    assert {it.name for it in tmp_path.iterdir()} == {"rows.csv", "study-cancels"}
