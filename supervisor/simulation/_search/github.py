"""What was found, as lines that GitHub shows beside the user's lines."""

from __future__ import annotations

from .again import shortest
from .report import Campaign, Failure, Row, SweepReport


def github_lines(report: SweepReport | Campaign) -> list[str]:
    """Return a workflow command ``::error`` for each thing that a report has found."""
    if isinstance(report, Campaign):
        return [_error(it, it.heading) for it in report.failures]
    alike: dict[tuple[str, str], Row] = {}
    for row in report.rows:
        alike.setdefault((row.site, row.error), row)
    return [_error(it, f"{report.kind} at {it.site}") for it in alike.values()]


def _error(found: Row | Failure, title: str) -> str:
    file, _, line = found.place.rpartition(":")
    where = {"file": shortest(file), "line": line} if file else {}
    options = {**where, "title": title}
    text = f"{found.error}\n{found.tape.words()}\nreplay: {found.replay}"
    shown = ",".join(f"{name}={_value(it)}" for name, it in options.items())
    return f"::error {shown}::{_text(text)}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
