"""What hooks say, in the shapes of Claude Code and Codex: read, or warned of."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.hooks._answer import read_output
from supervisor.hooks._object import TEXT_LIMIT, Answer, Event, read_object


def of_call(**specific: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **specific}}


def of_request(**decision: Any) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PermissionRequest",
            "decision": decision,
        }
    }


def of(event: str, **specific: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **specific}}


@pytest.mark.parametrize(
    ("event", "said", "answer"),
    [
        ("PreToolUse", {}, Answer()),
        ("PreToolUse", of_call(), Answer()),
        ("PreToolUse", {"logged": 1, "hookSpecificOutput": None}, Answer()),
        ("PreToolUse", of_call(permissionDecision="allow"), Answer(effect="allow")),
        (
            "PreToolUse",
            of_call(permissionDecision="deny", permissionDecisionReason="no"),
            Answer(effect="deny", reason="no"),
        ),
        ("PreToolUse", of_call(permissionDecision="ask"), Answer(effect="ask")),
        ("PreToolUse", {"decision": "approve"}, Answer(effect="allow")),
        (
            "PreToolUse",
            {"decision": "block", "reason": "no"},
            Answer(effect="deny", reason="no"),
        ),
        ("PreToolUse", {"decision": "deny"}, Answer(effect="deny")),
        ("PreToolUse", {"decision": "allow"}, Answer(effect="allow")),
        ("PreToolUse", {"decision": None, "reason": None}, Answer()),
        (
            "PreToolUse",
            {"hookSpecificOutput": {"permissionDecision": "deny"}},
            Answer(effect="deny"),
        ),
        (
            "PreToolUse",
            of_call(updatedInput={"command": "ls"}, additionalContext="mind"),
            Answer(input={"command": "ls"}, context="mind"),
        ),
        (
            "PreToolUse",
            {"decision": "approve", **of_call(permissionDecision="deny")},
            Answer(effect="deny"),
        ),
        (
            "PreToolUse",
            {"continue": False, "stopReason": "enough"},
            Answer(ends="enough"),
        ),
        ("PreToolUse", {"continue": False}, Answer(ends="a hook has ended it")),
        (
            "PreToolUse",
            {"continue": True, "suppressOutput": True, "systemMessage": "hello"},
            Answer(message="hello"),
        ),
        ("PreToolUse", {"async": True, "asyncTimeout": 5000}, Answer()),
        ("PermissionRequest", of_request(behavior="allow"), Answer(effect="allow")),
        (
            "PermissionRequest",
            of_request(behavior="allow", updatedInput={"command": "ls"}),
            Answer(effect="allow", input={"command": "ls"}),
        ),
        (
            "PermissionRequest",
            of_request(behavior="deny", message="no"),
            Answer(effect="deny", reason="no"),
        ),
        (
            "PermissionRequest",
            of_request(behavior="deny", message="no", interrupt=True),
            Answer(effect="deny", reason="no", ends="no"),
        ),
        ("PermissionRequest", {"decision": "allow"}, Answer(effect="allow")),
        ("PermissionRequest", {"decision": "deny"}, Answer(effect="deny")),
        (
            "PostToolUse",
            {"decision": "block", "reason": "bad"},
            Answer(effect="deny", reason="bad"),
        ),
        (
            "PostToolUse",
            of("PostToolUse", additionalContext="it is generated"),
            Answer(context="it is generated"),
        ),
        ("PostToolUse", of("PostToolUse", updatedToolOutput="x"), Answer(output="x")),
        (
            "PostToolUse",
            of("PostToolUse", updatedToolOutput={"stdout": "x"}),
            Answer(output='{"stdout": "x"}'),
        ),
        (
            "PostToolUseFailure",
            of("PostToolUseFailure", additionalContext="try again"),
            Answer(context="try again"),
        ),
        (
            "SubagentStop",
            {"decision": "block", "reason": "test first"},
            Answer(effect="deny", reason="test first"),
        ),
        ("SubagentStop", {"decision": "approve"}, Answer()),
        (
            "SubagentStop",
            of("Stop", additionalContext="go on"),
            Answer(context="go on"),
        ),
        ("Stop", {"continue": False, "stopReason": "x"}, Answer(ends="x")),
        (
            "SubagentStart",
            of("SubagentStart", additionalContext="read this"),
            Answer(context="read this"),
        ),
    ],
)
def test_each_documented_shape_is_read(
    event: Event, said: dict[str, Any], answer: Answer
) -> None:
    """As a function returns it, and as a command prints it."""
    assert read_object(event, said) == answer
    for printed in (json.dumps(said), json.dumps(said, indent=2)):
        for before in (b"", b"\xef\xbb\xbf", b"\n\n  "):
            read = read_output(event, before + printed.encode() + b"\n")
            # To a start hook's agent goes what means nothing else.
            assert read == answer or (event == "SubagentStart" and read == printed)


@pytest.mark.parametrize(
    ("event", "said", "denies", "named"),
    [
        ("PreToolUse", of_call(permissionDecision="perhaps"), False, "perhaps"),
        ("PreToolUse", of_call(permissionDecision=7), False, "permissionDecision"),
        ("PreToolUse", of_call(permissionDecision="Allow"), False, "Allow"),
        ("PreToolUse", of_call(permissionDecision="DENY"), True, "DENY"),
        ("PreToolUse", of_call(permissionDecision="block"), True, "block"),
        ("PreToolUse", of_call(permissionDecision=False), True, "False"),
        ("PreToolUse", of_call(permission_decision="allow"), False, "may be meant"),
        ("PreToolUse", of_call(permission_decision="deny"), True, "may be meant"),
        ("PreToolUse", {"decision": "yes"}, False, "decision"),
        ("PreToolUse", {"decision": {"behavior": "allow"}}, False, "decision"),
        ("PreToolUse", {"decision": {"behavior": "deny"}}, True, "decision"),
        ("PreToolUse", {"permissionDecision": "allow"}, False, "hookSpecificOutput"),
        ("PreToolUse", {"permissionDecision": "deny"}, True, "hookSpecificOutput"),
        ("PreToolUse", {"behavior": "deny"}, True, "behavior"),
        ("PreToolUse", {"action": "block"}, True, "action"),
        ("PreToolUse", {"action": "allow"}, False, "action"),
        ("PreToolUse", {"approved": False}, True, "approved"),
        ("PreToolUse", {"approved": True}, False, "approved"),
        ("PreToolUse", {"blocked": True}, True, "blocked"),
        ("PreToolUse", {"blocked": False}, False, "blocked"),
        ("PreToolUse", {"desicion": "approve"}, False, "decision may be meant"),
        ("PreToolUse", {"result": "deny"}, True, "result is unknown"),
        (
            "PreToolUse",
            {"outcome": "Block", "reason": "no"},
            True,
            "outcome is unknown",
        ),
        ("PreToolUse", {"status": "denied"}, True, "status is unknown"),
        (
            "PreToolUse",
            {"results": [{"decision": "block"}]},
            True,
            "results is unknown",
        ),
        ("PreToolUse", {"output": {"allowed": False}}, True, "output is unknown"),
        ("PreToolUse", {"output": of_call(permissionDecision="deny")}, True, "output"),
        ("PreToolUse", of_call(result="deny"), True, "result is unknown"),
        (
            "PreToolUse",
            {"decision": "approve", "result": "deny"},
            True,
            "result is unknown",
        ),
        ("PreToolUse", {"action": {"result": "deny"}}, True, "action"),
        ("PreToolUse", {"decision": "approve", "message": "denied"}, False, "message"),
        ("PreToolUse", {"continue": "false"}, True, "continue"),
        ("PreToolUse", {"continue": "maybe"}, False, "continue"),
        ("PreToolUse", {"hookSpecificOutput": "deny"}, True, "hookSpecificOutput"),
        ("PreToolUse", {"hookSpecificOutput": []}, False, "hookSpecificOutput"),
        (
            "PreToolUse",
            of("PostToolUse", permissionDecision="allow"),
            False,
            "hookEventName",
        ),
        (
            "PreToolUse",
            of("PostToolUse", permissionDecision="deny"),
            True,
            "hookEventName",
        ),
        (
            "PreToolUse",
            of_call(permissionDecision="allow", updatedInput="ls"),
            False,
            "updatedInput",
        ),
        (
            "PreToolUse",
            of_call(updatedInput={"command": "\ud800"}),
            False,
            "updatedInput",
        ),
        (
            "PreToolUse",
            of_call(permissionDecision="allow", permissionDecisionReason=7),
            False,
            "permissionDecisionReason",
        ),
        ("PreToolUse", of_request(behavior="allow"), False, "decision"),
        ("PreToolUse", of_request(behavior="deny"), True, "decision"),
        ("PreToolUse", {"additionalContext": "x"}, False, "hookSpecificOutput"),
        (
            "PermissionRequest",
            of("PermissionRequest", permissionDecision="deny"),
            True,
            "permissionDecision",
        ),
        ("PermissionRequest", of_request(behavior="maybe"), False, "maybe"),
        ("PermissionRequest", of_request(message="x"), False, "no behavior"),
        (
            "PermissionRequest",
            of("PermissionRequest", decision="allow"),
            False,
            "object",
        ),
        ("PostToolUse", {"decision": "allow"}, False, "decision"),
        ("PostToolUse", {"decision": "deny"}, True, "decision"),
        ("SubagentStop", {"decision": "deny"}, True, "decision"),
        ("SubagentStop", {"decision": 7}, False, "decision"),
        ("SubagentStart", {"decision": "block"}, False, "SubagentStart"),
    ],
)
def test_what_is_not_understood_is_told_of_and_only_a_denial_counts(
    event: Event, said: dict[str, Any], denies: bool, named: str
) -> None:
    """Unknown values, types, keys and places."""
    answer = read_object(event, said)
    assert answer.effect == ("deny" if denies else None)
    assert (answer.input, answer.context, answer.output) == (None, None, None)
    assert named in " ".join(answer.faults)
    assert ("it is taken for a denial" in " ".join(answer.faults)) == denies


@pytest.mark.parametrize(
    ("said", "answer", "named"),
    [
        (of_call(permissionDecision="defer"), Answer(effect="ask"), "defer"),
        (
            of_call(permissionDecision="deny", reason="no"),
            Answer(effect="deny", reason="no"),
            "permissionDecisionReason",
        ),
    ],
)
def test_what_is_understood_and_not_done_is_told_of(
    said: dict[str, Any], answer: Answer, named: str
) -> None:
    found = read_object("PreToolUse", said)
    assert (found.effect, found.reason) == (answer.effect, answer.reason)
    assert named in found.faults[0]


DENY = '"hookSpecificOutput": {"permissionDecision": "deny"}'


@pytest.mark.parametrize(
    ("printed", "denies"),
    [
        ('{"decision": "approve"', False),
        ('{"decision": "approve"} {"decision": "approve"}', False),
        ('{"decision": "approve", "decision": "approve"}', False),
        ('{"decision": "approve", "x": NaN}', False),
        ('loading\n{"decision": "approve"}', False),
        ("{'decision': 'approve'}", False),
        ("{" + '"a":[' * 100_000, False),
        ('{"decision": "block"', True),
        ('{"decision": "block"}\n{"decision": "approve"}', True),
        ('{"decision": "approve", "decision": "block"}', True),
        ('{"decision": "block", "x": NaN}', True),
        ('loading\n{"decision": "block"}', True),
        ("{'decision': 'block'}", True),
        ('{"decision": "block", "reason": "not "this""}', True),
        (f"{{{DENY}, x}}", True),
    ],
)
def test_broken_json_is_told_of_and_only_a_denial_counts(
    printed: str, denies: bool
) -> None:
    """A script may have put a text of the model between quotes."""
    answer = read_output("PreToolUse", printed.encode())
    assert isinstance(answer, Answer)
    assert answer.effect == ("deny" if denies else None)
    assert len(answer.faults) == 1


@pytest.mark.parametrize("text", ["\x1b]0;", "\x1b[31m", "\x1b", "\x9b", "\x00", "\t"])
def test_what_a_terminal_makes_of_a_text_changes_no_decision(text: str) -> None:
    """What is cleaned away first may be the decision itself."""
    for said in (
        f'{{"reason": "{text}", "decision": "block"}}',
        f'{{"reason": "{text}", {DENY}}}',
        f'{{"reason": "{text}\x07", {DENY}, "systemMessage": "\x1b\\"}}',
    ):
        answer = read_output("PreToolUse", said.encode())
        assert isinstance(answer, Answer)
        assert answer.effect == "deny"
        assert "\x1b" not in f"{answer.reason}{answer.message}"


@given(st.text(), st.sampled_from(["reason", "systemMessage", "x", "stopReason"]))
def test_no_text_beside_a_denial_undoes_it(text: str, key: str) -> None:
    """A7."""
    said = {key: text, "decision": "block"}
    for printed in (json.dumps(said), json.dumps(said, ensure_ascii=False)):
        answer = read_output("PreToolUse", printed.encode("utf-8", "surrogatepass"))
        assert isinstance(answer, Answer)
        assert answer.effect == "deny"


@given(st.text())
def test_no_text_that_is_put_between_quotes_allows_what_is_denied(text: str) -> None:
    """As a shell script does it, which escapes nothing."""
    printed = f'{{"decision": "block", "reason": "no: {text}"}}'
    answer = read_output("PreToolUse", printed.encode("utf-8", "replace"))
    assert isinstance(answer, Answer)
    assert answer.effect == "deny"


def test_texts_are_clean_and_bounded() -> None:
    """P5, P7."""
    said = {"reason": "a\x1b[31mb\ud800" + "x" * 20_000, "decision": "block"}
    answer = read_output("PreToolUse", json.dumps(said).encode())
    assert isinstance(answer, Answer)
    assert answer.reason is not None
    assert answer.reason.startswith("abxxx")
    assert TEXT_LIMIT <= len(answer.reason) <= TEXT_LIMIT + 20


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse", "SubagentStop"])
def test_plain_text_decides_nothing(event: Event) -> None:
    for text in ("", "all is well", "[1]", '"x"', "decision: deny", "{ x }y"):
        answer = read_output(event, text.encode())
        assert answer == text or (
            isinstance(answer, Answer) and answer.effect is None and text[0] == "{"
        )


def test_one_that_says_it_is_asynchronous_decides_nothing() -> None:
    """Whatever follows."""
    said = of_call(permissionDecision="allow", additionalContext="done")
    for rest in ("", "text", json.dumps(said)):
        answer = read_output("PreToolUse", b'{"async": true}\n' + rest.encode())
        context = "done" if rest.startswith("{") else None
        assert answer == Answer(context=context)


NAMES = st.sampled_from(
    "decision permissionDecision behavior hookSpecificOutput hookEventName reason"
    " updatedInput additionalContext continue stopReason systemMessage async approved"
    " updatedToolOutput interrupt message permission_decision".split()
)
WORDS = st.sampled_from(
    "allow deny ask defer approve block PreToolUse Stop yes no Allow DENY x".split()
)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4)
    ),
    max_leaves=8,
)
EVENTS: Any = st.sampled_from(
    "SubagentStart SubagentStop Stop PreToolUse PermissionRequest PostToolUse"
    " PostToolUseFailure".split()
)


@given(EVENTS, st.dictionaries(NAMES, JSON, max_size=5))
def test_nothing_is_allowed_but_by_an_answer_that_is_understood(
    event: Event, said: dict[str, Any]
) -> None:
    """Whatever it is, it is an answer; with a fault it allows and changes
    nothing."""
    answer = read_object(event, said)
    if answer.effect == "allow" or answer.input is not None:
        assert all("is not there" in it or "should be" in it for it in answer.faults)
    if answer.effect == "allow":
        assert event in ("PreToolUse", "PermissionRequest")
        assert "allow" in json.dumps(said) or "approve" in json.dumps(said)
    assert read_output(event, json.dumps(said).encode()) in (
        answer,
        json.dumps(said),
        # Who says that it is asynchronous decides nothing.
        Answer(context=answer.context, message=answer.message, faults=answer.faults),
        Answer(),
    )


@given(EVENTS, st.binary() | st.text().map(lambda text: ("{" + text).encode()))
def test_whatever_is_printed_is_an_answer_or_text(event: Event, printed: bytes) -> None:
    """A3, A7."""
    answer = read_output(event, printed)
    assert isinstance(answer, str) or answer.effect != "allow"


@pytest.mark.parametrize(
    "piece",
    [
        *("{", '{"n": 1},', "{ ", '{"', '{"decision" ', "decision", '"continue":'),
        *('{"async": true}\n', '{"a":', "{\n", "x", " ", '{"decision": "approve"}\n'),
    ],
)
@pytest.mark.parametrize("start", ["", "{", '{"files": [', "[{"])
def test_broken_json_is_judged_in_the_time_that_its_length_takes(
    start: str, piece: str
) -> None:
    """A7: a hook may print 1 MiB, and the loop waits for what it means."""
    printed = (start + piece * (2**20 // len(piece))).encode()
    began = time.process_time()
    answer = read_output("PreToolUse", printed)
    assert time.process_time() - began < 5
    assert isinstance(answer, str) or answer.effect is None
    denied = read_output("PreToolUse", b"{" + printed + b'"decision": "block"')
    assert isinstance(denied, Answer) and denied.effect == "deny"
    assert time.process_time() - began < 10


@pytest.mark.parametrize("event", ["PreToolUse", "PermissionRequest", "PostToolUse"])
@pytest.mark.parametrize(
    "shape",
    [
        *('{"decision": %s}', '{"systemMessage": %s}', '{"hookSpecificOutput": %s}'),
        '{"hookSpecificOutput": {"updatedToolOutput": %s}}',
        '{"hookSpecificOutput": {"updatedInput": {"x": %s}}}',
    ],
)
def test_what_is_nested_at_all_depths_is_an_answer(event: Event, shape: str) -> None:
    """A3: also as deep as JSON can just be read."""
    for depth in (*range(800, 1_000, 3), 2_000):
        printed = (shape % ("[" * depth + "]" * depth)).encode()
        assert isinstance(read_output(event, printed), Answer)


@pytest.mark.parametrize(
    "more",
    [
        {"tool_input": {"action": "deny"}, "tool_name": "Bash"},
        {"cached": False, "log": "no command was blocked"},
        {"results": ["allow", {"blocked": False}]},
    ],
)
def test_what_denies_nothing_under_a_key_that_nobody_knows_is_no_fault(
    more: dict[str, Any],
) -> None:
    """A3."""
    said = {"decision": "approve", **more}
    assert read_object("PreToolUse", said) == Answer(effect="allow")


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_what_is_printed_in_wide_characters_is_told_of(coding: str) -> None:
    """A7: it is no plain text, and a denial counts."""
    for word, effect in (("block", "deny"), ("approve", None)):
        printed = json.dumps({"decision": word}).encode(coding)
        answer = read_output("PreToolUse", printed)
        assert isinstance(answer, Answer)
        assert (answer.effect, len(answer.faults)) == (effect, 1)
        assert "not UTF-8" in answer.faults[0]


@pytest.mark.parametrize(
    "more", [{"decision": "block"}, of_call(permissionDecision="deny")]
)
def test_a_decision_of_one_that_says_it_is_asynchronous_is_warned_of(
    more: dict[str, Any],
) -> None:
    """A3."""
    answer = read_output("PreToolUse", json.dumps({"async": True, **more}).encode())
    assert isinstance(answer, Answer)
    assert answer.effect is None
    assert "asynchronous" in answer.faults[0]
