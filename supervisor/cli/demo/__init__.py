"""``trio-supervisor demo``: real commands and agents, and what became of them, by
facts that were measured from outside."""

# General layout:
# _program       the command: it plays, judges, and ends what does not end
# _scenario      what is done; script.json says what the commands and agents do
# _claims        the facts, and what is claimed of them
# _looking       asks _observer, a process of its own that looks at the others

from __future__ import annotations

from ._program import demo as demo
