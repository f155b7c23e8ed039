"""Results as rows of a table, and what has to be known to have them again."""

from __future__ import annotations

import csv
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Any, cast

import trio


def manifest(**more: object) -> dict[str, Any]:
    """Return what has to be known to have a result again: the versions of python, trio
    and this package, the command and the time; and ``more``, as seed and policy."""
    try:
        ours = version("trio-supervisor")
    except PackageNotFoundError:
        ours = "unknown"  # It is used from its source.
    return {
        "python": platform.python_version(),
        "trio": trio.__version__,
        "trio_supervisor": ours,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a column for each key that one of them has, and each
    line ended."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(cast("Any", rows))
    return file.getvalue()
