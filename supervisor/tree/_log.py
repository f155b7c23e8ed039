"""The log of everything that runs below a supervisor.

What others have said (the names of tools, errors, the output of hooks) passes one
seam on its way there: it is cleaned, and a message is one line.
"""

from __future__ import annotations

import contextlib
import logging
import traceback

from actors.text import clean_text, one_line

LINE = 2_000
"""Characters of what others have said in one line of the log, or one warning."""

logger = logging.getLogger("supervisor")


def _clean(record: logging.LogRecord) -> bool:
    # Where a handler's formatter looks for it first; the error itself stays there.
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        trace = "".join(traceback.format_exception(record.exc_info[1]))
        record.exc_text = clean_text(trace.rstrip("\n"))
    return True


logger.addFilter(_clean)


def log(
    level: int,
    text: str,
    *values: object,
    error: BaseException | None = None,
    stack: str = "",
) -> None:
    """Log, whatever the handlers do: an end is recorded in this very step. Each text
    among the ``values`` becomes one clean line; ``stack`` follows them."""
    with contextlib.suppress(Exception):
        if logger.isEnabledFor(level):
            clean = [one_line(v, LINE) if isinstance(v, str) else v for v in values]
            if stack:
                text, clean = text + "\n%s", [*clean, clean_text(stack)]
            # The line names our caller.
            logger.log(level, text, *clean, exc_info=error, stacklevel=2)
