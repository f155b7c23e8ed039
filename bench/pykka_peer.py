"""A peer in Python: Pykka, a thread for each actor, if it is installed."""

from __future__ import annotations

import importlib.util
from time import perf_counter
from typing import Any

MISSING = "no Pykka: `pip install pykka` to compare with it"


def is_installed() -> bool:
    """Whether there is a Pykka to measure."""
    return importlib.util.find_spec("pykka") is not None


def tell(n: int) -> float:
    """Return the rate of messages to one actor."""
    ref = _start()
    try:
        began = perf_counter()
        for number in range(n):
            ref.tell(number)
        ref.ask(None)  # comes after all of them
        return n / (perf_counter() - began)
    finally:
        ref.stop()


def ask(n: int) -> float:
    """Return the rate of questions to one actor."""
    ref = _start()
    try:
        began = perf_counter()
        for number in range(n):
            ref.ask(number)
        return n / (perf_counter() - began)
    finally:
        ref.stop()


def start_and_stop(n: int) -> float:
    """Return the rate of starting an actor and stopping it."""
    began = perf_counter()
    for _ in range(n):
        _start().stop()
    return n / (perf_counter() - began)


def _start() -> Any:
    # By hand: where Pykka is missing, a type checker knows nothing of it.
    pykka: Any = importlib.import_module("pykka")
    echo: Any = type("Echo", (pykka.ThreadingActor,), {"on_receive": _on_receive})
    return echo.start()


def _on_receive(_: object, message: object) -> object:
    return message
