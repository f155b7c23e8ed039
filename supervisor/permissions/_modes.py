"""The modes of agents: what they are called, and which of them allows more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

from ._near_names import plain_name

Mode: TypeAlias = Literal["default", "accept_edits", "plan", "bypass", "deny", "bubble"]
"""It says what a call may do if no rule decides. The module lists the modes."""
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

ModeName: TypeAlias = (
    Mode | Literal["acceptEdits", "bypassPermissions", "dontAsk", "manual"]
)
"""The type of `Permissions.mode`, so that a type checker finds a misspelt one.
`read_mode` makes a mode from a name that comes from elsewhere."""

_RANK: Final[Mapping[Mode, int]] = {
    "deny": 0,
    "plan": 1,
    "default": 2,
    "bubble": 2,  # Who asks a person takes nothing by itself.
    "accept_edits": 3,
    "bypass": 4,
}

CLAUDE_MODES: Final[Mapping[str, Mode]] = {
    "default": "default",
    "manual": "default",
    "acceptEdits": "accept_edits",
    "plan": "plan",
    "dontAsk": "deny",
    "bypassPermissions": "bypass",
}
"""By the names that Claude Code has for them."""
MODES_BY_NAME: Final[Mapping[str, Mode]] = {
    **CLAUDE_MODES,
    **{mode: mode for mode in MODES},
}
CLAUDE_NAMES: Final[Mapping[Mode, str]] = {
    **{mode: name for name, mode in CLAUDE_MODES.items() if name != "manual"},
    "bubble": "default",
}
"""What Claude Code calls each."""
_NOT_HERE: Final[Mapping[str, str]] = {
    "auto": "no classifier judges calls: write default, accept_edits or bubble",
    "delegate": "tools are taken away by Agent.tools: write default",
    "ask": "Permissions.ask says who is asked; or write bubble",
    "yolo": "write bypass",
}


def read_mode(value: object, what: str = "mode") -> Mode:
    """Return the mode that a name means. The name is one of `MODES`, or Claude Code's.

    Raises:
        ValueError: if it is neither. It names ``what`` and the value, and says what to
            write.
    """
    hint = ""
    if isinstance(value, str):
        if value in MODES_BY_NAME:
            return MODES_BY_NAME[value]
        known = {plain_name(name): f"write {name}" for name in MODES_BY_NAME}
        plain = plain_name(value.strip())
        if why := known.get(plain, _NOT_HERE.get(plain)):
            hint = f": {why}"
    raise ValueError(f"{what} must be one of {', '.join(MODES)}, not {value!r}{hint}")


def resolve_mode(own: str | None, parent: Mode) -> Mode:
    """Return the mode of an agent that is to have ``own``, started by one in
    ``parent``: never one that allows more by itself, in the background or not.

    For an agent that the program itself has started ``parent`` is
    `Permissions.mode`. None, and a mode that allows more, become ``parent``; below
    ``plan`` everything is in ``plan``. ``bubble`` counts as ``default``, since what
    it allows beyond that a person has allowed.

    Raises:
        ValueError: if ``own`` is not a mode.
    """
    if own is None:
        return parent
    mode = read_mode(own, "permission_mode")
    if parent == "plan":
        # Only in it the rules cannot allow editing, so no other is less.
        return "plan"
    return mode if _RANK[mode] <= _RANK[parent] else parent


def recheck(mode: str | None, allowed: Mode) -> Mode:
    """Return the mode of a resumed agent that was in ``mode``, if now ``allowed`` is
    the most. What it may do never grows by a resume; a mode that nobody knows
    (it may come from a file) allows nothing."""
    try:
        return resolve_mode(mode, allowed)
    except ValueError:
        return resolve_mode("deny", allowed)
