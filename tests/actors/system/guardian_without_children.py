"""A guardian on a kernel that does not tell the children of a process.

It is run in the place of the real one. What it does is the real one's code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def hide_children(event: str, args: tuple[Any, ...]) -> None:
    """Be an audit hook: Python asks it before it opens a file."""
    if event == "open" and str(args[0]).endswith("/children"):
        raise FileNotFoundError(args[0])


def main() -> None:
    sys.addaudithook(hide_children)
    sys.path.append(str(Path(__file__).absolute().parents[3] / "actors" / "_system"))
    from guardian.__main__ import main  # type: ignore[import-not-found]

    main()


if __name__ == "__main__":
    main()
