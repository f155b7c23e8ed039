"""The peer to learn from: Erlang's machine, with two schedulers, if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

MISSING = "no BEAM: there is no `erl` on the PATH"

_SOURCE = Path(__file__).with_name("beam.erl")


def is_installed() -> bool:
    """Whether there is an Erlang to measure."""
    return shutil.which("erl") is not None


def measure(what: Literal["tell", "ask", "spawn", "start_child"], n: int) -> float:
    """Do it ``n`` times and return the rate per second."""
    # Compiled in memory: nothing is written anywhere.
    program = (
        f'{{ok, M, Code}} = compile:file("{_SOURCE}", [binary]), '
        f'{{module, M}} = code:load_binary(M, "beam", Code), M:run({what}, {n}), halt().'
    )
    done = subprocess.run(
        ["erl", "-noshell", "+S", "2:2", "-eval", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return float(done.stdout)
