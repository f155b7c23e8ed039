"""What the JSON object of a hook means: pure.

Whatever has one meaning is read. What has none causes only a warning, but a denial
counts all the same, because whoever prints one wanted to forbid something.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

from actors.envelope import CUT
from actors.house import frozen
from actors.text import clean_text, cut, one_line

from ..permissions._near_names import nearest_name, plain_name
from ..permissions._rules import Effect

Event: TypeAlias = Literal[
    "SubagentStart",
    "SubagentStop",
    "Stop",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
]

TEXT_LIMIT: Final = 10_000
"""Characters kept of a text of a hook, from the start."""

TAKEN: Final = "; it is taken for a denial"
"""The end of a warning about an answer that can only mean a denial."""

_SHOWN: Final = 80
_JUDGES: Final = ("PreToolUse", "PermissionRequest")
_STOPS: Final = ("SubagentStop", "Stop")

TOP: Final = (
    *("continue", "stopReason", "suppressOutput", "systemMessage", "decision"),
    *("reason", "hookSpecificOutput", "async", "asyncTimeout", "terminalSequence"),
)
_SPECIFIC: Final[Mapping[str, tuple[str, ...]]] = {
    "SubagentStart": ("additionalContext",),
    "SubagentStop": ("additionalContext",),
    "Stop": ("additionalContext",),
    "PreToolUse": (
        *("permissionDecision", "permissionDecisionReason"),
        *("updatedInput", "additionalContext"),
    ),
    "PermissionRequest": ("decision",),
    "PostToolUse": (
        *("additionalContext", "updatedToolOutput"),
        *("updatedMCPToolOutput", "classifierContext"),
    ),
    "PostToolUseFailure": ("additionalContext",),
}
_DECISION: Final = (
    *("behavior", "message", "interrupt", "updatedInput", "updatedPermissions"),
)

# The values that each place has, and what they mean for a call, for a stop, or for
# an answer that is there already.
_OLD: Final[Mapping[str, Effect | None]] = {"approve": "allow", "block": "deny"}
_EFFECTS: Final[Mapping[str, Effect | None]] = {
    "allow": "allow",
    "deny": "deny",
    "ask": "ask",
}
_BLOCKS: Final[Mapping[str, Effect | None]] = {"block": "deny", "approve": None}

# In other words, or in a place where nobody looks for it.
_DENIALS: Final = frozenset(
    "deny denied block blocked reject rejected refuse refused forbid forbidden"
    " disallow prevent no false".split()
)
_POSITIVE: Final = frozenset(
    "allow allowed approve approved permit permitted permission proceed ok".split()
)
_NEGATIVE: Final = frozenset(
    "deny denied block blocked reject rejected refuse refused".split()
)
# Under a key that nobody knows these mean something, unless it holds what the tool
# was called with, and a denial, unless it is a text for people.
_REFUSALS: Final = _NEGATIVE | frozenset(
    ("forbid", "forbidden", "disallow", "disallowed")
)
_ECHOES: Final = frozenset("toolinput toolresponse input updatedinput".split())
_TEXTS: Final = frozenset("message note comment log description details".split())
_DECIDING: Final = _POSITIVE | _NEGATIVE | {"decision", "verdict", "action", "effect"}


@frozen(kw_only=True)
class Answer:
    """What one hook has said, as far as it is understood."""

    effect: Effect | None = None
    """What is to become of a call; ``deny`` of a stop is to go on, and of an answer
    that is there already that something is wrong with it."""
    reason: str | None = None
    input: Mapping[str, Any] | None = None
    """What the call is to be made with instead."""
    context: str | None = None
    """What the model is to know."""
    output: str | None = None
    """What the model is to see instead of the answer of the tool."""
    ends: str | None = None
    """Why the agent is to end altogether."""
    message: str | None = None
    """What people are to know."""
    faults: tuple[str, ...] = ()
    """What is not understood, or not done."""


def read_object(event: Event, said: Mapping[str, Any]) -> Answer:
    """Return what a JSON object means, as a command prints or a function returns it."""
    return _ObjectReader(event).read(said)


class _ObjectReader:
    def __init__(self, event: Event) -> None:
        self._event = event
        self._effects: set[Effect] = set()
        self._faults: list[str] = []
        """Because of these nothing else counts."""
        self._notes: list[str] = []
        self._denies = False
        """Whether something that is not understood is a denial."""
        self._reasons: dict[Effect, str] = {}
        self._found: dict[str, Any] = {}
        self._interrupts = False

    def read(self, said: Mapping[str, Any]) -> Answer:
        self._read_top(said)
        effect = self._effect()
        reason = self._reasons.get("deny" if self._faults else effect or "deny")
        if self._faults:
            if effect == "deny":
                self._faults[-1] += TAKEN
            else:
                effect = None
            self._found = {name: self._found.get(name) for name in ("ends", "message")}
        elif self._interrupts and effect == "deny":
            self._found["ends"] = reason or "a hook has ended it"
        faults = tuple(self._faults + self._notes)
        return Answer(effect=effect, reason=reason, faults=faults, **self._found)

    def _effect(self) -> Effect | None:
        if self._denies:
            return "deny"
        strictest: tuple[Effect, ...] = ("deny", "ask", "allow")
        return next((it for it in strictest if it in self._effects), None)

    # The three levels

    def _read_top(self, said: Mapping[str, Any]) -> None:
        self._check_keys(said, TOP, "")
        why = self._text(said, "stopReason")
        if self._flag(said, "continue") is False:
            self._found["ends"] = why or "a hook has ended it"
        else:
            self._deny_if(said.get("continue"))
        self._flag(said, "suppressOutput")
        self._found["message"] = self._text(said, "systemMessage")
        reason = self._text(said, "reason")
        if said.get("decision") is not None:
            self._take("decision", said["decision"], self._old_values(), reason)
        name = "hookSpecificOutput"
        if (specific := self._object(said.get(name), name)) is not None:
            self._read_specific(specific)

    def _old_values(self) -> Mapping[str, Effect | None]:
        if self._event == "SubagentStart":
            return {}
        return {**_EFFECTS, **_OLD} if self._event in _JUDGES else _BLOCKS

    def _read_specific(self, said: Mapping[str, Any]) -> None:
        event = self._event
        named: object = said.get("hookEventName")
        same = (event, *_STOPS) if event in _STOPS else (event,)
        if named is not None and named not in same:
            self._fault(f"hookEventName must be {event}, not {shown(named)}")
        known = ("hookEventName", "reason", *_SPECIFIC[event])
        self._check_keys(said, known, "in hookSpecificOutput ")
        if event == "PermissionRequest":
            name = "hookSpecificOutput.decision"
            if (decision := self._object(said.get("decision"), name)) is not None:
                self._read_decision(decision)
            return
        if event == "PreToolUse" and said.get("permissionDecision") is not None:
            value = said["permissionDecision"]
            reason = self._text(said, "permissionDecisionReason")
            if reason is None and (reason := self._text(said, "reason")) is not None:
                self._notes.append("reason should be permissionDecisionReason")
            if value == "defer":
                self._notes.append("defer is not there: it is taken for ask")
                value = "ask"
            self._take("permissionDecision", value, _EFFECTS, reason)
        if event == "PreToolUse":
            self._input(said)
        self._found["context"] = self._text(said, "additionalContext")
        for name in ("updatedMCPToolOutput", "updatedToolOutput"):
            if event == "PostToolUse" and said.get(name) is not None:
                self._found["output"] = _as_output(said[name])

    def _read_decision(self, said: Mapping[str, Any]) -> None:
        self._check_keys(said, _DECISION, "in decision ")
        values: Mapping[str, Effect | None] = {"allow": "allow", "deny": "deny"}
        if said.get("behavior") is None:
            self._fault("decision says no behavior, allow or deny")
        else:
            message = self._text(said, "message")
            self._take("behavior", said["behavior"], values, message)
        self._interrupts = self._flag(said, "interrupt") is True
        self._input(said)
        if said.get("updatedPermissions"):
            note = "updatedPermissions is not there: only this call is decided"
            self._notes.append(note)

    # Single values

    def _take(
        self,
        name: str,
        value: object,
        values: Mapping[str, Effect | None],
        reason: str | None,
    ) -> None:
        if isinstance(value, str) and value in values:
            effect = values[value]
            if effect is not None:
                self._effects.add(effect)
                if reason:
                    self._reasons.setdefault(effect, reason)
            return
        if reason:
            self._reasons.setdefault("deny", reason)
        if values:
            wanted = f"must be one of {', '.join(values)}, not {shown(value)}"
        else:
            wanted = f"decides nothing of a {self._event}"
        self._fault(f"{name} {wanted}")
        if values:
            self._deny_if(value)

    def _input(self, said: Mapping[str, Any]) -> None:
        changed: object = said.get("updatedInput")
        if changed is None:
            return
        if not isinstance(changed, Mapping):
            self._fault(f"updatedInput must be an object, not {shown(changed)}")
            return
        try:
            # What a tool takes is what JSON can hold, in characters that there are.
            text = json.dumps(changed, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._fault(f"updatedInput cannot be used: {one_line(str(error), _SHOWN)}")
            return
        self._found["input"] = json.loads(text)

    def _object(self, value: object, name: str) -> Mapping[str, Any] | None:
        if value is None or isinstance(value, Mapping):
            return cast("Mapping[str, Any] | None", value)
        self._fault(f"{name} must be an object, not {shown(value)}")
        self._deny_if(value)
        return None

    def _flag(self, said: Mapping[str, Any], name: str) -> bool | None:
        value: object = said.get(name)
        if value is None or isinstance(value, bool):
            return value
        self._fault(f"{name} must be true or false, not {shown(value)}")
        return None

    def _text(self, said: Mapping[str, Any], name: str) -> str | None:
        value: object = said.get(name)
        if value is None or isinstance(value, str):
            return as_text(value or "") or None
        self._fault(f"{name} must be text, not {shown(value)}")
        return None

    def _check_keys(
        self, said: Mapping[str, Any], known: Sequence[str], where: str
    ) -> None:
        """Complain of keys that look as if they were to mean something."""
        for key, value in said.items():
            if key in known:
                continue
            name = plain_name(str(key))
            if key in _PLACES:
                what = f"{_PLACES[key]} is where {key} belongs"
            elif name in _DECIDING:
                what = "it decides nothing"
            elif meant := nearest_name(name, _KEYS):
                what = f"{meant} may be meant"
            elif name not in _ECHOES and _refuses(value):
                self._fault(f"{where}{shown(key)} is unknown, and says a denial")
                self._denies |= name not in _TEXTS
                continue
            else:
                continue
            self._fault(f"{where}{shown(key)} is unknown: {what}")
            if name not in _NEGATIVE:
                self._deny_if(value)
            elif value is True:
                self._denies = True

    def _deny_if(self, value: object) -> None:
        """Take for a denial what can mean nothing else."""
        if isinstance(value, Mapping):
            inner = cast("Mapping[str, object]", value)
            for key in ("behavior", "permissionDecision", "decision"):
                self._deny_if(inner.get(key))
            self._denies |= _refuses(inner)
        else:
            word = value.strip().casefold() if isinstance(value, str) else None
            self._denies |= value is False or word in _DENIALS

    def _fault(self, text: str) -> None:
        self._faults.append(text)


def _refuses(value: object) -> bool:
    """Tell whether this is a denying word, or holds one as a value."""
    waiting = [value]
    # Not by recursion: it may be nested deeper than there are frames.
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            inner = cast("Mapping[object, object]", value)
            names = [(plain_name(str(key)), key) for key in inner]
            waiting += [inner[key] for name, key in names if name not in _ECHOES]
            for name, key in names:
                no = inner[key] is False and (name in _POSITIVE or name == "continue")
                if no or (inner[key] is True and name in _NEGATIVE):
                    return True
        elif isinstance(value, (list, tuple)):
            waiting += cast("Sequence[object]", value)
        elif isinstance(value, str) and value.strip().casefold() in _REFUSALS:
            return True
    return False


_PLACES: Final = {
    "permissionDecision": "hookSpecificOutput of PreToolUse",
    "permissionDecisionReason": "hookSpecificOutput of PreToolUse",
    "updatedInput": "hookSpecificOutput",
    "additionalContext": "hookSpecificOutput",
    "hookEventName": "hookSpecificOutput",
    "updatedToolOutput": "hookSpecificOutput of PostToolUse",
    "decision": "the object itself, or hookSpecificOutput of PermissionRequest,",
    "behavior": "hookSpecificOutput.decision of PermissionRequest",
    **dict.fromkeys(("continue", "stopReason", "systemMessage"), "the object itself"),
}
_KEYS: Final = sorted(
    {*TOP, *_DECISION, *_PLACES, "permissionDecision"} - {"message", "async", "reason"}
)


def as_text(text: str) -> str:
    """Return a text of a hook clean, and cut if it is too long."""
    return cut(clean_text(text).strip(), TEXT_LIMIT, CUT)


def _as_output(value: object) -> str:
    # Whatever shape it has: what is to be hidden must not be shown instead.
    if isinstance(value, str):
        return clean_text(value)
    return clean_text(json.dumps(value, ensure_ascii=False, default=str))


def shown(value: object) -> str:
    """Return what a hook has said as a warning shows it."""
    return one_line(value if isinstance(value, str) else repr(value), _SHOWN)
