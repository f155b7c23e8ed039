"""Texts in which ``*`` stands for any others: pure."""

from __future__ import annotations


def matches_glob(pattern: str, text: str) -> bool:
    """Tell whether ``pattern``, in which ``*`` stands for any characters, is all of
    ``text``. The time goes with the length of both: no backtracking."""
    first, *parts = pattern.split("*")
    if not parts:
        return text == first
    last = parts.pop()
    end = len(text) - len(last)
    place = len(first)
    if place > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in parts:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True
