"""Names that may be meant by a name that does not exist: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST = 80


def plain_name(name: str) -> str:
    """Return a name without what people write in several ways: capitals, hyphens,
    underscores and blanks."""
    return re.sub("[-_ ]", "", name).casefold()


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name among ``known`` that is most like ``name``; None if none is."""
    # Rarely needed, and slow to load.
    from difflib import get_close_matches

    by_plain = {plain_name(one): one for one in known}
    found = get_close_matches(plain_name(name)[:_LONGEST], by_plain, n=1, cutoff=0.75)
    return by_plain[found[0]] if found else None
