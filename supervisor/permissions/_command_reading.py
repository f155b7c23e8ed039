"""What a shell command could run, for rules that deny or ask: pure.

A seat belt reads widely: whatever bash or dash might take for the beginning of a
command counts as one. So the text is read twice, once as a shell does, with quotes,
substitutions, here-documents and redirections, and once cut at every character that
could end a command, whatever stands round it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from actors.house import frozen

COMPOUND: Final = frozenset(
    "! [[ ]] { } case coproc do done elif else esac fi for function if in select then"
    " time until while".split()
)
"""Words behind which another command begins."""

_WRAPPERS: Final = frozenset(
    # Of the shell itself,
    "alias builtin command coproc eval exec function hash time trap"
    # for other users, places, priorities and times,
    " chroot chrt doas env faketime fakeroot flock gosu ionice ltrace nice nohup"
    " nsenter numactl pkexec proot runuser script setarch setpriv setsid sg stdbuf"
    " strace su sudo systemd-run taskset timeout unbuffer unshare"
    # again and again,
    " entr fd fdfind parallel watch xargs"
    # and those that are several programs in one.
    " busybox toybox".split()
)
"""Programs that run what their arguments say: any of these may be its name."""
_SHELLS: Final = frozenset(
    "ash bash csh dash elvish fish hush ksh ksh93 mksh nu osh pdksh posh rbash rksh"
    " rsh sh source ssh tcsh xonsh yash zsh . at batch parallel xargs".split()
)
"""Programs that run what they read, wherever in the command that was written."""
_SETTERS: Final = frozenset(("declare", "export", "local", "readonly", "typeset"))
_FINDERS: Final = frozenset(("find", "gfind", "bfs"))
_RUNS: Final = frozenset(("-exec", "-execdir", "-ok", "-okdir"))

_DEPTH: Final = 24
"""How deep commands may lie in each other. Deeper ones nobody reads."""

_FEW: Final = 10_000
_OFTEN: Final = 6
"""So many characters are read of a command, and so many times its length. What would
take more nobody reads."""

_ASSIGNS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=", re.DOTALL)
_SUBSCRIPT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*!?$#-]")
_BLANK: Final = re.compile(r"\$(?:IFS\b|\{IFS\b[^}]*\})")
"""What is a blank where no quotes are, unless somebody has said otherwise."""
_OPTION: Final = re.compile(r"-[A-Za-z].")
_RUN: Final = re.compile(r"""[^\x00\s'"\\$`;&|<>()#]+""")
_IN_DOUBLE: Final = re.compile(r"""[^"\\$`]+""")
_REDIRECTION: Final = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|<|>>|>\||>&|>")
_DESCRIPTOR: Final = re.compile(r"[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}")
_CUT: Final = re.compile(r"[;&|(){}`\n\r]|\$\(")
_TURN: Final = re.compile(r"[<>]+[&|]?")
_CONTINUED: Final = re.compile(r"\\\n")
_QUOTING: Final = str.maketrans("", "", "'\"\\")
_BRACES: Final = str.maketrans("{},", "   ")
_ANSI: Final = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})"
    r"|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.))",
    re.DOTALL,
)
_ANSI_LETTERS: Final = dict(
    zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True)
)


@frozen
class CommandLine:
    """The words of one command, without quotes and redirections, with one blank
    between two, and the places in it where a program's name may begin."""

    text: str
    starts: tuple[int, ...]


@frozen
class CommandReading:
    """What a command could run."""

    lines: tuple[CommandLine, ...]
    whole: tuple[str, ...]
    """The whole text, as it is, with single blanks, and without quotes."""
    is_complete: bool
    """Whether all was read: there is nothing deeper."""


@lru_cache(maxsize=8)
def read_command(command: str) -> CommandReading:
    """Return what a command could run. The time goes with its length."""
    reader = _CommandReader(_FEW + _OFTEN * len(command))
    reader.read(command, 0)
    plain = _CONTINUED.sub("", command)
    bare = plain.translate(_QUOTING)
    whole = [command, plain, " ".join(plain.split()), " ".join(bare.split())]
    lines = [_line(words, reader.reads_others) for words in reader.commands]
    return CommandReading(
        tuple(dict.fromkeys(line for line in lines if line is not None)),
        tuple(dict.fromkeys(whole)),
        not reader.is_too_deep,
    )


def plain_commands(command: str) -> list[list[str]]:
    """Return the words of each command in a text that a shell runs itself, as far as
    it can be read."""
    reader = _PlainReader(0)
    reader.read(command, 0)
    return reader.commands


class _CommandReader:
    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._read: set[str] = set()
        self.commands: list[list[str]] = []
        self.reads_others = False
        """Whether one of them runs what it reads from the others."""
        self.is_too_deep = False

    def read(self, text: str, depth: int) -> None:
        if text in self._read:
            return
        self._read.add(text)
        self._budget -= len(text)
        if depth > _DEPTH or self._budget < 0:
            self.is_too_deep = True
            return
        before = len(self.commands)
        _Shell(self, text, depth).read_all()
        if _BLANK.search(text):
            self.read(_BLANK.sub(" ", text), depth + 1)
        plain = _CONTINUED.sub("", text)
        for cut in dict.fromkeys((plain, plain.translate(_QUOTING))):
            for part in dict.fromkeys(_CUT.split(cut)):
                self._add_part(part)
        if "{" in plain:
            loose = plain.translate(_QUOTING).translate(_BRACES)
            for part in dict.fromkeys(_CUT.split(loose)):
                self._add_part(part)
        # What is an argument of these may be a command, quoted once more.
        inner: list[str] = []
        for words in self.commands[before:]:
            if _wraps(words):
                inner += words[1:]
                # `env -S'...'` and the like.
                inner += [word[2:] for word in words if _OPTION.match(word)]
            # So may what a variable is set to.
            for word in _settings(words):
                if found := _ASSIGNS.match(word):
                    self.add(word[found.end() :].split())
                    inner.append(word[found.end() :])
        if self.reads_others:
            inner += [word for words in self.commands[before:] for word in words]
        for word in dict.fromkeys(inner):
            if word != text and _needs_reading(word):
                self.read(word, depth + 1)

    def _add_part(self, part: str) -> None:
        self.add(part.split())
        if "<" not in part and ">" not in part:
            return
        pieces = _TURN.split(part)
        for piece in pieces[1:]:
            # The first word is a file's name.
            self.add(piece.split()[1:])
        rest = [word for piece in pieces[1:] for word in piece.split()[1:]]
        self.add([*pieces[0].split(), *rest])

    def add(self, words: list[str]) -> None:
        if words:
            self.commands.append(words)
            if not self.reads_others:
                # Behind another one, too: `sudo bash`, `env -i sh`.
                found = [_base(word) for word in _run_by(words)]
                self.reads_others = not _SHELLS.isdisjoint(found)


class _PlainReader(_CommandReader):
    """Reads no more than a shell does."""

    def read(self, text: str, depth: int) -> None:
        if depth <= _DEPTH:
            _Shell(self, text, depth).read_all()


def _needs_reading(word: str) -> bool:
    return any(sign in word for sign in " \t\n'\"\\$`;&|<>(){}=")


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _first(words: list[str]) -> int:
    """Return which word is the first that is none of the shell's own and sets no
    variable."""
    place = 0
    while place < len(words) - 1 and _is_before(words[place]):
        place += 1
    return place


def _settings(words: list[str]) -> list[str]:
    """Return the words in which variables may be set."""
    first = _first(words)
    sets = words[first] in _SETTERS or _wraps(words)
    return words if sets else words[: first + 1]


def _is_before(word: str) -> bool:
    """Tell whether a command may begin behind this word."""
    # What the shell puts in the place of a word may be nothing.
    is_nothing = not word or word.startswith("$")
    return is_nothing or word in COMPOUND or _ASSIGNS.match(word) is not None


def _wraps(words: list[str]) -> bool:
    """Tell whether what stands behind a word of it may be a command as well."""
    place = _first(words)
    for word in words[: place + 1]:
        if _base(word) in _WRAPPERS or _base(word) in _SHELLS:
            return True
        if _SUBSCRIPT.match(word):
            return True
    return _base(words[place]) in _FINDERS and not _RUNS.isdisjoint(words)


def _run_by(words: list[str]) -> list[str]:
    """Return the words that may be names of programs."""
    return words if _wraps(words) else words[_first(words) : _first(words) + 1]


def _line(words: list[str], everywhere: bool) -> CommandLine | None:
    text = " ".join(words)
    starts = [0]
    if everywhere or _wraps(words):
        starts += [match.end() for match in re.finditer(r"\s-\w|[\s=/]", text)]
        starts += [match.end() for match in re.finditer(r"\s(?=-)", text)]
    else:
        place = 0
        for word in words[: _first(words) + 1]:
            starts += [place, place + len(word) - len(_base(word))]
            place += len(word) + 1
    return CommandLine(text, tuple(sorted({it for it in starts if it < len(text)})))


class _Shell:
    """Reads a text as a shell does."""

    def __init__(self, reader: _CommandReader, text: str, depth: int) -> None:
        self._reader = reader
        self._text = text
        self._at: int = 0
        self._depth = depth
        # Of here-documents that begin with the next line: the word that ends them.
        self._documents: list[str] = []

    def read_all(self) -> None:
        while self._at < len(self._text):
            self._read_list(None, self._depth)
            self._at += 1  # A closing sign that nothing has opened.

    def _read_list(self, closer: str | None, depth: int) -> None:
        """Read commands up to ``closer``, and stand on it then."""
        if depth > _DEPTH:
            self._reader.is_too_deep = True
            self._at = len(self._text)
            return
        text, cases, is_begun = self._text, 0, False
        words: list[str] = []
        word: list[str] | None = None
        turned = ""
        # Where dash takes `&>` for the end of a command.
        parted: int | None = None

        def put(piece: str) -> None:
            nonlocal word
            if word is None:
                word = []
            word.append(piece)

        def end_word() -> None:
            nonlocal word, turned, cases, is_begun
            if word is None:
                return
            value = "".join(word)
            if turned.startswith("<<") and turned != "<<<":
                self._documents.append(value)
            elif turned == "<<<":
                self._reader.read(value, depth + 1)
            elif not turned:
                words.append(value)
                if not is_begun and value in ("case", "esac"):
                    cases = max(0, cases + (1 if value == "case" else -1))
                is_begun = is_begun or not _is_before(value)
            word, turned = None, ""

        def end_command() -> None:
            nonlocal is_begun, parted
            end_word()
            self._reader.add([*words])
            if parted is not None:
                self._reader.add(words[parted:])
                parted = None
            words.clear()
            is_begun = False

        while self._at < len(text):
            sign = text[self._at]
            if sign == closer and not (sign == ")" and cases):
                break
            if run := _RUN.match(text, self._at):
                put(run[0])
                self._at = run.end()
                continue
            self._at += 1
            if sign in " \t\x0b\x0c\r\x00" or (sign.isspace() and sign != "\n"):
                end_word()
            elif sign == "\n":
                end_command()
                self._read_documents(depth)
            elif sign == "#" and word is None:
                self._until("\n")
                self._at -= 1
            elif turn := _REDIRECTION.match(text, self._at - 1):
                if text.startswith("(", turn.end()) and turn[0] in "<>":
                    self._at = turn.end() + 1
                    put("")
                    self._read_inner(")", depth)
                    continue
                if word is not None and _DESCRIPTOR.fullmatch("".join(word)):
                    word = None
                end_word()
                self._at, turned = turn.end(), turn[0]
                if turn[0].startswith("&") and parted is None:
                    parted = len(words)
            elif sign in ";&|":
                end_command()
            elif sign == "(":
                end_command()
                self._read_inner(")", depth)
                end_command()
            elif sign == ")":
                end_command()
            elif sign == "\\" and text.startswith("\n", self._at):
                self._at += 1  # The line goes on.
            else:
                put(self._read_quoted(sign, depth))
        end_command()

    def _next(self) -> str:
        """Return the next character, nothing at the end, and stand behind it."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _until(self, sign: str) -> str:
        """Return what stands before the next ``sign``, and stand behind that."""
        start, end = self._at, self._text.find(sign, self._at)
        end = len(self._text) if end < 0 else end
        self._at = end + 1
        return self._text[start:end]

    def _read_inner(self, closer: str, depth: int) -> None:
        self._read_list(closer, depth + 1)
        self._at += 1

    def _read_quoted(self, sign: str, depth: int) -> str:
        """Read on behind a sign that quotes or stands for something; return what it
        comes to, nothing for what the shell puts there: it may be nothing."""
        if sign == "\\":
            following = self._next()
            return "" if following == "\n" else following
        if sign == "'":
            return self._until("'")
        if sign == '"':
            return self._read_double(depth)
        if sign == "`":
            return self._read_backquoted(depth)
        if sign == "$":
            return self._read_dollar(depth, quoted=False)
        return sign

    def _read_double(self, depth: int) -> str:
        text, pieces = self._text, list[str]()
        while self._at < len(text):
            if run := _IN_DOUBLE.match(text, self._at):
                pieces.append(run[0])
                self._at = run.end()
                continue
            sign = text[self._at]
            self._at += 1
            if sign == '"':
                break
            if sign == "\\":
                following = self._next()
                if following == "\n":
                    continue
                pieces.append(following if following in '$`"\\' else sign + following)
            elif sign == "`":
                pieces.append(self._read_backquoted(depth))
            else:
                pieces.append(self._read_dollar(depth, quoted=True))
        return "".join(pieces)

    def _read_backquoted(self, depth: int) -> str:
        """Read a command between backquotes, in which backslashes quote them."""
        text, start = self._text, self._at
        while self._at < len(text) and text[self._at] != "`":
            self._at += 2 if text[self._at] == "\\" else 1
        inner = re.sub(r"\\([$`\\\"])", r"\1", text[start : self._at])
        self._at += 1
        self._reader.read(inner, depth + 1)
        return ""

    def _read_dollar(self, depth: int, *, quoted: bool) -> str:
        text = self._text
        following = text[self._at : self._at + 1]
        if following == "(":
            self._at += 1
            self._read_inner(")", depth)
            return ""
        if following == "{":
            self._at += 1
            self._read_braced(depth)
            return ""
        if following == "'" and not quoted:
            return self._read_ansi()
        if name := _VARIABLE.match(text, self._at):
            self._at = name.end()
            return ""
        if following == '"' and not quoted:
            self._at += 1
            return self._read_double(depth)
        return "$"

    def _read_braced(self, depth: int) -> None:
        """Read what stands behind ``${``."""
        if depth > _DEPTH:
            self._reader.is_too_deep = True
            self._at = len(self._text)
            return
        text = self._text
        while self._at < len(text):
            sign = text[self._at]
            self._at += 1
            if sign == "}":
                return
            if sign in "\\'\"`$":
                self._read_quoted(sign, depth + 1)

    def _read_ansi(self) -> str:
        """Read ``$'...'``, in which backslashes stand for characters."""
        text, start = self._text, self._at + 1
        end = start
        while end < len(text) and text[end] != "'":
            end += 2 if text[end] == "\\" else 1
        self._at = end + 1
        return _ANSI.sub(_ansi_character, text[start:end])

    def _read_documents(self, depth: int) -> None:
        """Read the here-documents that begin here: a shell may run them."""
        documents, self._documents = self._documents, []
        for ending in documents:
            lines: list[str] = []
            while self._at < len(self._text):
                line = self._until("\n")
                if line.lstrip("\t") == ending:
                    break
                lines.append(line)
            if lines:
                self._reader.read("\n".join(lines), depth + 1)


def _ansi_character(match: re.Match[str]) -> str:
    letter, octal, *hexadecimal, control = match.groups()
    if letter is not None:
        return _ANSI_LETTERS[letter]
    if control is not None:
        return chr(ord(control[0].upper()) & 0x1F)
    number = (
        int(octal, 8)
        if octal is not None
        else int(next(it for it in hexadecimal if it is not None), 16)
    )
    return chr(number) if number <= 0x10FFFF else ""
