"""``python -m supervisor.cli`` is the command `trio-supervisor`."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
