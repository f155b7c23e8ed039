"""Failing without holding anybody up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from trio.lowlevel import checkpoint

# The whole type of a function, so that a protocol may ask for what `async def` makes.
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def fair(operation: F) -> F:
    """Let an operation make a checkpoint before it fails.

    Else whoever tries again at once, in a loop, would starve everybody else, and
    nothing could cancel it. A cancellation goes before the error."""

    @functools.wraps(operation)
    async def fairly(*args: Any, **options: Any) -> Any:
        try:
            return await operation(*args, **options)
        except Exception:
            await checkpoint()  # noqa: ASYNC120
            raise

    return cast("F", fairly)
