"""What is changed of a command line before a shell reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.shell._command import in_foreground


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("make &", "make "),
        ("make&", "make"),
        ("make & \t\n ", "make "),
        ("a & b &", "a & b "),
        ("a\nb &\n", "a\nb "),
        ("a && b &", "a && b "),
        ("a 2>&1 &", "a 2>&1 "),
        ("echo 'a' &", "echo 'a' "),
        ("(a) &", "(a) "),
        (r"echo a\\&", r"echo a\\"),
        (r"echo \&&", r"echo \&"),
        (r"echo \; &", r"echo \; "),
        ("echo a # b &", "echo a # b "),
        ("echo ä💥 &", "echo ä💥 "),
    ],
)
def test_one_bare_ampersand_at_the_end_goes(command: str, expected: str) -> None:
    """SH2."""
    assert in_foreground(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "make",
        "a & b",
        "a && b",
        "a &&",
        "a && ",
        "a & &",
        "a &\n&",
        "a; &",
        "a |&",
        "a >&",
        "a <&",
        "( &",
        r"echo \&",
        r"echo \& ",
        r"echo a\\\&",
        r"a &\ ",
        "a &\r",
        "echo 'a &'",
        'echo "a &"',
        "a & # and more",
        "cat <<END\na &\nEND",
        "case x in x) a ;;&",
        "&",
        " & ",
        "&&",
        "",
    ],
)
def test_every_other_ampersand_stays(command: str) -> None:
    """SH2: `&&`, `\\&`, one further in, and what the shell should refuse."""
    assert in_foreground(command) == command


@settings(deadline=None)
@given(st.text(alphabet="a \t\n\\&;|<>(')\"#", max_size=12))
def test_it_agrees_with_a_backtracking_expression(command: str) -> None:
    """SH2: the same rule, said in another way."""
    bare = re.fullmatch(
        r"(?P<kept>(?P<text>(?:\\.|[^\\])*(?:\\.|[^\\&|;<>(\s]))[ \t\n]*)&[ \t\n]*",
        command,
        re.DOTALL,
    )
    # Blanks that a backslash escapes are text, and not to be skipped over.
    assert in_foreground(command) == (bare["kept"] if bare else command)


@settings(deadline=None)
@given(st.text(alphabet="ab \n\\&;|<>'\"#", max_size=10))
def test_only_an_ampersand_and_blanks_are_ever_left_out(command: str) -> None:
    """SH2: at most one, and only at the end."""
    kept = in_foreground(command)
    assert command.startswith(kept)
    assert command[len(kept) :].strip(" \t\n") in ("", "&")


BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="asks bash")
@pytest.mark.parametrize(
    "command",
    ["echo a &", "echo 'b' & ", "true && echo c&", "echo a\\\\&", "echo d # e &"],
)
def test_bash_does_the_same_in_the_foreground(command: str) -> None:
    """SH2: nothing of what a command prints is lost with the ampersand."""
    assert BASH is not None
    outputs = [
        subprocess.run(
            [BASH, "-c", text], capture_output=True, check=True, timeout=30
        ).stdout
        for text in (f"{command.rstrip(' ')}\nwait", in_foreground(command))
    ]
    assert outputs[0] == outputs[1] != b""


@pytest.mark.parametrize("unit", ["&", "\\", " ", "\n", "a", "& ", "\\&", "&\n", "a&"])
@pytest.mark.parametrize("end", ["", "&", " &", "\\&", "& x", "& \n "])
def test_a_long_command_takes_no_longer_than_its_length(unit: str, end: str) -> None:
    """SH3: what is quadratic would take days for these."""
    command = unit * (5_000_000 // len(unit)) + end
    began = time.perf_counter()
    in_foreground(command)
    assert time.perf_counter() - began < 10
