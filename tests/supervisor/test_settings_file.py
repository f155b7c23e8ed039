"""Settings files as projects have them: read, or refused, and nothing in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.hooks import Hook, Hooks
from supervisor.permissions import Rule
from supervisor.settings_file import (
    FileSettings,
    SettingsError,
    read_hooks,
    read_settings,
)


def read(directory: Path, said: object) -> FileSettings:
    file = directory / "settings.json"
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    return read_settings(file)


def group(**handler: Any) -> list[dict[str, Any]]:
    return [{"matcher": "Bash", "hooks": [{"type": "command", **handler}]}]


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """A3."""
    found = read(
        tmp_path,
        {
            "$schema": "https://json.schemastore.org/claude-code-settings.json",
            "model": "opus",
            "permissions": {
                "allow": ["Bash(npm run lint)"],
                "ask": ["Bash(git push *)"],
                "deny": ["Bash(curl *)", "WebSearch"],
                "defaultMode": "acceptEdits",
            },
            "hooks": {
                "PreToolUse": [
                    {
                        "matcher": "Edit|Write",
                        "hooks": [
                            {"type": "command", "command": "./a.sh", "timeout": 5},
                            {"type": "command", "command": "./b.sh"},
                        ],
                    },
                    {
                        "hooks": [
                            {"type": "command", "command": "log", "if": "Bash(rm *)"}
                        ]
                    },
                ],
                "PermissionRequest": group(command="ask"),
                "PostToolUse": group(command="format"),
                "PostToolUseFailure": group(command="mourn"),
                "SubagentStart": group(command="greet"),
                "SubagentStop": group(command="check"),
                "Stop": group(command="test"),
            },
        },
    )
    assert found.problems == ()
    assert found.model == "opus"
    assert found.mode == "accept_edits"
    assert found.rules == (
        Rule("allow", "Bash(npm run lint)"),
        Rule("ask", "Bash(git push *)"),
        Rule("deny", "Bash(curl *)"),
        Rule("deny", "WebSearch"),
    )
    assert found.hooks == Hooks(
        pre_tool=[
            Hook("./a.sh", "Edit|Write", timeout=5),
            Hook("./b.sh", "Edit|Write"),
            Hook("log", only=Rule("deny", "Bash(rm *)")),
        ],
        permission_request=[Hook("ask", "Bash")],
        post_tool=[Hook("format", "Bash")],
        post_tool_failure=[Hook("mourn", "Bash")],
        start=[Hook("greet", "Bash")],
        stop=[Hook("check", "Bash")],
        main_stop=[Hook("test")],
        timeout=600,
    )


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("default", "default"),
        ("manual", "default"),
        ("acceptEdits", "accept_edits"),
        ("plan", "plan"),
        ("dontAsk", "deny"),
        ("bypassPermissions", "bypass"),
    ],
)
def test_the_modes_of_the_file_are_ours(tmp_path: Path, name: str, mode: str) -> None:
    found = read(tmp_path, {"permissions": {"defaultMode": name}})
    assert (found.mode, found.problems) == (mode, ())


def test_a_mode_that_is_told_is_the_mode_and_none_is_none(tmp_path: Path) -> None:
    """So that a host can tell what was said from what was left open."""
    assert read(tmp_path, {"permissions": {"defaultMode": "auto"}}).mode == "default"
    found = read(tmp_path, {"permissions": {}})
    assert (found.mode, found.forbids_bypass) == (None, False)
    forbids = {"disableBypassPermissionsMode": "disable"}
    found = read(tmp_path, {"permissions": forbids})
    assert (found.mode, found.forbids_bypass, found.problems) == (None, True, ())
    both = {**forbids, "defaultMode": "bypassPermissions"}
    assert read(tmp_path, {"permissions": both}).mode == "default"


@pytest.mark.parametrize(
    ("said", "place", "text"),
    [
        ({"permissions": {"allow": ["Bash("]}}, "permissions.allow[0]", "'Bash('"),
        ({"permissions": {"allow": "Bash"}}, "permissions.allow", "must be a list"),
        ({"permissions": {"defaultMode": "auto"}}, "permissions.defaultMode", "auto"),
        (
            {"permissions": {"additionalDirectories": ["../docs"]}},
            "permissions.additionalDirectories",
            "by rules",
        ),
        (
            {
                "permissions": {
                    "disableBypassPermissionsMode": "disable",
                    "defaultMode": "bypassPermissions",
                }
            },
            "permissions.defaultMode",
            "the mode is default",
        ),
        ({"env": {"A": "1"}}, "env", "not honoured"),
        ({"sandbox": {"enabled": True}}, "sandbox", "not honoured"),
        ({"model": 7}, "model", "must be text"),
        (
            {"hooks": {"Notification": group(command="x")}},
            "hooks.Notification",
            "never",
        ),
        ({"hooks": {"SessionStart": 7}}, "hooks.SessionStart", "never called"),
        (
            {"hooks": {"PostToolUse": group(command="x", **{"async": True})}},
            "hooks.PostToolUse[0].hooks[0].async",
            "waited for",
        ),
        (
            {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": []}]}},
            "hooks.PreToolUse[0].hooks",
            "nothing is called",
        ),
        (
            {"hooks": {"Stop": group(command="x", once=True)}},
            "hooks.Stop[0].hooks[0].once",
            "each time",
        ),
        (
            {"hooks": {"Stop": group(command="x", statusMessage="Looking")}},
            "hooks.Stop[0].hooks[0].statusMessage",
            "not shown",
        ),
        (
            {"hooks": {"Stop": group(command="x", commandWindows="y")}},
            "hooks.Stop[0].hooks[0].commandWindows",
            "under bash",
        ),
    ],
)
def test_what_only_takes_something_away_is_listed(
    tmp_path: Path, said: object, place: str, text: str
) -> None:
    (problem,) = read(tmp_path, said).problems
    assert problem.place == place
    assert text in problem.text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"permissions": {"deny": ["Bash("]}}, "permissions.deny[0]: "),
        ({"permissions": {"ask": [7]}}, "permissions.ask[0]: "),
        ({"permissions": {"deny": "Bash"}}, "permissions.deny: must be a list"),
        ({"permissions": {"denied": ["Bash"]}}, "permissions.denied: there is no"),
        ({"permissions": {"Deny": ["Bash"]}}, "deny may be meant"),
        ({"permissions": []}, "permissions: must be an object"),
        ({"permissions": {"defaultMode": "plann"}}, "plan may be meant"),
        ({"permissions": {"defaultMode": 7}}, "permissions.defaultMode: must be one"),
        (
            {"permissions": {"disableBypassPermissionsMode": True}},
            "permissions.disableBypassPermissionsMode: must be 'disable', not True",
        ),
        ({"defaultMode": "plan"}, 'defaultMode: write {"permissions": '),
        ({"permissionMode": "plan"}, "write it as permissions.defaultMode"),
        ({"PreToolUse": []}, "PreToolUse: it belongs in hooks"),
        ({"deny": ["Bash"]}, "deny: it belongs in permissions"),
        ({"disallowedTools": ["Bash"]}, "disallowedTools: it belongs in permissions"),
        ({"permission": {"deny": ["Bash"]}}, "permissions may be meant"),
        ({"Hooks": {}}, "hooks may be meant"),
        ({"hooks": []}, "hooks: must be an object"),
        ({"hooks": {"PreToolUsage": []}}, "hooks.PreToolUsage: .* PreToolUse may be"),
        ({"hooks": {"pre_tool_use": []}}, "PreToolUse may be meant"),
        ({"hooks": {"Nonsense": []}}, "hooks.Nonsense: there is no such event"),
        ({"hooks": {"PreToolUse": {"matcher": "Bash"}}}, "must be a list"),
        ({"hooks": {"PreToolUse": ["x"]}}, "PreToolUse[0]: must be an object"),
        ({"hooks": {"PreToolUse": [{"command": "x"}]}}, "there is no list 'hooks'"),
        (
            {"hooks": {"PreToolUse": [{"matchers": "Bash", "hooks": []}]}},
            "matcher may be meant",
        ),
        (
            {"hooks": {"PreToolUse": [{**group(command="x")[0], "matcher": "bash|X"}]}},
            "PreToolUse[0].matcher: no tool is called 'bash': write Bash",
        ),
        (
            {
                "hooks": {
                    "PostToolUse": [{**group(command="x")[0], "matcher": "mcp__a"}]
                }
            },
            "write mcp__a__.*",
        ),
        ({"hooks": {"PreToolUse": group(command="")}}, "command must be a command"),
        ({"hooks": {"PreToolUse": group(cmd="x")}}, "command: must be the text"),
        (
            {"hooks": {"PreToolUse": [{"hooks": [{}]}]}},
            "PreToolUse[0].hooks[0].type: there is none: write",
        ),
        ({"hooks": {"Stop": [{"hooks": [{"_": "later"}]}]}}, "hooks[0].type: must be"),
        ({"hooks": {"Stop": [{"hooks": [None]}]}}, "hooks[0]: must be an object"),
        ({"hooks": {"Stop": [{}]}}, "Stop[0]: there is no list 'hooks'"),
        (
            {"hooks": {"PreToolUse": [{"hooks": [{"type": "command"}]}]}},
            "hooks[0].command: must be the text of a command, not None",
        ),
        ({"hooks": {"PreToolUse": group(command="x", timeout=0)}}, "timeout must be"),
        (
            {"hooks": {"PreToolUse": group(command="x", timeout="5s")}},
            "timeout must be",
        ),
        ({"hooks": {"PreToolUse": group(command="x", shell="zsh")}}, "must be bash"),
        ({"hooks": {"PreToolUse": group(command="x", args="y")}}, "must be a list"),
        ({"hooks": {"PreToolUse": group(command="x", arg=["y"])}}, "args may be meant"),
        ({"hooks": {"PreToolUse": group(command="x", **{"if": "Bash("})}}, ".if: "),
        (
            {"hooks": {"Stop": group(command="x", **{"if": "Bash(x)"})}},
            "not a tool call",
        ),
        ({"hooks": {"Stop": [{"hooks": [{"type": "prompt"}]}]}}, "of the type command"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "http"}]}]}}, "type command"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "x"}]}]}}, "must be command"),
        (
            {"hooks": {"PreToolUse": [{**group(command="x")[0], "matcher": "("}]}},
            "matcher must be",
        ),
        ('{"permissions": {"deny": ["Bash"], "deny": []}}', "'deny' stands twice"),
        ('{"permissions": {}, // x\n}', "line 1: this is not a JSON"),
        ('{\n"permissions": {},\n}', "line 3: this is not a JSON"),
        ('{"hooks": NaN}', "NaN is not a number"),
        ("[]", "must be an object"),
        ("", "this is not a JSON"),
        ("[" * 100_000, "this is not a JSON"),
    ],
)
def test_what_forbids_or_watches_and_cannot_be_read_refuses_the_file(
    tmp_path: Path, said: object, told: str
) -> None:
    """A1, A2: nothing that was to be forbidden is allowed in silence."""
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, said)
    first, _, second = told.partition(" .* ")
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "settings.json"))
    assert any(problem.is_fatal for problem in caught.value.problems)


@pytest.mark.parametrize("text", ["*", "mcp__*", "B*", "mcp__*__get", "*(path=a)"])
def test_no_file_allows_tools_that_nobody_has_named(tmp_path: Path, text: str) -> None:
    """A1: the rule is told of and left out."""
    found = read(tmp_path, {"permissions": {"allow": [text, "WebSearch"]}})
    (problem,) = found.problems
    assert problem.place == "permissions.allow[0]"
    assert repr(text) in problem.text
    assert found.rules == (Rule("allow", "WebSearch"),)


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("deny", "Bsh", "Bash may be meant"),
        ("ask", "Shell", "Bash may be meant"),
        ("allow", "WebSerch", "WebSearch may be meant"),
        ("deny", "github", "mcp__SERVER__TOOL"),
        ("deny", "MCP(github:*)", "no tool that is known"),
        ("deny", "Agent(modle:opus)", "Agent(model:opus) may be meant"),
        ("deny", "Bash(comand=rm*)", "Bash(rm*) may be meant"),
        ("deny", "Write(docs/**)", "use Edit(docs/**) in place of Write(docs/**)"),
        ("allow", "NotebookEdit(nb/**)", "use Edit(nb/**)"),
        ("ask", "Glob(secrets/**)", "use Read(secrets/**)"),
    ],
)
def test_a_rule_that_may_be_a_mistake_is_kept_and_told_of(
    tmp_path: Path, key: str, text: str, told: str
) -> None:
    """A1: nothing in silence."""
    found = read(tmp_path, {"permissions": {key: [text]}})
    (problem,) = found.problems
    assert problem.place == f"permissions.{key}[0]"
    assert repr(text) in problem.text
    assert told in problem.text
    assert [rule.text for rule in found.rules] == [text]


def test_names_of_strangers_are_right(tmp_path: Path) -> None:
    names = ["mcp__a__b", "my_tool", "mcp__*", "Monitor", "Task", "Skill(a:b)"]
    assert read(tmp_path, {"permissions": {"deny": names}}).problems == ()


@pytest.mark.parametrize(
    ("matcher", "told", "is_fatal"),
    [
        ("Bash(echo *)", '"matcher": "Bash", and "if": "Bash(echo *)"', True),
        ("Read(.env)", '"matcher": "Read", and "if"', True),
        ("Shell", "no known tool is called 'Shell'", False),
        ("bash_tool", "no known tool is called 'bash_tool'", False),
        ("Edit|Wrte", "Write may be meant", False),
        ("^Bsh$", "no known tool matches '^Bsh$'; Bash may be meant", False),
        ("Bsh(echo *)", "Bash may be meant", False),
        ("bash(echo *)", '"if": "Bash(echo *)"', True),
        ("^(Edit|Wrte)$", "no known tool is called 'Wrte'; Write may be meant", False),
    ],
)
def test_a_matcher_that_fits_no_tool_is_told_of(
    tmp_path: Path, matcher: str, told: str, is_fatal: bool
) -> None:
    """A2."""
    said = {"hooks": {"PreToolUse": [{**group(command="x")[0], "matcher": matcher}]}}
    if is_fatal:
        with pytest.raises(SettingsError) as caught:
            read(tmp_path, said)
        (problem,) = caught.value.problems
    else:
        (problem,) = read(tmp_path, said).problems
    assert problem.place == "hooks.PreToolUse[0].matcher"
    assert told in problem.text


@pytest.mark.parametrize(
    "matcher", ["Bash", "Edit|Write", "Edit, Write", "*", "", ".*", "mcp__a__.*", "^B"]
)
def test_a_matcher_that_fits_a_tool_is_right(tmp_path: Path, matcher: str) -> None:
    said = {"hooks": {"PreToolUse": [{**group(command="x")[0], "matcher": matcher}]}}
    assert read(tmp_path, said).problems == ()


def test_that_denied_files_can_be_read_by_commands_is_told_once(tmp_path: Path) -> None:
    deny = ["Read(.env)", "Edit(x/**)"]
    found = read(tmp_path, {"permissions": {"allow": ["Bash"], "deny": deny}})
    (problem,) = found.problems
    assert "do not bind Bash" in problem.text
    for allow in ([], ["Bash(make)"]):
        said = {"permissions": {"allow": allow, "deny": deny}}
        assert read(tmp_path, said).problems == ()


def test_files_of_codex_are_refused_by_their_kind(tmp_path: Path) -> None:
    for name in ("config.toml", "default.rules"):
        file = tmp_path / name
        file.write_text("")
        with pytest.raises(SettingsError, match="Codex"):
            read_settings(file)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    said = {
        "permissions": {"deny": ["Bash(", "Read(x)"], "ask": ["("], "allow": ["("]},
        "hooks": {"Nonsense": [], "PreToolUse": [{"hooks": [{"type": "prompt"}]}]},
        "env": {},
    }
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, said)
    places = [problem.place for problem in caught.value.problems]
    assert places == [
        "permissions.deny[0]",
        "permissions.ask[0]",
        "hooks.Nonsense",
        "hooks.PreToolUse[0].hooks[0].type",
        # What it is not refused for comes last, and is a note.
        "permissions.allow[0]",
        "env",
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(places)
    notes = [": only a note: " in line for line in lines]
    assert notes == [False] * 4 + [True] * 2


def test_hooks_can_be_turned_off(tmp_path: Path) -> None:
    said = {"hooks": {"PreToolUse": group(command="x")}, "disableAllHooks": True}
    assert read(tmp_path, said).hooks == Hooks()


@pytest.mark.parametrize(
    ("command", "args", "shell"),
    [
        ("./check.sh", [], "./check.sh"),
        ("a b", ["it's", "$HOME", ""], "'a b' 'it'\"'\"'s' '$HOME' ''"),
        (
            "${CLAUDE_PROJECT_DIR}/x y.sh",
            ["--in=$CLAUDE_PROJECT_DIR"],
            '"${CLAUDE_PROJECT_DIR}"\'/x y.sh\' --in="${CLAUDE_PROJECT_DIR}"',
        ),
    ],
)
def test_a_command_with_arguments_is_run_as_it_stands(
    tmp_path: Path, command: str, args: list[str], shell: str
) -> None:
    said = {"hooks": {"Stop": group(command=command, args=args)}}
    (hook,) = read(tmp_path, said).hooks.main_stop
    assert hook.run == shell


def test_a_file_of_hooks_alone_is_enough(tmp_path: Path) -> None:
    """Those of plugins, and of Codex."""
    file = tmp_path / "hooks.json"
    said = {
        "description": "Formats",
        "hooks": {"PostToolUse": group(command="x"), "PreCompact": []},
    }
    file.write_text("\ufeff" + json.dumps(said))
    hooks, problems = read_hooks(file)
    assert hooks.post_tool == (Hook("x", "Bash"),)
    assert [problem.place for problem in problems] == ["hooks.PreCompact"]
    file.write_text(json.dumps({"hook": {}}))
    with pytest.raises(SettingsError, match="no object 'hooks'; hooks may be meant"):
        read_hooks(file)
    with pytest.raises(SettingsError, match=r"nothing\.json: it cannot be read"):
        read_hooks(tmp_path / "nothing.json")


def test_a_slash_in_a_rule_is_the_directory_that_the_file_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM1."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    said = '{"permissions": {"allow": ["Edit(/src/**)"]}}'
    for file, root in (
        ("project/.claude/settings.json", "project"),
        ("me/.claude/settings.json", "me/.claude"),
        ("conf/settings.json", "conf"),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(said)
        (rule,) = read_settings(path).rules
        call = {"file_path": str(tmp_path / root / "src" / "a")}
        assert rule.matches("Edit", call, "/elsewhere")
        assert not rule.matches("Edit", {"file_path": "/elsewhere/src/a"}, "/elsewhere")
    monkeypatch.chdir(tmp_path / "project")
    (rule,) = read_settings(".claude/settings.json").rules
    assert rule.matches("Edit", {"file_path": "src/a"}, "/wherever")


KEYS = st.sampled_from(
    "permissions hooks allow deny ask defaultMode model env disableAllHooks PreToolUse"
    " Stop matcher type command args if timeout async x".split()
)
VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["Bash", "Bash(x)", "command", "plan", "(", "bash", "http", ""])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def attempt(file: Path) -> FileSettings | None:
    """Return what it says; None if it is refused."""
    try:
        return read_settings(file)
    except SettingsError as error:
        told = str(error)
    assert told.startswith(str(file))
    return None


@given(st.dictionaries(KEYS, VALUES, max_size=4) | VALUES)
def test_whatever_a_file_holds_it_is_settings_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, said: Any
) -> None:
    """And what it forbids is forbidden, or the file refused."""
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(said))
    found = attempt(file)
    if found is None:
        return
    told = said.get("permissions", {})
    for effect in ("deny", "ask"):
        texts = [rule.text for rule in found.rules if rule.effect == effect]
        assert texts == told.get(effect, [])


@given(st.binary())
def test_whatever_bytes_a_file_holds_it_is_settings_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_bytes(data)
    attempt(file)
