"""The guardian of ``bench.zoo --slow``: the real one, held up as by a busy machine.

Between an event and the reading of what it is about up to 5 ms pass, and in a look
at processes now and then 0.3 ms. What happens meanwhile must not be missed.

This is also the script itself, which takes the place of the real one.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

_BEFORE = 0.005
_INSIDE = 0.0003
_SHARE = 0.2
"""Of the reads within a look, how many are held up."""


def hold_up_guardians() -> None:
    """Let the guardians that this process starts from now on be slow."""
    vars(importlib.import_module("actors._system.posix"))["_SCRIPT"] = os.path.abspath(
        __file__
    )


def _late(
    function: Callable[..., Any],
    *,
    before: Callable[[], float],
    after: Callable[[], float],
) -> Callable[..., Any]:
    def late(*args: Any, **options: Any) -> Any:
        time.sleep(before())
        result = function(*args, **options)
        time.sleep(after())
        return result

    return late


def _never() -> float:
    return 0


def _at_events() -> float:
    return random.uniform(0, _BEFORE)


def _in_looks() -> float:
    return _INSIDE if random.random() < _SHARE else 0


def _main() -> None:
    place = os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "actors", "_system"
    )
    sys.path.append(os.path.abspath(place))
    guardian = importlib.import_module("guardian.__main__")
    serving = importlib.import_module("guardian.serving")
    # Every event is heard here first, every process is read with one of these.
    serving.Poll.wait = _late(serving.Poll.wait, before=_never, after=_at_events)
    for name in ("open", "pread", "listdir", "waitid"):
        setattr(os, name, _late(getattr(os, name), before=_in_looks, after=_never))
    guardian.main()


if __name__ == "__main__":
    _main()
