"""Which hosts an address leads to, and the patterns for their names: pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit


def ascii_host(host: str) -> str:
    """Return the name of a host as programs tell it to each other."""
    if host.isascii():
        return host
    return ".".join(
        part if part.isascii() else part.encode("idna").decode()
        for part in host.split(".")
    )


def plain_host(address: str) -> str | None:
    """Return the host of an address that every program reads in one way."""
    found = re.fullmatch(
        r"https?://([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.?(?::[0-9]{1,5})?"
        r"(?:[/?#][!-\[\]-~]*)?",
        address,
    )
    return None if found is None else found[1].lower()


def possible_hosts(address: str) -> list[str] | None:
    """Return the hosts that an address may lead to; None if nobody knows."""
    plain = re.sub(r"[\x00-\x20\x7f]", "", address).replace("\\", "/")
    plain = re.sub(r"\A(?:view-source:)?(?:[A-Za-z][A-Za-z0-9+.-]*:)?/*", "//", plain)
    found: list[str] = []
    for one in (plain, unquote(plain)):
        authority = re.split(r"[/?#]", one[2:], maxsplit=1)[0]
        for whole in (authority, authority.rpartition("@")[2]):
            host = re.sub(r":[0-9]*\Z", "", whole)
            host = re.sub("[\u3002\uff0e\uff61]", ".", host).rstrip(".").lower()
            try:
                found.append(ascii_host(host))
            except UnicodeError:
                return None
    try:
        found.append((urlsplit(address.strip()).hostname or "").rstrip(".").lower())
    except ValueError:
        return None
    return [*dict.fromkeys(found)]


def matches_domain(pattern: str, host: str) -> bool:
    if pattern == "*":
        return True
    below, wanted = "", pattern
    if pattern.startswith("*."):
        below, wanted = r"(?:[^.]+\.)+", pattern[2:]
    text = "[^.]*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(below + text, host) is not None
