"""What is changed of a command line before a shell reads it."""

from __future__ import annotations

_BLANK = " \t\n"
# An ampersand after one of these is a part of an operator, or a mistake that
# the shell itself should name.
_OPERATORS = "&|;<>("


def in_foreground(command: str) -> str:
    """Return ``command`` without the one bare ``&`` that ends it, if one does.

    Models write it out of habit. A command that puts itself into the background
    ends at once, and with it the task, before what it started.

    Bare is an ``&`` that is last but for blanks and newlines, that no backslash
    escapes, and before which stands something other than an operator: ``&&``,
    ``\\&``, ``|&``, ``>&`` and ``; &`` stay, and so does every ``&`` further in.
    Nothing is parsed. That is safe for quotes, as a quote that is closed ends
    with its mark and not with ``&``, and for a comment, where the ``&`` means
    nothing; the exception is a here-document whose last line ends with ``&``,
    which no delimiter follows. An ``&`` with a comment behind it stays.

    Linear in the length of the command.
    """
    end = len(command.rstrip(_BLANK))
    if not command.endswith("&", 0, end) or _is_escaped(command, end - 1):
        return command
    kept = command[: end - 1]
    before = kept.rstrip(_BLANK)
    last = len(before) - 1
    if not before or (before[last] in _OPERATORS and not _is_escaped(before, last)):
        return command
    return kept


def _is_escaped(text: str, index: int) -> bool:
    """Whether an odd number of backslashes stands before ``index``."""
    return (index - len(text[:index].rstrip("\\"))) % 2 == 1
