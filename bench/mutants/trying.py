"""Puts one mutant through the budget, in a copy of the packages and a process of its
own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import attrs

from ._mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]

CPU = 60
"""Seconds of CPU after which a mutant counts as alive."""

_COPIED = ("actors", "supervisor", "bench/mutants", "bench/__init__.py")


@attrs.frozen
class Verdict:
    """What the budget has said of a mutant; of the unchanged code, if that is None."""

    mutant: Mutant | None
    seed: int
    found_by: str
    """The checker, or the sweep, and the program; "" if nothing was found."""
    text: str
    tape: str
    runs: int
    seconds: float
    failure: str
    """Why there is no verdict; "" if there is one."""

    @property
    def is_good(self) -> bool:
        """Whether it is as it should be."""
        return not self.failure and bool(self.found_by) == (self.mutant is not None)

    def row(self) -> tuple[str, ...]:
        """Return the cells of its line."""
        name = f"(none, seed {self.seed})" if self.mutant is None else self.mutant.name
        end = self.failure or self.found_by
        if not end:
            end = "nothing" if self.mutant is None else "ALIVE"
        promise = "" if self.mutant is None else self.mutant.promise
        tape = self.tape if len(self.tape) < 90 else f"{self.tape[:80]} ... (--json)"
        return name, promise, end, str(self.runs), f"{self.seconds:.1f}", tape

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        found = attrs.asdict(self, recurse=False)
        mutant = self.mutant
        found["mutant"] = None if mutant is None else attrs.asdict(mutant)
        found["is_good"] = self.is_good
        return found


def misfit(mutant: Mutant) -> str:
    """Return what is wrong with a mutant; "" if it fits the code."""
    path = ROOT / mutant.file
    if not mutant.file.startswith(("actors/", "supervisor/")) or not path.is_file():
        return f"mutant {mutant.name}: there is no file {mutant.file!r} to change"
    try:
        compile(mutant.apply(path.read_text(encoding="utf-8")), mutant.file, "exec")
    except (ValueError, SyntaxError) as error:
        return f"mutant {mutant.name}: {error}"
    return ""


def try_one(mutant: Mutant | None, seed: int) -> Verdict:
    """Put a mutant through the budget; None is the unchanged code."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            source, target = ROOT / name, copy / name
            if source.is_dir():
                leave = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target, ignore=leave)
            else:
                shutil.copy(source, target)
        if mutant is not None:
            path = copy / mutant.file
            path.write_text(mutant.apply(path.read_text("utf-8")), encoding="utf-8")
        _compiled(copy, mutant)
        done = subprocess.run(
            [sys.executable, "-m", "bench.mutants.budget", str(seed), str(CPU)],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(_bytecode(copy / "of.py").parent, ignore_errors=True)
    lines = done.stdout.splitlines()
    said: dict[str, Any] = {}
    if done.returncode == 0 and lines:
        said = json.loads(lines[-1])
        failure = ""
    elif done.returncode == -9 or done.returncode == -24:
        failure = f"no verdict in {CPU} s of CPU"
    else:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        failure = f"exit code {done.returncode}: {last[:200]}"
    return Verdict(
        mutant=mutant,
        seed=seed,
        found_by=said.get("by", ""),
        text=said.get("text", done.stderr[-2000:] if failure else ""),
        tape=said.get("tape", ""),
        runs=said.get("runs", 0),
        seconds=said.get("seconds", 0.0),
        failure=failure,
    )


def _compiled(copy: Path, mutant: Mutant | None) -> None:
    """Give a copy the bytecode of what it does not change: to compile all of it takes longer
    than most mutants live."""
    changed = None if mutant is None else copy / mutant.file
    for path in copy.rglob("*.py"):
        known = _bytecode(ROOT / path.relative_to(copy))
        if path != changed and known.is_file():
            _bytecode(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, _bytecode(path))


def _bytecode(path: Path) -> Path:
    """Where Python keeps it; not in the copy, if PYTHONPYCACHEPREFIX is set."""
    return Path(cache_from_source(str(path)))
