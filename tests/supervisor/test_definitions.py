"""Agents from Markdown files, as people write them."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from supervisor.definitions import (
    AgentDefinition,
    DefinitionError,
    parse_definition,
    read_definition,
    read_definitions,
)
from supervisor.definitions._frontmatter import HeadField, _with_lines
from supervisor.hooks import Hook, Hooks

HEAD = "name: reviewer\ndescription: Reads changes\n"


def page(head: str, body: str = "You review.") -> str:
    return f"---\n{head}\n---\n{body}\n"


def parse(more: str = "", body: str = "You review.") -> AgentDefinition:
    return parse_definition(page(HEAD + more, body))


def test_every_field_is_read() -> None:
    """The issue, section 6: definitions from Markdown files."""
    definition = parse_definition(
        page(
            "name: code-reviewer\n"
            "description: Use it after a change\n"
            "tools: [Bash, TaskOutput]\n"
            "disallowed-tools:\n  - TaskWrite\n  - Agent\n"
            "model: anthropic/opus\n"
            "background: true\n"
            "permission-mode: plan\n"
            "restart: transient\n"
            "max-turns: 7\n"
            "forkContext: true",
            "\n# Review\n\n--- \nnot the end\n",
        ),
        Path("a.md"),
    )
    assert definition == AgentDefinition(
        name="code-reviewer",
        description="Use it after a change",
        prompt="# Review\n\n--- \nnot the end",
        tools=("Bash", "TaskOutput"),
        disallowed_tools=("TaskWrite", "Agent"),
        model="anthropic/opus",
        background=True,
        permission_mode="plan",
        restart="transient",
        max_turns=7,
        fork_context=True,
        source=Path("a.md"),
    )


def test_what_is_not_said_has_its_default() -> None:
    assert parse() == AgentDefinition(
        name="reviewer", description="Reads changes", prompt="You review."
    )
    plain = parse()
    assert (plain.tools, plain.disallowed_tools, plain.model) == (None, (), None)
    assert (plain.background, plain.restart) == (False, "temporary")


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("allowed-tools: Bash", "tools", ("Bash",)),
        ("allowed_tools: Bash", "tools", ("Bash",)),
        ("allowedTools: Bash", "tools", ("Bash",)),
        ("Tools: Bash", "tools", ("Bash",)),
        ("disallowedTools: Bash", "disallowed_tools", ("Bash",)),
        ("disallowed_tools: Bash", "disallowed_tools", ("Bash",)),
        ("permissionMode: plan", "permission_mode", "plan"),
        ("permission_mode: acceptEdits", "permission_mode", "accept_edits"),
        ("permissionMode: bypassPermissions", "permission_mode", "bypass"),
        ("permissionMode: dontAsk", "permission_mode", "deny"),
        ("permissionMode:", "permission_mode", None),
        ("maxTurns: 3", "max_turns", 3),
        ("max_turns: '3'", "max_turns", 3),
        ("model: no", "model", "no"),
        ("model: 4.10", "model", "4.10"),
        ("model: inherit", "model", None),
        ("model:", "model", None),
        ("model: opus  # the large one", "model", "opus"),
        ("background: yes", "background", True),
        ("background: 'false'", "background", False),
        ("background: Off", "background", False),
        (
            "tools: Bash, TaskOutput,TaskStop",
            "tools",
            ("Bash", "TaskOutput", "TaskStop"),
        ),
        ("tools: Bash TaskOutput", "tools", ("Bash", "TaskOutput")),
        ("tools: Bash, Bash", "tools", ("Bash",)),
        ('tools: ["Bash, TaskStop", Agent]', "tools", ("Bash", "TaskStop", "Agent")),
        ("tools: mcp__git__log, mcp__*", "tools", ("mcp__git__log", "mcp__*")),
        ("disallowedTools: mcp__*", "disallowed_tools", ("mcp__*",)),
        ("disallowedTools: mcp__git", "disallowed_tools", ("mcp__git",)),
        ("disallowedTools: mcp__git__*", "disallowed_tools", ("mcp__git__*",)),
        ("tools: []", "tools", ()),
        ("tools: '*'", "tools", None),
        ("color: red\nversion: 1.0\nmetadata:\n  a: [1]", "tools", None),
        ("x: &a [1]\ny: *a", "tools", None),
        ("name2: !!python/object:os.system x", "name", "reviewer"),
    ],
)
def test_a_field_may_be_written_in_the_usual_ways(
    line: str, field: str, value: object
) -> None:
    """Spellings in the wild; text stays text, also where YAML would make a bool or
    a number of it."""
    assert getattr(parse(line), field) == value


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (
            "name: a\ndescription: Use this when: the user asks\nmodel: no",
            {"description": "Use this when: the user asks", "model": "no"},
        ),
        (
            "name: a\ndescription: Use: it\ntools:\n\t- Bash\n\t- Agent",
            {"description": "Use: it", "tools": ("Bash", "Agent")},
        ),
        (
            "name: a\ndescription: 'it's fine'",
            {"description": "it's fine"},
        ),
        (
            'name: a\ndescription: "never closed\nmodel: opus',
            {"description": "never closed", "model": "opus"},
        ),
        (
            'name: a\ndescription: "open\nmodel: opus\nx: y"',
            {"description": "open", "model": "opus"},
        ),
        (
            "name: a\ndescription: [beta] does: this\ntools: [Bash, Agent]",
            {"description": "[beta] does: this", "tools": ("Bash", "Agent")},
        ),
        (
            "name: a\ndescription: |\n  one: two\n\n  three\nx: y: z",
            {"description": "one: two\n\nthree"},
        ),
        (
            "name: a\ndescription: >-\n  one\n  two\nx: y: z",
            {"description": "one two"},
        ),
        (
            "name: a\ndescription: one: two\n  three # four\n# a comment\n\nmodel: m # n",
            {"description": "one: two three", "model": "m"},
        ),
        (
            "name: a\ndescription: @user `x` %y\ntools: Bash",
            {"description": "@user `x` %y", "tools": ("Bash",)},
        ),
        (
            'name: a\ndescription: Use it. Examples:\\n\\n<example>\\nuser: "x"\\n',
            {"description": 'Use it. Examples:\\n\\n<example>\\nuser: "x"\\n'},
        ),
    ],
)
def test_yaml_that_is_broken_in_a_usual_way_is_read_line_by_line(
    head: str, expected: dict[str, Any]
) -> None:
    """As in the wild: bare colons, tabs, open quotes, brackets."""
    definition = parse_definition(page(head))
    assert {name: getattr(definition, name) for name in expected} == expected


TOOLS = st.lists(
    st.sampled_from(["Bash", "Write", "Read", "mcp__x__y"]), min_size=1, unique=True
)
COMMENTS = st.sampled_from(
    ["", " # no shell", " # nor: this", " # - Grep", " # Grep, [Glob]", " # it's"]
)
BETWEEN = st.sampled_from(["", "\n  # nor this", "\n# Grep", "\n\n  # - Grep", "\n "])


@st.composite
def tool_lists(draw: st.DrawFn, names: list[str]) -> str:
    """These names, in any spelling, with comments anywhere."""

    def ends(line: str) -> str:
        return line + draw(COMMENTS) + draw(BETWEEN)

    quote = draw(st.sampled_from(["", "'", '"']))
    spelling = draw(st.sampled_from(["items", "flow", "comma", "text", "block"]))
    if spelling == "items":
        indent = draw(st.sampled_from(["", "  "]))
        lines = [ends(f"{indent}- {quote}{name}{quote}") for name in names]
        return "\n".join([ends(""), *lines])
    if spelling == "block":
        sign = draw(st.sampled_from(["|", ">", ">-"]))
        return "\n  ".join([f" {sign}{draw(COMMENTS)}", *names])
    if spelling == "text":
        joint = draw(st.sampled_from([", ", " ", ",\n  "]))
        return ends(f" {quote}{joint.join(names)}{quote}")
    if spelling == "flow":
        names = [f"{quote}{name}{quote}" for name in names]
    lines = [ends(f"{name},") for name in names[:-1]] + [names[-1]]
    text = "\n  ".join(lines)
    return ends(f" [{text}]" if spelling == "flow" else f" {text}")


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    TOOLS,
    st.sampled_from(["tools", "disallowed-tools"]),
    st.sampled_from(["Reads", "Use when: needed", '"open', "it: 'x", "a\n\tb: c"]),
    st.booleans(),
)
def test_a_comment_in_a_list_of_tools_takes_none_away_and_adds_none(
    data: st.DataObject, names: list[str], key: str, description: str, first: bool
) -> None:
    """A4: in every spelling, beside a description that YAML reads or not, the list is
    the plain one, or it is refused."""
    lines = [f"description: {description}", f"{key}:{data.draw(tool_lists(names))}"]
    head = "\n".join(["name: a", *(lines[::-1] if first else lines), "model: m"])
    result = attempt(partial(parse_definition, page(head)))
    if isinstance(result, AgentDefinition):
        found = result.tools if key == "tools" else result.disallowed_tools
        assert found == tuple(names)
        assert result.model == "m"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("Bash, # no shell\n  Write", ("Bash", "Write")),
        ("\n  - Bash\n  # nor this\n  - Write", ("Bash", "Write")),
        (" # never Read\n  - Bash\n  - Write # nor this", ("Bash", "Write")),
        ("[Bash, # no\n  # nor\n  Write]", ("Bash", "Write")),
        ("\n  - 'Bash' # no\n  - \"Write\"", ("Bash", "Write")),
        (">- # both\n  Bash\n  Write", ("Bash", "Write")),
    ],
)
@pytest.mark.parametrize("description", ["Reads", "Use when: needed"])
def test_a_comment_ends_with_its_line(
    description: str, more: str, expected: tuple[str, ...]
) -> None:
    """A4."""
    head = f"name: a\ndescription: {description}\ndisallowed-tools: {more}"
    assert parse_definition(page(head)).disallowed_tools == expected


@pytest.mark.parametrize("word", ["-", "#", "#Write", "//", "--", "Ba#sh", ";", "&"])
@pytest.mark.parametrize("key", ["tools", "disallowed-tools"])
def test_a_word_that_names_no_tool_is_refused(key: str, word: str) -> None:
    """A4: such as a comment of another language, which may have taken some away."""
    with pytest.raises(DefinitionError, match="only names of tools"):
        parse(f'{key}: "Bash {word} Write"')


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", "\ufeff\n"])
def test_a_mark_at_the_beginning_and_other_line_ends_do_no_harm(
    newline: str, start: str
) -> None:
    """BOM and CRLF."""
    text = (start + page(HEAD + "tools: Bash", "One.\n\nTwo.")).replace("\n", newline)
    definition = parse_definition(text)
    assert (definition.name, definition.tools) == ("reviewer", ("Bash",))
    assert definition.prompt == "One.\n\nTwo."


def test_a_line_separator_inside_of_a_line_ends_none() -> None:
    """Only an editor's line ends do: the numbers of the lines agree with it."""
    body = "one\u2028---\x85two\x0cthree"
    assert parse("", body).prompt == body
    with pytest.raises(DefinitionError, match=":5: restart must be"):
        parse_definition(
            page("name: a\ndescription: x\u2028y\x85z\n\nrestart: often"), Path("a")
        )


@pytest.mark.parametrize(
    "name",
    ["prüfer", "レビュー", "проверка", "code reviewer", "v1.2", "हिन्दी", "a_b-c"],
)
def test_a_name_may_be_of_any_script(name: str) -> None:
    assert parse_definition(page(f"name: {name}\ndescription: x")).name == name


def test_a_name_is_the_same_however_its_characters_are_composed() -> None:
    composed = parse_definition(page("name: pr\u00fcfer\ndescription: x"))
    combined = parse_definition(page("name: pru\u0308fer\ndescription: x"))
    assert composed.name == combined.name


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "..", ".", ".hidden", "a/b", "a\\b", "C:x", "~", "a..b", "-rf", "a."),
        *(
            '"a\\0b"',
            '"a\\nb"',
            '"a\\u202eb"',
            "a\u200bb",
            "a\x1bb",
            "a<b>",
            "a|b",
            "a*",
        ),
        *("a  b", "''", "x" * 65, '"\\ud800"', "$HOME", "a,b"),
    ],
)
def test_a_name_that_is_a_path_or_a_trick_is_refused(name: str) -> None:
    """OF16: nothing that is called so can mean a place or hide what it is."""
    with pytest.raises(DefinitionError, match=r":3: ") as caught:
        parse_definition(page(f"description: x\nname: {name}"), Path("a.md"))
    str(caught.value).encode()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "there is no frontmatter: begin the file with a line ---"),
        ("You review.", 1, "there is no frontmatter"),
        ("\n\nname: a", 3, "there is no frontmatter"),
        ("----\nname: a\n---\nx", 1, "there is no frontmatter"),
        ("---\nname: a\n\nYou review.", 1, "never closed: put a line ---"),
        ("---\n---\nx", 1, "there is no name: add a line 'name: ...'"),
        (page("name: a"), 1, "there is no description"),
        (page("description: a"), 1, "there is no name"),
        (page(HEAD, "  \n"), None, "there is no prompt: write it below"),
        (page("just text"), 2, "this is not a field: write it as 'key: value'"),
        (page("- a\n- b"), 2, "this is not a field"),
        (page("name: a\nb: c: d\nwhat is this"), 4, "this is not a field"),
        (page("name:a\ndescription:b"), 2, "this is not a field"),
        (page(HEAD + "name: b"), 4, "name is given twice, first in line 2"),
        (page("name: a\nx: y: z\nname: b"), 4, "name is given twice, first in line 2"),
        (page(HEAD + "tools: A\nallowed-tools: B"), 5, "given twice, first in line 4"),
        (page("name: [a]\ndescription: b"), 2, "name must be text"),
        (page("name: a\ndescription: {b: c}"), 3, "description must be text"),
        (page("name: a\ndescription:"), 3, "description must not be empty"),
        (page("name:\ndescription: a"), 2, "name must not be empty"),
        (page(HEAD + "tools:"), 4, "tools is empty: name tools, or remove the line"),
        (page(HEAD + "tools: {write: false}"), 4, "tools must be a list of names"),
        (page(HEAD + "tools: [[a]]"), 4, "tools must be a list of names"),
        (page(HEAD + "tools: Bash(git log, x)"), 4, "not 'Bash(git log, x)': name the"),
        (page(HEAD + "tools: Bash)"), 4, "tools may hold only names of tools"),
        (page(HEAD + "tool: Bash"), 4, "'tool' is unknown, and tools may be meant"),
        (page(HEAD + "alowed-tools: Bash"), 4, "and tools may be meant"),
        (page(HEAD + "dissallowedTools: A"), 4, "and disallowed_tools may be meant"),
        (page(HEAD + "background: maybe"), 4, "background must be true or false"),
        (
            page(HEAD + "permissionMode: yolo"),
            4,
            "must be one of default, accept_edits",
        ),
        (page(HEAD + "restart: always"), 4, "restart must be one of"),
        (page(HEAD + "maxTurns: 0"), 4, "maxTurns must be a plain whole number"),
        (page(HEAD + "maxTurns: 1e3"), 4, "maxTurns must be a plain whole number"),
        (page(HEAD + "maxTurns: " + "9" * 5000), 4, "must be a plain whole number"),
        (page(HEAD + "model: a b"), 4, "model must be one word"),
        (page(HEAD + 'model: "a\\nb"'), 4, "model must be one word"),
        (page("name: a\ndescription: " + "x" * 16_385), 3, "at most 16384 characters"),
        (page("x" * 65_537), 1, "more than 65536 characters"),
        ("---\n" + "- [" * 20_000 + "\n---\nx", 2, "this is not a field"),
    ],
)
def test_an_error_names_file_and_line_and_what_to_do(
    text: str, line: int | None, words: str
) -> None:
    """The issue, section 6."""
    with pytest.raises(DefinitionError, match=re.escape(words)) as caught:
        parse_definition(text, Path("dir/a.md"))
    assert caught.value.line == line
    place = "dir/a.md" if line is None else f"dir/a.md:{line}"
    assert str(caught.value).startswith(f"{place}: ")
    assert len(str(caught.value)) < 500


def test_a_text_without_a_file_says_so() -> None:
    with pytest.raises(DefinitionError, match="agent definition:1: there is no front"):
        parse_definition("")


def attempt(read: Callable[[], AgentDefinition]) -> AgentDefinition | DefinitionError:
    try:
        return read()
    except DefinitionError as error:
        return error


KEYS = ["name", "description", "tools", "allowed-tools", "model", "maxTurns", "x", "? "]
PIECES = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from(
        [
            *(
                "---",
                "...",
                "- ",
                "\n",
                "\r",
                "\t",
                ": ",
                "[",
                "]",
                "{",
                "}",
                "*a",
                "&a",
            ),
            *("'", '"', "|", ">", "!!x", "%YAML 9.9\n", "<<", "#", "\\ud800", "no"),
            *('"\\U00110000"', "\ufeff", "\x00", "\ud800", "\x85", "\u2028", "1e999"),
        ]
    ),
)
LINES = st.builds(
    "{}: {}".format, st.sampled_from(KEYS), st.lists(PIECES, max_size=4).map("".join)
)
TEXTS = st.one_of(
    st.text(st.characters()),
    st.lists(PIECES).map("".join),
    st.builds(page, st.lists(LINES | PIECES, max_size=8).map("\n".join)),
    st.builds(page, st.lists(LINES, max_size=4).map(lambda x: HEAD + "\n".join(x))),
)


@settings(deadline=None)
@given(TEXTS)
@example(page("? " * 5_000))
@example(page("x: " + "[" * 10_000))
@example(page("a: " + " " * 60_000))
@example(page(HEAD + 'x: "\\U00110000"'))
@example(page("%YAML " + "9" * 5_000 + ".1\n---\n" + HEAD))
def test_no_text_makes_it_raise_anything_but_its_own_error(text: str) -> None:
    """Property: whatever is in the file, it is an agent or a DefinitionError that
    can be told."""
    result = attempt(partial(parse_definition, text, Path("a.md")))
    if isinstance(result, DefinitionError):
        str(result).encode()
        lines = len(re.split("\r\n|\r|\n", text))
        assert (result.line or 1) in range(1, lines + 1)
    else:
        result.name.encode()
        result.description.encode()
        assert result.name and result.description and result.prompt


@settings(deadline=None)
@given(st.binary() | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_file_makes_it_raise_anything_but_its_own_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.md"
    path.write_bytes(data)
    result = attempt(partial(read_definition, path))
    if isinstance(result, DefinitionError):
        assert str(result).startswith(str(path))
    else:
        assert result.source == path


@settings(deadline=None)
@given(
    st.text("abcXYZ äß", min_size=1, max_size=30).filter(lambda t: t.strip() == t),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1),
    st.none()
    | st.lists(st.sampled_from(["A", "B", "mcp__x"]), unique=True, min_size=1),
)
def test_a_definition_written_as_yaml_is_read_as_it_was_meant(
    name: str, description: str, tools: list[str] | None
) -> None:
    if "  " in name:
        return
    lines = [
        f"name: {name}",
        f"description: {json.dumps(description, ensure_ascii=False)}",
    ]
    if tools is not None:
        lines.append(f"tools: {json.dumps(tools)}")
    definition = parse_definition(page("\n".join(lines)))
    assert definition.tools == (None if tools is None else tuple(tools))
    assert definition.description == description


# Files


def write(directory: Path, name: str, head: str = HEAD) -> Path:
    path = directory / name
    path.write_text(page(head), encoding="utf-8")
    return path


def test_a_file_is_read_and_remembered_as_the_source(tmp_path: Path) -> None:
    path = write(tmp_path, "a.md")
    assert read_definition(path) == read_definition(str(path))
    assert read_definition(path).source == path


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"none\.md: it cannot be read: No such"):
        read_definition(tmp_path / "none.md")
    with pytest.raises(DefinitionError, match=r"it cannot be read|no regular file"):
        read_definition(tmp_path)
    with pytest.raises(DefinitionError, match="it cannot be read"):
        read_definition("a\0b")
    (tmp_path / "16.md").write_text(page(HEAD), encoding="utf-16")
    with pytest.raises(DefinitionError, match=r"16\.md:1: this is not UTF-8: save the"):
        read_definition(tmp_path / "16.md")
    (tmp_path / "latin.md").write_bytes(page(HEAD, "one\ntw\u00f6").encode("latin-1"))
    with pytest.raises(DefinitionError, match=r"latin\.md:7: this is not UTF-8"):
        read_definition(tmp_path / "latin.md")
    (tmp_path / "large.md").write_bytes(b"x" * 1_000_001)
    with pytest.raises(DefinitionError, match="more than 1000000 bytes"):
        read_definition(tmp_path / "large.md")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_nobody_writes_to_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(DefinitionError, match="it is not a regular file"):
        read_definition(tmp_path / "pipe.md")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """P1: neither by a good file nor by what is none."""
    write(tmp_path, "a.md")
    (tmp_path / "dir.md").mkdir()
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "bad.md").write_bytes(b"\xff")
    read_definitions(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        read_definitions(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_one_bad_file_costs_nothing_but_itself(tmp_path: Path) -> None:
    """A directory gives the good ones and the problems."""
    write(tmp_path, "b.md", "name: b\ndescription: x")
    write(tmp_path, "a.MD", "name: a\ndescription: x")
    write(tmp_path, "bad.md", "name: bad\ndescription: x\nrestart: often")
    write(tmp_path, ".hidden.md", "name: hidden\ndescription: x")
    write(tmp_path, "notes.txt", "name: notes\ndescription: x")
    (tmp_path / "dir.md").mkdir()
    definitions, problems = read_definitions(tmp_path)
    assert list(definitions) == ["a", "b"]
    assert [(p.source and p.source.name, p.line) for p in problems] == [
        ("bad.md", 4),
        ("dir.md", None),
    ]


@pytest.mark.parametrize("other", ["Reviewer", "ｒeviewer", "reviewer"])
def test_of_two_that_are_called_the_same_the_second_is_a_problem(
    tmp_path: Path, other: str
) -> None:
    write(tmp_path, "a.md")
    write(tmp_path, "b.md", f"name: {other}\ndescription: x")
    definitions, problems = read_definitions(tmp_path)
    assert list(definitions) == ["reviewer"]
    (problem,) = problems
    assert str(problem).startswith(str(tmp_path / "b.md"))
    assert f"is taken by {tmp_path / 'a.md'}: rename one" in str(problem)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_definitions(tmp_path / "none")
    assert read_definitions(tmp_path) == ({}, [])


# By hand


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"name": 3}, TypeError, "name must be a str, not 3"),
        ({"name": "../x"}, ValueError, "name may hold .* not '/'"),
        ({"description": " "}, ValueError, "description must not be empty"),
        ({"prompt": ""}, ValueError, "prompt must not be empty"),
        ({"prompt": "\ud800"}, ValueError, "prompt holds half a surrogate"),
        ({"tools": ["Bash"]}, TypeError, r"tools must be a tuple .*\['Bash'\]"),
        ({"tools": ("Bash(x)",)}, ValueError, r"tools may .*'Bash\(x\)'"),
        (
            {"disallowed_tools": (3,)},
            TypeError,
            "disallowed_tools must hold only str, not 3",
        ),
        ({"model": ""}, ValueError, "model must be one word"),
        ({"background": 1}, TypeError, "background must be True or False, not 1"),
        ({"permission_mode": "x"}, ValueError, "permission_mode must be one of"),
        ({"restart": "x"}, ValueError, "restart must be one of"),
        ({"max_turns": True}, TypeError, "max_turns must be a whole number"),
        (
            {"max_turns": 0},
            ValueError,
            "max_turns must be a whole number, 1 or more, not 0",
        ),
    ],
)
def test_a_definition_made_by_hand_is_checked(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """The house: a bad argument is an error at construction, by name and value."""
    given: dict[str, Any] = {"name": "a", "description": "b", "prompt": "c"}
    given |= arguments
    with pytest.raises(error, match=words):
        AgentDefinition(**given)


@pytest.mark.parametrize(
    "more",
    [
        "disallowed-tools: '*'",
        "disallowed-tools: B*",
        "disallowed-tools: mcp__",
        "disallowed-tools: Bash, '*__log'",
        "tools: Read, B*",
        "disallowedTools:\n  - Bash\n  - Task*",
        "<<: {tools: Read}",
        "base: &base {tools: Read}\n<<: *base",
    ],
)
def test_what_would_restrict_nothing_is_refused(more: str) -> None:
    """The fields that restrict an agent must not be passed over in silence."""
    with pytest.raises(DefinitionError, match=r":[34-9]: ") as caught:
        parse_definition(page(HEAD + more), Path("a.md"))
    assert "must name each tool" in str(caught.value) or "<<" in str(caught.value)


def test_everything_that_is_wrong_is_told() -> None:
    """The issue, section 6."""
    text = page("name: a\nmodel: a b\nmaxTurns: 0\npermissionMode: yolo\ntool: x")
    with pytest.raises(DefinitionError) as caught:
        parse_definition(text, Path("a.md"))
    lines = str(caught.value).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "a.md:3:",
        "a.md:4:",
        "a.md:5:",
        "a.md:6:",
        "a.md:1:",
    ]
    assert "model must be one word" in lines[0]
    assert "maxTurns must be" in lines[1]
    assert "permission_mode must be" in lines[2]
    assert "'tool' is unknown" in lines[3]
    assert "there is no description" in lines[4]
    assert caught.value.line == 3
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_without_pyyaml_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"trio-supervisor\[agents\]"):
        parse_definition(page(HEAD))


# Fields that guard, and fields that are not there


GUARD = """hooks:
  PreToolUse:
    - matcher: Bash
      hooks:
        - type: command
          command: ./check.sh
          timeout: 5
  Stop:
    - hooks:
        - {type: command, command: "true"}
"""


def test_the_hooks_of_a_definition_are_read() -> None:
    """A4."""
    found = parse_definition(page(HEAD + GUARD))
    assert found.hooks == Hooks(
        pre_tool=[Hook("./check.sh", "Bash", timeout=5)],
        stop=[Hook("true")],
        timeout=600,
    )


@pytest.mark.parametrize(
    ("more", "line", "words"),
    [
        ("hooks: [x]", 4, "hooks must be a mapping of events"),
        ("hooks:", 4, "hooks must be a mapping of events"),
        ("hooks: {PreToolUsage: []}", 4, "PreToolUse may be meant"),
        ("hooks: {PreToolUse: {}}", 4, "hooks.PreToolUse: must be a list"),
        ("hooks: {PreToolUse: [{hooks: [{type: prompt}]}]}", 4, "of the type command"),
        (GUARD + "x: y: z", 4, "hooks must be a mapping of events"),
        ("hooks: &a {PreToolUse: *a}", 4, "hooks"),
        ("hook: {PreToolUse: []}", 4, "hooks may be meant"),
        ("isolation: worktree", 4, "isolation is not honoured: "),
        ("forkContext: maybe", 4, "forkContext must be true or false, not 'maybe'"),
        ("fork_contxt: true", 4, "fork_context may be meant"),
        ("tool: Read", 4, "tools may be meant"),
        ("allowedTool: Read", 4, "tools may be meant"),
        ("disallowed_tool: Bash", 4, "disallowed_tools may be meant"),
        ("denied-tools: Bash", 4, "may be meant"),
        ("deny: Bash", 4, "'deny' is unknown"),
        ("permissions: {deny: [Bash]}", 4, "'permissions' is unknown"),
        ("permision-mode: plan", 4, "permission_mode may be meant"),
        ("mode: plan", 4, "'mode' is unknown"),
        ("readonly: true", 4, "'readonly' is unknown"),
        ("\uff54\uff4f\uff4f\uff4c: Read", 4, "tools may be meant"),
        ("max_turn: 3", 4, "max_turns may be meant"),
        ("backgroud: true", 4, "background may be meant"),
        ("permissionMode: plann", 4, "permission_mode must be one of"),
        ("permissionMode: auto", 4, "permission_mode must be one of"),
    ],
)
def test_a_guard_that_cannot_be_honoured_is_no_agent(
    tmp_path: Path, more: str, line: int, words: str
) -> None:
    """It does not run unguarded, and the right spelling is told."""
    path = write(tmp_path, "a.md", HEAD + more)
    definitions, problems = read_definitions(tmp_path)
    assert definitions == {}
    (problem,) = problems
    assert words in str(problem)
    assert (problem.source, problem.line) == (path, line)


@pytest.mark.parametrize(
    "head",
    [
        "name: a\ndescription: reads\n  tools: Read",
        "name: a\ndescription: reads\n\ttools: Read",
        "name: a\ndescription: >\n  reads\n  disallowedTools: Bash",
        "name: a\ndescription: |\n  reads\n  permissionMode: plan",
        'name: a\ndescription: "reads\n  allowed-tools: Read"',
        "name: a\ndescription: reads: all\n  hooks:\n    PreToolUse: []",
        "name: a\nmodel: opus\n  max-turns: 3\ndescription: x",
        "name: a\ndescription: x\nmetadata:\n  author: me\n  tools: Read",
        "name: a\ndescription: x\ntools:\n  - Read\n  disallowedTools: Bash",
        *(
            f"name: a\ndescription: {text}\n  {line}"
            for text in ("Reads", "Use when: needed")
            for line in (
                *("disallowed-tool: Bash", "denied-tools: Bash", "maxTurn: 3"),
                *("permission-modes: plan", '"disallowed-tools": Bash', "hook: x"),
                *("- allowed_tool: Read", "'permissionMode': plan", "blockedTools: x"),
            )
        ),
        *(
            f"name: a\ndescription: {text}\nmetadata:{value}"
            for text in ("Reads", "Use when: needed")
            for value in (
                *(" {disallowed-tools: Bash}", "\n  - disallowed-tools: Bash"),
                *('\n  "disallowed-tools": Bash', ' {"disallowed-tools":"Bash"}'),
                *(" {x: [a, {denied_tools: Bash}]}", " {\n  a: b, maxTurn: 3}"),
            )
        ),
    ],
)
def test_a_restriction_that_is_indented_is_no_description(
    tmp_path: Path, head: str
) -> None:
    """A4."""
    write(tmp_path, "a.md", head)
    definitions, problems = read_definitions(tmp_path)
    assert definitions == {}
    assert "is indented, so that it belongs to" in str(problems[0])


@pytest.mark.parametrize(
    "more",
    [
        "metadata: {deny: Bash}",
        "metadata:\n  deny: Bash",
        "metadata:\n  team:\n    - forbidden: [Bash]",
        'metadata: {"team": {"Allowed": ["Read"]}}',
        "x-team:\n  read-only: true",
    ],
)
def test_what_reads_like_a_restriction_is_told_of_wherever_it_stands(more: str) -> None:
    """A4: it restricts nothing there."""
    with pytest.raises(DefinitionError, match="is indented, so that it belongs to"):
        parse(more)


def test_what_means_nothing_here_may_hold_anything_else() -> None:
    assert (
        parse("metadata:\n  author: {name: me}\n  versions: [{of: 1.0}]").tools is None
    )


@pytest.mark.parametrize("field", ["tools", "disallowedTools"])
@pytest.mark.parametrize(
    "value", ["Agent(worker, researcher)", "Read, Task(worker)", '["Agent(a)", "Read"]']
)
def test_types_of_agents_in_a_list_of_tools_are_refused_with_the_rule_to_write(
    field: str, value: str
) -> None:
    with pytest.raises(DefinitionError, match=r"name Agent, and deny Agent\(TYPE\)"):
        parse(f"{field}: {value}")


EXAMPLES = """
  Use it when: the user asks. Allowed: all, Tools used: two.
  Context: a change
  user: "Which tools: these?"
  assistant: I use my tools: Bash, and tool_name: x
  Tool: Bash
  - tool-use: as ever
  Permissions: none, Mode: any
  {see: this, tools: those}"""


@pytest.mark.parametrize("start", ["|", ">-", "Use: it"])
def test_prose_with_colons_is_no_restriction(start: str) -> None:
    """A4."""
    head = f"name: a\ndescription: {start}{EXAMPLES}\ntools: Read"
    definition = parse_definition(page(head))
    assert definition.tools == ("Read",)
    assert "tool-use: as ever" in definition.description


@pytest.mark.parametrize("wrong", ["bash", "BASH", "webfetch"])
def test_a_denied_tool_in_wrong_capitals_is_refused_with_the_right_ones(
    wrong: str,
) -> None:
    """A4: it would forbid nothing."""
    with pytest.raises(DefinitionError, match=r"write (Bash|WebFetch)"):
        parse(f"disallowed-tools: {wrong}")


@pytest.mark.parametrize(
    "large",
    ["'\n" + "  a\n" * 8_000 + "  '", "{a: [" + "a," * 9_900 + "]}"],
    ids=["lines", "nodes"],
)
def test_many_aliases_cost_no_more_than_what_they_stand_for(large: str) -> None:
    """A4."""
    names = [f"x{number}: " for number in range(3_000)]

    def seconds(value: str) -> float:
        began = time.process_time()
        parse("\n".join([f"first: &x {large}", *(name + value for name in names)]))
        return time.process_time() - began

    # It would be many times as much, if each were read.
    assert seconds("*x") < 4 * max(seconds("y"), seconds("y"))


@pytest.mark.parametrize(
    "more",
    [
        "skills: [a]",
        "mcpServers:\n  - x:\n      command: y",
        "memory: project",
        "effort: high",
    ],
)
def test_an_agent_that_merely_can_less_is_given_and_told_of(
    tmp_path: Path, more: str
) -> None:
    """A4."""
    path = write(tmp_path, "a.md", HEAD + more)
    definitions, problems = read_definitions(tmp_path)
    assert list(definitions) == ["reviewer"]
    (problem,) = problems
    assert str(problem).startswith(f"{path}:4: ")
    assert "is not honoured" in str(problem)
    with pytest.raises(DefinitionError, match="is not honoured"):
        read_definition(path)


@pytest.mark.parametrize(
    "more",
    [
        *("color: red", "initialPrompt: hello", "version: 2", "author: me"),
        *("isolation: none", "forkContext: false", "skills: []", "mcpServers: {}"),
        "description2: x",
    ],
)
def test_what_means_nothing_is_no_problem(tmp_path: Path, more: str) -> None:
    write(tmp_path, "a.md", HEAD + more)
    definitions, problems = read_definitions(tmp_path)
    assert (list(definitions), problems) == (["reviewer"], [])


def test_the_time_for_a_head_goes_with_its_length() -> None:
    """And not with its fields times its lines."""
    lines = 20_000
    fields = [HeadField(f"k{n}", "1", n + 2) for n in range(lines)]
    head = [f"k{n}: 1" for n in range(lines)]
    began = time.process_time()
    assert _with_lines(fields, head, 2) == fields
    assert time.process_time() - began < 1.0


def test_no_alias_makes_a_field_larger_than_the_file() -> None:
    """Each stands for nine of the one before it."""
    lines = ["a0: &a0 [{x: y}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    text = page(HEAD + "\n".join([*lines, "hooks: {PreToolUse: *a29}"]))
    with pytest.raises(DefinitionError, match="hooks must be a mapping"):
        parse_definition(text)


def test_directories_below_are_read_and_links_to_them_told_of(tmp_path: Path) -> None:
    """C11."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    write(tmp_path, "z.md", "name: z\ndescription: x")
    write(tmp_path / "b", "y.md", "name: y\ndescription: x")
    write(tmp_path / "b" / "c", "x.md", "name: x\ndescription: x")
    write(tmp_path / "b" / "c", "z.md", "name: z\ndescription: x")
    write(tmp_path / ".git", "w.md", "name: w\ndescription: x")
    (tmp_path / "a").symlink_to(tmp_path)
    definitions, problems = read_definitions(tmp_path)
    assert list(definitions) == ["z", "y", "x"]
    assert [str(problem).partition(": ")[2][:12] for problem in problems] == [
        "a link to a ",
        "the name 'z'",
    ]
