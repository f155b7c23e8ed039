"""What may be set from outside, through environment variables.

`read_settings` and `read_limits` read them once and check them. Nothing looks at the
environment afterwards. A host that wants none of this makes its own `Settings` and
`supervisor.runtime.Limits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

import attrs

from actors.house import check_type, check_whole, frozen
from actors.house import publish as _publish
from actors.text import cut

from ._tasks.limits import Limits

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Settings",
    "read_limits",
    "read_settings",
]

_PREFIX: Final = "TRIO_SUPERVISOR_"
_DEFAULT_TIMEOUT: Final = "TRIO_SUPERVISOR_BASH_DEFAULT_TIMEOUT_MS"
_MAX_TIMEOUT: Final = "TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS"
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")
_NUMBER: Final = re.compile("[1-9][0-9]*")
# A length has room for a truncation header and something below it; a time is
# below 25 days, as with the timers of most systems.
_RANGES: Final = {
    "max_output_length": (1_000, 10_000_000),
    "bash_default_timeout": (1, 2**31 - 1),
    "bash_max_timeout": (1, 2**31 - 1),
}


@frozen(kw_only=True)
class Settings:
    """How the tools behave.

    Raises:
        TypeError, ValueError: for a bad field. The error names it and its value.
    """

    background_tasks: bool = True
    """Whether the model may run commands and agents in the background."""
    max_output_length: int = 30_000
    """How many characters of output one answer of a tool has, 1,000 to 10,000,000."""
    bash_default_timeout: int = 120_000
    """The milliseconds that a foreground command has if the model sets none."""
    bash_max_timeout: int = 600_000
    """The most milliseconds that the model may set."""

    def __attrs_post_init__(self) -> None:
        check_type("background_tasks", self.background_tasks, bool)
        for name, bounds in _RANGES.items():
            check_whole(name, getattr(self, name), *bounds)
        if self.bash_default_timeout > self.bash_max_timeout:
            raise ValueError(
                f"bash_default_timeout must be at most bash_max_timeout, which is "
                f"{self.bash_max_timeout}, not {self.bash_default_timeout}"
            )


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings in ``environ``. The others have their defaults.

    Numbers are plain positive decimal integers. A switch is on with 1, true,
    yes or on, and off with 0, false, no or off. An empty variable counts as none. If
    the maximum is set below the default timeout, the default is lowered to it.

    A name with our prefix that is nearly one of ours is refused as misspelt. Other
    names with it are ignored, because processes are marked by such variables.

    Raises:
        ValueError: for a bad variable. It names the variable and its value.
    """
    found = _read(environ, _SETTINGS)
    settings = Settings()
    highest = found.get("bash_max_timeout", settings.bash_max_timeout)
    default = found.setdefault(
        "bash_default_timeout", min(settings.bash_default_timeout, highest)
    )
    if default > highest:
        raise ValueError(
            f"{_DEFAULT_TIMEOUT} must be at most {highest}, the maximum that "
            f"{_MAX_TIMEOUT} sets, not {default}"
        )
    return Settings(**found)


def read_limits(environ: Mapping[str, str], limits: Limits | None = None) -> Limits:
    """Return ``limits``, but with the limits in ``environ`` in place of theirs.

    The number of tasks, shells and agents is a plain positive decimal integer. So are
    the bytes of the directory, and the days and tasks that are kept. The caps
    of models and providers are such numbers by name, as in
    ``anthropic/opus=2,haiku=8``. They replace all caps that there were. An empty
    variable sets nothing. A bad value is an error, and names are checked as by
    `read_settings`.

    Args:
        environ: the environment.
        limits: None means no limits.

    Raises:
        ValueError: for a bad variable. It names the variable and its value.
    """
    return attrs.evolve(limits or Limits(), **_read(environ, _LIMITS))


_Reader: TypeAlias = Callable[[str, str], object]
"""Makes of a variable and its value what the field is to hold."""


def _number(lowest: int, highest: int) -> Callable[[str, str], int]:
    def read(variable: str, value: str) -> int:
        if (
            not _NUMBER.fullmatch(value)
            # Before it is made a number, which takes long for a long one.
            or len(value) > len(str(highest))
            or not lowest <= int(value) <= highest
        ):
            raise ValueError(
                f"{variable} must be a plain whole number from {lowest} to {highest}, "
                f"not {cut(value, 80)!r}"
            )
        return int(value)

    return read


_cap: Final = _number(1, 1_000_000)


def _caps(variable: str, value: str) -> dict[str, int]:
    caps: dict[str, int] = {}
    for entry in value.split(","):
        name, equals, number = entry.partition("=")
        name = name.strip()
        if not equals or not name or name in caps:
            raise ValueError(
                f"{variable} must be name=number, each name once, with commas between "
                f"them, not {cut(value, 80)!r}"
            )
        caps[name] = _cap(f"{variable}, for {cut(name, 80)!r},", number)
    return caps


def _is_off(variable: str, value: str) -> bool:
    if value.lower() in _YES + _NO:
        return value.lower() in _NO
    raise ValueError(
        f"{variable} must be one of {', '.join(_YES + _NO)}, not {cut(value, 80)!r}"
    )


def _ranged(field: str) -> tuple[str, _Reader]:
    return field, _number(*_RANGES[field])


# Every variable, with the field that it sets.
_SETTINGS: Final[Mapping[str, tuple[str, _Reader]]] = {
    "TRIO_SUPERVISOR_DISABLE_BACKGROUND_TASKS": ("background_tasks", _is_off),
    "TRIO_SUPERVISOR_MAX_OUTPUT_LENGTH": _ranged("max_output_length"),
    _DEFAULT_TIMEOUT: _ranged("bash_default_timeout"),
    _MAX_TIMEOUT: _ranged("bash_max_timeout"),
}
_LIMITS: Final[Mapping[str, tuple[str, _Reader]]] = {
    "TRIO_SUPERVISOR_MAX_TASKS": ("total", _cap),
    "TRIO_SUPERVISOR_MAX_SHELLS": ("shells", _cap),
    "TRIO_SUPERVISOR_MAX_AGENTS": ("agents", _cap),
    "TRIO_SUPERVISOR_MAX_DISK": ("disk", _number(1, 2**60)),
    "TRIO_SUPERVISOR_KEEP_DAYS": ("keep_days", _number(1, 100_000)),
    "TRIO_SUPERVISOR_KEEP_TASKS": ("keep_tasks", _cap),
    "TRIO_SUPERVISOR_MODEL_LIMITS": ("models", _caps),
    "TRIO_SUPERVISOR_PROVIDER_LIMITS": ("providers", _caps),
}


def _read(
    environ: Mapping[str, str], readers: Mapping[str, tuple[str, _Reader]]
) -> dict[str, Any]:
    """Return by field what the environment says."""
    _check_spelling(environ)
    return {
        field: read(variable, value)
        for variable, (field, read) in readers.items()
        if (value := environ.get(variable))
    }


def _check_spelling(environ: Mapping[str, str]) -> None:
    # The common start would make any two names look alike.
    ours = {known.removeprefix(_PREFIX): known for known in (*_SETTINGS, *_LIMITS)}
    for name in environ:
        own = name.removeprefix(_PREFIX)
        if own == name or own in ours:
            continue
        if near := get_close_matches(own, ours, n=1, cutoff=0.8):
            raise ValueError(
                f"the variable {name} is unknown; {ours[near[0]]} may be meant"
            )


_publish(globals())
