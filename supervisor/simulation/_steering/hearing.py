"""When the probes of a program (`actors.probe`) are heard: from the moment at which it has
any.

Who has none need not load them, which takes long. A program may import its own parts
in its first run only, and what their probes tell then is not to be lost.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .run import Driver
from .seams import Seams

if TYPE_CHECKING:
    from .probes import Met

PROBES = "actors.probe"
"""A program with probes has loaded it."""


@contextmanager
def hearing(
    driver: Driver, seams: Seams, seed: int
) -> Generator[Callable[[], Sequence[Met]]]:
    """Hear the probes of this process until the block ends; what is called tells what
    they have told. Under seed 0 nothing fires by chance."""
    told: list[Any] = []
    thread = threading.get_ident()
    with ExitStack() as stack:

        def begin() -> None:
            from .probes import listening

            if threading.get_ident() == thread:
                told.append(stack.enter_context(listening(driver, seams, seed)))

        if PROBES in sys.modules:
            begin()
        else:
            stack.enter_context(_coming(begin))
        yield lambda: [it for met in told for it in met.values()]


@contextmanager
def _coming(loaded: Callable[[], object]) -> Generator[None]:
    """Call a function when the probes are loaded in the block."""
    finder: Any = _Finder(loaded)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):  # The program has put its own ones there.
            sys.meta_path.remove(finder)


class _Finder:
    """Finds the module of the probes where it is, and nothing else."""

    def __init__(self, loaded: Callable[[], object]) -> None:
        self._loaded = loaded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != PROBES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self._loaded)
            spec.loader = loader
        return spec


class _Loader:
    """Loads a module as another loader does, which has it then, and tells of it."""

    def __init__(self, real: Any, loaded: Callable[[], object]) -> None:
        self._real = real
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        self._loaded()
