"""A mutant: one change that breaks one promise, as data."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Mutant:
    """One wrong line in a copy of `actors` and `supervisor`.

    A mutant is a mistake that a programmer could make: the code still runs, most of it
    still works, and one promise no longer holds, if only under some schedule or when
    something is cancelled or fails just then. A change that breaks everything at once,
    or that breaks nothing that anybody can see, says nothing about checkers.
    """

    name: str
    """Two to five words, in lower case with hyphens. No other mutant has it."""
    file: str
    """The file that is changed, from the root: ``supervisor/_life/life.py``."""
    before: str
    """Whole lines of that file as they stand there, with their indentation. They are in
    it exactly once; a mutant whose text is not there any more is an error, and is
    mended or replaced by whoever has changed the file."""
    after: str
    """The lines that stand there in the mutant; "" takes them out."""
    promise: str
    """The promise that it breaks: ``P1`` to ``P10``."""
    why: str
    """One sentence: what it does that it must not, and when."""
    alive_at_first: str = ""
    """Of a mutant that nothing found when it was first tried: what finds it since then,
    in a few words."""

    def apply(self, text: str) -> str:
        """Return the text of the file with this change.

        Raises ValueError if it does not fit.
        """
        found = text.count(self.before)
        if found != 1 or not self.before:
            raise ValueError(
                f"mutant {self.name}: its text is {found} times in {self.file}; "
                "write more of the lines around it, or those that are there now"
            )
        return text.replace(self.before, self.after)
