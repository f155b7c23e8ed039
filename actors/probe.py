"""Probes: what production code tells a simulator, almost free when nobody listens.

    from actors.probe import always, buggify, reachable, sometimes

    always("no more run than may", running <= cap)
    sometimes("somebody had to wait", running == cap)
    if failures > most:
        reachable("it gave up")
    if buggify("slow-disk"):
        await trio.sleep(10)

In a run of `supervisor.simulation`, an `always` that does not hold is a finding, and a
campaign tells which `sometimes` was never true, which `reachable` was never reached,
and which `buggify` never fired. Everywhere else a probe is a call of a function of the
interpreter's own, which does nothing: no function of ours is entered. It never raises,
and never changes what the program does. Only `buggify` is for that, in a simulation.

Arguments are positional. The name comes first: it is what a report shows, so it is the
same text each time. One name stands for one place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

# Takes a name and perhaps one thing more, and returns that or None: both mean no.
_nothing: dict[str, Any] = {}
_unheard: Callable[..., Any] = _nothing.get

# The calls are looked up in the class, so one class each. `from actors.probe import
# always` may stand anywhere: it is the same object whether somebody listens or not.


class _Always:
    """Say that something holds each time that the program comes by here."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, name: str, holds: object, /) -> object: ...

    else:
        __call__ = _unheard


class _Sometimes:
    """Say that something holds at least once, if the program runs often enough. A test
    that never comes to a rare state proves nothing about it."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, name: str, holds: object, /) -> object: ...

    else:
        __call__ = _unheard


class _Reachable:
    """Say that the program comes by here at least once, if it runs often enough."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, name: str, /) -> object: ...

    else:
        __call__ = _unheard


class _Buggify:
    """Ask whether to do here what is allowed and rare. The answer is no, but by chance
    in a simulation: in one run of four it may be yes, and then one time in four.

    It is a fault of the run's tape, so it is replayed, and left out where a failure
    needs it not. The name is one word, as in ``slow-disk``.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(self, name: str, /) -> object: ...

    else:
        __call__ = _unheard


always: Final = _Always()
sometimes: Final = _Sometimes()
reachable: Final = _Reachable()
buggify: Final = _Buggify()

__all__ = ["Listener", "always", "buggify", "heard_by", "reachable", "sometimes"]


class Listener(Protocol):
    """Who hears what the probes tell. What it raises comes out of the probe."""

    def always(self, name: str, holds: object, /) -> object:
        """Hear whether something holds that must."""

    def sometimes(self, name: str, holds: object, /) -> object:
        """Hear whether something holds that need hold only once."""

    def reachable(self, name: str, /) -> object:
        """Hear that the program has come by."""

    def buggify(self, name: str, /) -> object:
        """Return whether what is rare is to be done."""


@contextmanager
def heard_by(listener: Listener) -> Generator[None]:
    """Tell a listener what all probes of this process tell, until the block ends. The
    simulator does it in each run; there is one listener at a time."""
    kinds: tuple[Any, ...] = (_Always, _Sometimes, _Reachable, _Buggify)
    hears = listener.always, listener.sometimes, listener.reachable, listener.buggify
    for kind, hear in zip(kinds, hears, strict=True):
        kind.__call__ = hear
    try:
        yield
    finally:
        for kind in kinds:
            kind.__call__ = _unheard
