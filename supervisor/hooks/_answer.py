"""What a hook says, and what it means: pure.

Hooks are written for several programs, and in several ways: with exit codes, with
JSON in the shape of the day, with an older one, or as functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from ..permissions._judging import Decision, Verdict
from ._command import CommandEnd
from ._object import TAKEN, TOP, Answer, Event, as_text, read_object, shown
from ._text_file import BadText, read_json

_BLOCKED: Final = 2
"""The exit code of a denial."""
_IN_BROKEN: Final = re.compile(
    r"""(?:decision|behavior) ["']? \s*[:=]\s* ["']? (?:deny|denied|block|blocked) \b
      | continue ["']? \s*[:=]\s* ["']? false \b""",
    re.VERBOSE | re.IGNORECASE,
)
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_ANSWERS: Final = re.compile(
    r"""\{\s*["'](?:continue|stopReason|systemMessage|decision|hookSpecificOutput
        |permissionDecision|behavior)["']\s*:""",
    re.VERBOSE,
)


def understood(event: Event, said: object) -> Answer:
    """Return what a hook has said, in whatever way."""
    if said is None:
        return Answer()
    if isinstance(said, CommandEnd):
        return _printed(event, said)
    if isinstance(said, Mapping):
        return read_object(event, cast("Mapping[str, Any]", said))
    if event in ("PreToolUse", "PermissionRequest"):
        if isinstance(said, Verdict):
            return Answer(
                effect="allow" if said.allowed else "deny",
                reason=said.reason,
                input=said.input,
            )
        if isinstance(said, Decision):
            return Answer(effect=said.effect, reason=said.reason)
        better = "write Verdict(False, reason) to deny the call"
        return Answer(faults=(f"it returned {said!r}, not a Verdict: {better}",))
    if not isinstance(said, str):
        return Answer(faults=(f"it returned {said!r}, which is not text",))
    if event in ("SubagentStop", "Stop"):
        return Answer(effect="deny", reason=said) if said else Answer()
    return Answer(context=said)


def _printed(event: Event, end: CommandEnd) -> Answer:
    answer = read_output(event, end.stdout, is_cut=end.is_cut)
    if isinstance(answer, str):
        context = answer if event == "SubagentStart" else None
        answer = Answer(context=context)
    code = end.exit.code
    if code == 0:
        return answer
    if code == _BLOCKED:
        if event == "SubagentStart":
            return Answer(message=answer.message)
        reason = answer.reason if answer.effect == "deny" else None
        return attrs.evolve(
            answer, effect="deny", reason=reason or end.stderr or None, input=None
        )
    if answer.effect == "deny" and event in ("PreToolUse", "PermissionRequest"):
        faults = (f"{_how_it_ended(end)}; its denial counts", *answer.faults)
        return Answer(effect="deny", reason=answer.reason, faults=faults)
    # Whatever it has said, nothing follows from it.
    said = (fault.removesuffix(TAKEN) for fault in answer.faults)
    return Answer(faults=(*said, _how_it_ended(end)))


def _how_it_ended(end: CommandEnd) -> str:
    exit = end.exit
    if exit.lost is not None:
        what = exit.lost
    elif exit.signal is not None:
        what = f"ended by signal {exit.signal}"
    else:
        what = f"exit code {exit.code}"
    return f"{what}: {end.stderr}" if end.stderr else what


def read_output(event: Event, printed: bytes, *, is_cut: bool = False) -> Answer | str:
    """Return what the standard output of a command says: the plain text that it is,
    or what its JSON means.

    The JSON is read as it was printed, and only the texts in it are cleaned.

    Args:
        is_cut: whether it had printed more than this.
    """
    if printed[:2] in _WIDE or 0 in printed[:2]:
        text = printed.replace(b"\0", b"").decode("utf-8", "replace")
        return _broken(text, "it printed UTF-16 or UTF-32, not UTF-8")
    text = printed.decode("utf-8-sig", "replace").strip()
    first, _, rest = text.partition("\n")
    if text.startswith("{") and _is_async(first):
        answer = _after_async(event, rest)
        said = _read_text(event, first, len(first), False)
        if isinstance(said, str) or not _decides(said):
            return answer
        note = "it says that it is asynchronous, so that it decides nothing"
        return attrs.evolve(answer, faults=(*answer.faults, note, *said.faults))
    return _read_text(event, text, len(printed), is_cut)


def _decides(answer: Answer) -> bool:
    return any(it is not None for it in (answer.effect, answer.ends, answer.input))


def _read_text(event: Event, text: str, size: int, is_cut: bool) -> Answer | str:
    if not text.startswith("{"):
        if _ANSWERS.search(text) is None:
            return as_text(text)
        return _broken(text, "it printed something else before its JSON")
    try:
        value = read_json(text, strict=False)
    except BadText as error:
        if is_cut:
            return _broken(text, f"it printed more than {size} bytes of JSON")
        if event == "SubagentStart" and _ANSWERS.search(text) is None:
            return as_text(text)
        return _broken(text, f"it printed broken JSON ({error}): {shown(text)}")
    if event == "SubagentStart" and not set(value) & set(TOP):
        return as_text(text)
    try:
        return read_object(event, value)
    except RecursionError:
        # What is nested as deep as can just be read may be too deep to be told.
        return _broken(text, "its JSON cannot be used (it is nested too deeply)")


def _is_async(line: str) -> bool:
    try:
        return read_json(line, strict=False).get("async") is True
    except BadText:
        return False


def _after_async(event: Event, rest: str) -> Answer:
    """Return what somebody says who decides nothing, but may tell something."""
    # Not once more asynchronous: each line may say so.
    said = _read_text(event, rest.strip(), len(rest), False)
    if isinstance(said, str):
        return Answer()
    return Answer(context=said.context, message=said.message, faults=said.faults)


def _broken(text: str, fault: str) -> Answer:
    start = text.find("{")
    if start == -1 or _IN_BROKEN.search(text, start) is None:
        return Answer(faults=(fault,))
    return Answer(effect="deny", faults=(fault + TAKEN,))
