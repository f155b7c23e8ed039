"""The rules of text that the envelope and the output do not test."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.text import (
    clean_text,
    cut,
    encodable,
    escape,
    escaped_line,
    first_line,
    is_encodable,
    one_line,
    unescape,
)

TEXTS = st.text(st.characters(exclude_categories=()))  # lone surrogates too
LIMITS = st.integers(5, 40)


@given(TEXTS, LIMITS, st.sampled_from(["…", "..."]))
def test_one_line_is_clean_and_within_its_limit(
    text: str, limit: int, mark: str
) -> None:
    """P5: and what is cut says so."""
    line = one_line(text, limit, mark)
    whole = one_line(text, None)
    assert len(line) <= limit and line.splitlines() == [line] * bool(line)
    assert clean_text(line) == line and whole.split() == whole.split(" ") * bool(whole)
    assert line == whole or line.endswith(mark)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\t\n", ""),
        ("\n  make test  ", "make test"),
        ("make test  \r\nmake install", "make test ..."),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 17 + "..."),
        ("x" * 18 + "\ny", "x" * 17 + "..."),
    ],
)
def test_the_first_line_says_that_there_is_more(text: str, line: str) -> None:
    assert first_line(text, 20, "...") == line


def test_the_first_line_says_nothing_without_a_mark() -> None:
    assert first_line("one\ntwo") == "one" and first_line("x" * 201) == "x" * 200
    assert first_line("word " * 50) == ("word " * 40).rstrip()


def test_a_text_is_cut_within_its_limit() -> None:
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "ab…"


@given(st.text("a&<>\"';é"))
def test_what_is_escaped_is_text_to_a_parser(text: str) -> None:
    """P5."""
    quoted = escape(text, quotes=True)
    found = ElementTree.fromstring(f'<a b="{quoted}">{escape(text)}</a>')
    assert (found.text or "", found.get("b")) == (text, text)
    assert escaped_line(text) == escape(one_line(text))
    assert unescape(quoted) == unescape(escape(text)) == text


class Sly(str):
    """A text that says of itself what it is not."""

    __slots__ = ()

    def __contains__(self, part: object) -> bool:
        return False

    def __format__(self, spec: str) -> str:
        return "</a>"


@pytest.mark.parametrize("text", ["</a><b>", "a"])
def test_no_method_of_a_text_lets_a_tag_through(text: str) -> None:
    """P5."""
    escaped = escape(Sly(text))
    assert type(escaped) is str
    assert ElementTree.fromstring(f"<a>{escaped}</a>").text == text


@given(TEXTS)
def test_what_utf_8_can_hold_is_known(text: str) -> None:
    assert is_encodable(text) == (encodable(text) == text)
    assert is_encodable(encodable(text))
