"""What rules say of commands, against shells that run them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.permissions import Rule

DENIALS = [
    Rule("deny", f"Bash({text})") for text in ("rm:*", "rm *", "rm", "/bin/rm *")
]
SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]

# What may stand before the name of a program, so that it is run.
BEFORE = [
    *(
        "",
        " ",
        "\t",
        "\n",
        "\n\n",
        "\\\n",
        ";",
        "true;",
        "true; ",
        "true &&",
        "false ||",
    ),
    *("true |", "true &", "true\n", "true |& ", "{ ", "( ", "((", "! ", "! ! "),
    *("A=1 ", "A='a b' ", 'A="a b" ', "A=a\\ b ", "A= ", "A+=x ", "A[0]=1 "),
    *("A[1 + 1]=2 ", "A=$(true) ", 'A="$(echo a b)" ', "A=`true`b ", "A=$'a b' B=2 "),
    *("A=${x:-a b} ", 'A="`echo c d`" ', "A=$((1+1)) ", "A=$(echo $(echo ')'))x "),
    *(
        ">/dev/null ",
        "> /dev/null ",
        "2>&1 ",
        "2> /dev/null ",
        ">>/dev/null ",
        "</dev/null ",
    ),
    *(">|/dev/null ", "&>/dev/null ", "&>>/dev/null ", "<>/dev/null ", ">&2 ", "3<&0 "),
    *("<<<word ", "<<<'a b' ", "{fd}>/dev/null ", ">'/dev/null' ", '>"/dev/null" '),
    *("if ", "if true; then ", "while ", "until ", "for i in 1; do ", "case a in a) "),
    *("case a in (a) ", "if false; then :; else ", "if false; then :; elif "),
    *("time ", "time -p ", "time -- ", "coproc ", "eval ", "exec ", "command ", "env "),
    *("exec -a name ", "env -i PATH=$PATH ", "env A=1 ", "env -- "),
    *("nice ", "nice -n 5 ", "nohup ", "timeout 5 ", "timeout -k 1 5 ", "setsid -w "),
    *("stdbuf -o0 ", "xargs ", "echo x | xargs -n 1 ", "env nice -n 1 ", "ionice "),
    *(
        "f() { ",
        "trap '' INT; ",
        "set -- a; ",
        "# it's\n",
        "echo 'a;b' ; ",
        'echo "it\'s"; ',
    ),
    *(
        "cat <<EOF\nit's\nEOF\n",
        "cat <<'EOF' >/dev/null\n\"\nEOF\n",
        "echo $'it\\'s'\n",
    ),
    *("[[ a < b ]] && ", "[ a = a ] && ", "echo ${A:-'x y'} ; ", "shopt -s extglob\n"),
    *(
        "$(true) ",
        "X=",
        "X='y' ",
        "env '-S",
        "$1 ",
        "$@ ",
        "$* $@",
        "$nothing ",
        "`true` ",
        "$(true)$(true) A=1 ",
        "${nothing} ",
    ),
    *(
        "find /dev/null -exec ",
        "alias x=y; ",
        "builtin command ",
        "echo \\;\n",
        "echo \\' ; ",
    ),
]
NAMES = [
    *("rm", "'rm'", '"rm"', "r\\m", "\\rm", "r''m", 'r"m"', "$'rm'", '$"rm"', "r$()m"),
    *("r\\\nm", "$'\\x72m'", "$'r\\155'", "r`true`m", "$BIN/rm", "./../{}/rm", "./rm"),
    *(
        "'r'\"m\"",
        "$'r\\u006d'",
        "r$(true)m",
        "r$@m",
        "r$*'m'",
        "r${x}m",
        "r$1m",
        'r"$@"m',
    ),
]
BEHIND = [
    *("${IFS}x", "$IFS'x'", "; $X y", "' x"),
    *(
        "",
        " ",
        " x",
        "\tx",
        "\n",
        ";",
        "; ",
        " x; true",
        " && true",
        " || true",
        " | cat",
    ),
    *(" &", " >/dev/null", " 2>&1", "\nfi", "; fi", "; done", " ;}", "; }", " )", ")"),
    *(";; esac", "\nesac", " # x", " <<EOF\nx\nEOF", " 'x", ' "x', "; then true; fi"),
    *("; do break; done", " '{}' ';'", " {} \\;", " x y z", ">f", "; f", "; }; f"),
]
# Round a whole command.
ROUND = [
    *(
        "X='{}'; eval \"$X\"",
        "X='{}' bash -c \"\\$X\" x",
        "export X='{}'; sh -c \"$X\"",
    ),
    *("{}", "$({})", "`{}`", '"$({})"', '"`{}`"', "echo $({})", 'echo "a $({}) b"'),
    *(
        "cat <({})",
        "( {} )",
        "{{ {}; }}",
        "echo ${{x:-$({})}}",
        "cat <<EOF\n$({})\nEOF",
    ),
    *("bash <<EOF\n{}\nEOF", "true && {}", "sh -c '{}'", 'bash -c "{}"', "eval '{}'"),
    *(
        "A=$({}) true",
        "[[ -n $({}) ]]",
        "case $({}) in *) true;; esac",
        "echo '{}' | sh",
    ),
    *("$(case a in a) {} ;; esac)", "echo `echo \\`{}\\``", "bash -c 'eval \"{}\"'"),
    *(
        "trap '{}' EXIT",
        "if {}; then true; fi",
        ": $(( $({}) + 1 ))",
        "bash -c -- '{}'",
    ),
    *("for i in $({}); do :; done", "x=`{}`", "bash <<< '{}'", "printf '{}' | bash -s"),
]


class Marker:
    """A program of the name rm, which says that it was run and removes nothing."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        for name, text in (("rm", ': > "$RAN"'), ("ok", ":")):
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)
        self.ran = directory / "ran"
        self.directory = directory

    def runs(self, shell: str, command: str) -> bool:
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "BIN": str(self.bin),
            "RAN": str(self.ran),
            "LC_ALL": "C.UTF-8",
        }
        try:
            subprocess.run(
                [shell, "-c", command],
                env=environment,
                cwd=self.bin,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=10,
                check=False,
            )
        except (subprocess.TimeoutExpired, ValueError):
            return False
        if not self.ran.exists():
            return False
        self.ran.unlink()
        return True


def commands(chance: random.Random, count: int) -> list[str]:
    """Return commands of which many run the marker, in whatever way."""
    made: list[str] = []
    for number in range(count):
        before = "".join(chance.choices(BEFORE, k=chance.choice((1, 1, 2, 3))))
        name = chance.choice(NAMES)
        behind = chance.choice(BEHIND)
        if number < len(BEFORE):
            before, name, behind = BEFORE[number], "rm", " x"
        elif number < len(BEFORE) + len(NAMES):
            before, name = "", NAMES[number - len(BEFORE)]
        command = before + name.replace("{}", "bin") + behind
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            command = (
                chance.choice(ROUND)
                .replace("{}", command)
                .replace("{{", "{")
                .replace("}}", "}")
            )
        made.append(command)
    return made


@pytest.mark.skipif(not SHELLS, reason="a shell is the judge")
def test_whatever_runs_a_program_is_what_its_denial_speaks_of(tmp_path: Path) -> None:
    """PM1: more of them, with TRIO_SUPERVISOR_COMMANDS=N and _SEED=N."""
    count = int(os.environ.get("TRIO_SUPERVISOR_COMMANDS", "250"))
    seed = int(os.environ.get("TRIO_SUPERVISOR_SEED", "8"))
    marker = Marker(tmp_path)
    ran = 0
    missed: list[str] = []
    for command in commands(random.Random(seed), count):
        shells = [shell for shell in SHELLS if marker.runs(shell, command)]
        ran += bool(shells)
        if shells and not all(
            rule.matches("Bash", {"command": command}) for rule in DENIALS
        ):
            missed.append(f"{shells}: {command!r}")
    print(f"{ran} of {count} commands ran it, {len(missed)} were missed")
    assert not missed, "\n".join(missed)
    assert ran > count // 10


PIECES = [
    *(
        " ",
        " ",
        " ",
        "a",
        "b.c",
        "-x",
        "--y=z",
        "rm",
        "rm x",
        " rm x ",
        "ok",
        "/",
        "..",
        "*",
    ),
    *(
        "'",
        "'",
        '"',
        '"',
        "'x y'",
        '"x y"',
        "'a;rm x'",
        '"a|rm x"',
        "\\",
        "\\'",
        '\\"',
        "#",
    ),
    *(
        ";",
        "&",
        "|",
        "&&",
        "||",
        "|&",
        "\n",
        "\r",
        "\t",
        "\x0b",
        "$(rm x)",
        "`rm x`",
        "<(rm x)",
    ),
    *(
        "$",
        "${x:-`rm`}",
        "$'",
        "$'\\nrm'",
        ">f",
        "<f",
        "<<E",
        "(",
        ")",
        "{",
        "}",
        "!",
        "~",
        "=",
    ),
    *(
        "?",
        "[a]",
        "%",
        "^",
        "@",
        "+",
        ",",
        ":",
        "\u00a0",
        "\u2028",
        "é",
        "[[",
        "if",
        "then",
        "do",
    ),
]


@pytest.mark.skipif(not SHELLS, reason="a shell is the judge")
def test_what_a_pattern_allows_runs_its_program_and_no_other(tmp_path: Path) -> None:
    """PM1: more of them, with TRIO_SUPERVISOR_COMMANDS=N and _SEED=N."""
    count = int(os.environ.get("TRIO_SUPERVISOR_COMMANDS", "250")) * 20
    chance = random.Random(int(os.environ.get("TRIO_SUPERVISOR_SEED", "8")))
    marker = Marker(tmp_path)
    rules = [Rule("allow", f"Bash({text})") for text in ("ok*", "ok *", "ok:*", "*")]
    made = (
        "ok" + "".join(chance.choices(PIECES, k=chance.randint(1, 9)))
        for _ in range(count)
    )
    allowed = [
        command
        for command in dict.fromkeys(made)
        if any(rule.matches("Bash", {"command": command}) for rule in rules)
    ]
    wrong = [
        f"{shell}: {command!r}"
        for shell in SHELLS
        for command in allowed
        if marker.runs(shell, command)
    ]
    print(f"{len(allowed)} of {count} commands were allowed, {len(wrong)} ran another")
    assert not wrong, "\n".join(wrong)
    assert len(allowed) > count // 50
