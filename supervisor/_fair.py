"""Failing without holding anybody up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from trio.lowlevel import checkpoint

P = ParamSpec("P")
R = TypeVar("R")


def fair(
    operation: Callable[P, Coroutine[Any, Any, R]],
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Let an operation make a checkpoint before it fails.

    Else whoever tries again at once, in a loop, would starve everybody else, and
    nothing could cancel it. A cancellation goes before the error."""

    @functools.wraps(operation)
    async def fairly(*args: P.args, **options: P.kwargs) -> R:
        try:
            return await operation(*args, **options)
        except Exception:
            await checkpoint()  # noqa: ASYNC120
            raise

    return fairly
