"""Mutants by somebody who has not seen the checkers, the budget, or any test.

How to write one: read the promises (P1 to P10) and the code of the runtime and of the
tree, and nothing in ``tests/``, ``supervisor/simulation/`` or ``bench/mutants/`` but
this file and ``_mutant.py``. Choose a promise, find the line that keeps it, and break
it as a programmer might on a bad day:

    Mutant(
        name="notified-before-the-end",
        file="supervisor/_life/life.py",
        before="        self.places.start_pending()\\n",
        after="        pass\\n",
        promise="P9",
        why="A task that waits for a place is not woken when one becomes free.",
    ),

``before`` is copied from the file, whole lines with their indentation and the newline
at the end, and is in it exactly once. ``python -m bench.mutants --check`` says for each
whether it fits and whether the file still compiles; it runs nothing.
``python -m bench.mutants --only NAME`` tries one. What is alive then stays in this list;
whoever makes something find it writes that into ``alive_at_first``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._mutant import Mutant

BLIND: Sequence[Mutant] = ()
