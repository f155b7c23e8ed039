"""The exit codes of ``trio-supervisor sim``."""

from __future__ import annotations

CLEAN, WRONG, USAGE, NOT_DETERMINISTIC, SPENT = 0, 1, 2, 3, 4
