"""What the commands of docs/tutorial.md print.

    python -m tests.tutorial     # writes it anew

Each command stands in a block of its own, after ``$``, and what it prints below it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/tutorial.md"

_BLOCK = re.compile(r"(?<=```sh\n)\$ (trio-supervisor [^\n]*)\n(.*?)(?=```)", re.DOTALL)


def commands() -> dict[str, str]:
    """Return the commands of the page, and what it says that they print."""
    return dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def printed(command: str) -> str:
    """Run a command in the checkout, and return what it prints."""
    program = [sys.executable, "-m", "supervisor.cli", *shlex.split(command)[1:]]
    ran = subprocess.run(
        program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert not ran.stderr, ran.stderr
    return ran.stdout


def main() -> None:
    """Write the page with what the commands print now."""
    text = PAGE.read_text(encoding="utf-8")
    text = _BLOCK.sub(lambda it: f"$ {it[1]}\n{printed(it[1])}", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
