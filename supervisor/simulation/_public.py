"""Public names that give their public module as their own.

What does that for the other packages is in `actors`, and takes a third as long to load
as trio. A user with a plain trio program need not load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def publish(namespace: Mapping[str, Any]) -> None:
    """Set ``__module__`` of what a module lists in ``__all__``, and let `help` show how
    its classes are called. Call it at the end of the module, with its ``globals()``."""
    module: str = namespace["__name__"]
    for name in namespace["__all__"]:
        offered: Any = namespace[name]
        if offered.__module__.startswith(module):
            offered.__module__ = module
        init = cast("dict[str, Any]", vars(offered)).get("__init__")
        if init is not None:  # help() would show that a call of the class returns None.
            init.__annotations__.pop("return", None)
