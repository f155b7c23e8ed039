"""The fields at the head of a Markdown file, with the lines they stand in.

The head is YAML, as people write it: where YAML refuses it, for a bare colon, a
tab or an open quote, it is read line by line. All values are text or lists of
text: ``no`` is not False, and ``1.0`` is not a number; only within a mapping they are what
JSON would have.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Final, TypeAlias, cast

import attrs

from actors.house import define, frozen

from ..hooks._text_file import BadText

HEAD_LIMIT: Final = 65_536
"""Characters that a head may have."""

Value: TypeAlias = str | tuple[str, ...] | None
"""None is neither text nor a list of text."""

_KEY: Final = re.compile(r"(?P<key>[^\W\d][\w .-]{0,63}?)[ \t]*:(?:[ \t]+|$)")
# One of a list, or in quotes; in braces it may stand anywhere in a line.
_INNER: Final = re.compile(
    r"""^[ \t]*(?:[-?][ \t]+)*
    (?:(?P<key>[^\W\d][\w .-]{0,63}?)[ \t]*:(?:[ \t]|$)
    |(?P<quote>["'])(?P<quoted>[^\W\d][\w .-]{0,63}?)(?P=quote)[ \t]*:)""",
    re.VERBOSE,
)
_IN_BRACES: Final = re.compile(
    r"""[{\[,][ \t]*(?P<quote>["']?)(?P<key>[^\W\d][\w .-]{0,63}?)(?P=quote)[ \t]*:""",
    re.VERBOSE,
)
_BLOCK: Final = re.compile(r"[|>][-+0-9]{0,2}")
_COMMENT: Final = re.compile(r"(?:^|[ \t])#.*")
_QUOTED: Final = re.compile(r"""("[^"]*"|'[^']*')[ \t]+#.*""")
_QUOTES: Final = ("'", '"')
_WHOLE: Final = re.compile("-?[0-9]{1,15}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}\.[0-9]{1,15}")
_DEPTH: Final = 8
"""How deep, and how large, a field may be that is not text."""
_NODES: Final = 10_000


@frozen
class HeadField:
    """One field of a head."""

    key: str
    value: Value
    line: int
    """Where it stands, from 1."""
    tree: object = None
    """All of it, as JSON would have it, if it is neither text nor a list of text; None
    also where it cannot be read so."""
    within: tuple[tuple[str, int], ...] = ()
    """What looks like fields in the lines that belong to it: the key and the line of
    each."""

    @property
    def is_prose(self) -> bool:
        """Whether it is text that does not begin as a mapping or list would."""
        return isinstance(self.value, str) and self.value[:1] not in ("{", "[")


@frozen
class Page:
    """A text with a head."""

    fields: tuple[HeadField, ...]
    """In their order; a key may come twice."""
    body: str
    """What follows the head."""


def split_page(text: str) -> Page:
    """Return the head and the body of ``text``.

    Raises:
        BadText: if there is no head, or one that nobody can read.
    """
    # Not by splitlines, which also splits where no editor begins a line.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if not _is_fence(lines[first]):
        raise BadText(
            first + 1,
            "there is no frontmatter: begin the file with a line ---, then the fields, "
            "then another line ---",
        )
    for number in range(first + 1, len(lines)):
        if _is_fence(lines[number]):
            break
    else:
        raise BadText(
            first + 1,
            "the frontmatter is never closed: put a line --- between its last field "
            "and the prompt",
        )
    head = lines[first + 1 : number]
    if sum(map(len, head)) > HEAD_LIMIT:
        raise BadText(
            first + 1, f"the frontmatter has more than {HEAD_LIMIT} characters"
        )
    fields = _by_yaml(head, first + 2)
    if not isinstance(fields, list):
        fields = _by_line(head, first + 2, fields)
    fields = _with_lines(fields, head, first + 2)
    return Page(tuple(fields), "\n".join(lines[number + 1 :]).strip())


def _with_lines(
    fields: list[HeadField], head: list[str], first: int
) -> list[HeadField]:
    """Note what looks like a field of its own in the lines of another one."""
    last = first + len(head)
    starts = [field.line for field in fields]
    found: list[HeadField] = []
    for field, end in zip(fields, [*starts[1:], last], strict=False):
        inner: list[tuple[str, int]] = []
        # What YAML takes for a line break an editor need not.
        for number in range(field.line, min(end, last)):
            line = head[number - first]
            if number > field.line and (match := _INNER.match(line)):
                inner.append((match["key"] or match["quoted"], number))
            if not field.is_prose:
                keys = _IN_BRACES.finditer(line)
                inner += [(match["key"], number) for match in keys]
        if inner:
            field = attrs.evolve(field, within=tuple(inner))
        found.append(field)
    return found


def _is_fence(line: str) -> bool:
    return line.rstrip(" \t") == "---"


def _by_yaml(head: list[str], first: int) -> list[HeadField] | str:
    """Return the fields, or why YAML has none."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "agent definitions need the package PyYAML: install trio-supervisor[agents]"
        ) from error

    try:
        # Composed and not loaded: a node knows its line, a repeated key is still
        # there, and an alias stays one node.
        root = yaml.compose("\n".join(head), Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        return error.problem or "it is not YAML"
    # The boundary: a foreign parser on a foreign text, which besides its own
    # errors raises those of int() and chr(), and RecursionError.
    except Exception as error:
        return f"it is not YAML: {type(error).__name__}"
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        return "it is not a list of fields"
    fields: list[HeadField] = []
    # Many aliases may stand for one node.
    known: dict[int, tuple[Value, object]] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            return "a key is not text"
        if id(value) not in known:
            begin, end = value.start_mark.line, value.end_mark.line
            if (
                isinstance(value, yaml.ScalarNode)
                and value.style in _QUOTES
                and any(_KEY.match(line) for line in head[begin + 1 : end + 1])
            ):
                return "a quote that is never closed runs over the next field"
            plain = _plain(value)
            tree = _tree(value) if plain is None else None
            known[id(value)] = plain, tree
        plain, tree = known[id(value)]
        line = first + cast("int", key.start_mark.line)
        fields.append(HeadField(str(key.value), plain, line, tree))
    return fields


def _plain(node: object) -> Value:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        items = cast("list[object]", node.value)
        texts = [str(n.value) for n in items if isinstance(n, yaml.ScalarNode)]
        if len(texts) == len(items):
            return tuple(texts)
    return None


def _tree(node: object) -> object:
    """Return what JSON would have for a node; None if it has nothing for it, or it is
    too large: an alias may lead back to where it stands, or stand in place of very
    much."""
    import yaml

    count = itertools.count(1)

    def tree(node: object, depth: int) -> object:
        if depth == _DEPTH or next(count) > _NODES:
            raise _NoTree
        if isinstance(node, yaml.ScalarNode):
            text = str(node.value)
            return _scalar(text) if node.style is None else text
        if isinstance(node, yaml.SequenceNode):
            items = cast("list[object]", node.value)
            return [tree(item, depth + 1) for item in items]
        found: dict[str, object] = {}
        assert isinstance(node, yaml.MappingNode)
        for key, value in cast("list[tuple[Any, object]]", node.value):
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise _NoTree
            found[str(key.value)] = tree(value, depth + 1)
        return found

    try:
        return tree(node, 0)
    except _NoTree:
        return None


class _NoTree(Exception):
    pass


def _scalar(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("", "~", "null"):
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


@define
class _Lines:
    """One field, line by line."""

    key: str
    line: int
    first: str
    more: list[str] = attrs.field(factory=list[str])

    def field(self) -> HeadField:
        first = _uncommented(self.first)
        if _BLOCK.fullmatch(first):
            text = ("\n" if first[0] == "|" else " ").join(self.more).strip()
            return HeadField(self.key, text, self.line)
        # A comment ends with its line, so that it goes before they are joined; in a
        # quote that goes on there is none.
        is_open = first[:1] in _QUOTES and first.count(first[0]) == 1
        more = self.more if is_open else map(_uncommented, self.more)
        items = [line for line in more if line]
        if not first and items and all(_is_item(line) for line in items):
            value: Value = tuple(_bare(line[1:].strip()) for line in items)
        else:
            text = _bare(" ".join([first, *items]).strip())
            value = text
            if text.startswith("[") and text.endswith("]"):
                parts = [part.strip() for part in text[1:-1].split(",")]
                value = tuple(_bare(part) for part in parts if part)
        return HeadField(self.key, value, self.line)


def _by_line(head: list[str], first: int, why: str) -> list[HeadField]:
    found: list[_Lines] = []
    for number, line in enumerate(head, first):
        stripped = line.strip()
        if match := _KEY.match(line):
            found.append(_Lines(match["key"], number, line[match.end() :].strip()))
        elif found and (line[:1] in (" ", "\t", "") or _is_item(stripped)):
            found[-1].more.append(stripped)
        elif stripped and not stripped.startswith("#"):
            text = f"this is not a field: write it as 'key: value' (YAML says: {why})"
            raise BadText(number, text)
    return [field.field() for field in found]


def _is_item(line: str) -> bool:
    return line == "-" or line.startswith("- ")


def _uncommented(line: str) -> str:
    """Return one line without a comment in it."""
    start = line[: len(line) - len(line[1:].lstrip())] if _is_item(line) else ""
    text = line[len(start) :]
    if match := _QUOTED.fullmatch(text):
        text = match[1]
    elif text[:1] not in _QUOTES:
        text = _COMMENT.sub("", text)
    return (start + text).strip()


def _bare(text: str) -> str:
    """Return ``text`` without the quotes around it, also where only the first is
    there."""
    quote = text[:1]
    if quote in _QUOTES:
        if len(text) > 1 and text.endswith(quote):
            return text[1:-1]
        if text.count(quote) == 1:
            return text[1:]
    return text
