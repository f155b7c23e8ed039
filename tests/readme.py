"""What README shows in Python, as files: ``python -m tests.readme DIRECTORY``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def examples() -> dict[str, str]:
    """Return each block of Python in README, by the name in the comment above it."""
    blocks = re.findall(
        r"<!-- ([a-z ]+) -->\n+```python\n(.*?)```", README.read_text(), re.DOTALL
    )
    named = {name.replace(" ", "_"): code for name, code in blocks}
    assert len(named) == README.read_text().count("```python")
    return named


def write(directory: Path) -> list[Path]:
    """Write them, each as strict for pyright as can be; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, code in examples().items():
        file = directory / f"readme_{name}.py"
        file.write_text(f"# pyright: strict\n{code}")
        files.append(file)
    return files


if __name__ == "__main__":
    write(Path(sys.argv[1]))
