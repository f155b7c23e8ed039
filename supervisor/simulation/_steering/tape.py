"""A tape: everything that was decided in a run besides what its program does.

It is data. The schedule is written as deviations from round robin, and the faults
stand beside it, so that one reader replays both and one shrinker makes both smaller.
As text it is short enough for a line of a test: ``"15:2, cancel get#2 late 25"``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

import attrs

from .._errors import TapeDoesNotFit

Arrival = Literal["blocked", "woken", "elsewhere", "late", "checkpoint"]

ARRIVALS: tuple[Arrival, ...] = ("blocked", "woken", "elsewhere", "late")

IN_WAIT: tuple[Arrival, ...] = ("blocked", "elsewhere", "late")
"""How an error can arrive: while its target waits."""

CHECKPOINT: Literal["checkpoint"] = "checkpoint"
"""How a KeyboardInterrupt can arrive besides."""

SCHEMA = 1

LONG = 2_000
"""Characters. A text of a tape that is longer belongs into a file, not into a line: that
of a run that had to be ended may have a million."""


@attrs.frozen
class Deviation:
    """A step that was not taken by who had waited longest."""

    step: int
    """The number of the step in the run, from 0."""
    place: int
    """Whose it was, in the order of round robin; 0 would be no deviation."""
    task: str = attrs.field(default="", eq=False)
    """Who that was when the tape was made. For people, and to tell whether it fits."""


@attrs.frozen
class Fault:
    """What is done to a target of a run, and when."""

    kind: Literal["cancel", "again", "raise", "fault", "crash"]
    target: str
    """The call: the name of its function, with ``#2`` and so on from the second on. Of
    a ``fault`` the operation that goes wrong, as ``network.send``; of a ``crash`` the
    change of the disk that it comes before, as ``write``, or ``end``."""
    arrival: str
    """At what kind of point; of a ``fault``, how the operation goes wrong; of a
    ``crash``, what it leaves."""
    point: int
    """Which of the target's points of that kind, or which call or change, from 1."""
    error: str = ""
    """Of a raise, the class of the error, as ``module:name``."""
    site: str = attrs.field(default="", eq=False)
    """Where the target was: ``file.py:12 function``."""
    after: str = attrs.field(default="", eq=False)
    """Who had taken the step before; of a ``fault``, who has made the call; of a
    ``crash``, the path."""
    step: int = attrs.field(default=-1, eq=False)
    """The number of that step."""
    line: str = attrs.field(default="", eq=False, repr=False)
    """The text of the innermost line there that is not a library's."""
    place: str = attrs.field(default="", eq=False, repr=False)
    """That line, as ``/path/file.py:12``; not kept in files."""

    def __str__(self) -> str:
        what = f"{self.kind} {self.target} {self.arrival} {self.point}"
        return f"{what} {self.error}" if self.error else what

    def words(self) -> str:
        """Return what is done in words."""
        if self.kind == "fault":
            return f"call {self.point} of {self.target} goes wrong ({self.arrival})"
        if self.kind == "crash":
            change = f"{self.target} {self.after}".strip()
            return (
                f"crash at change {self.point} of the disk, {change} ({self.arrival})"
            )
        what = f"{self.kind} {self.target}"
        if self.kind == "again":
            what = f"end the shield of {self.target}"
        if self.kind == "raise":
            what = f"raise {self.error.rpartition(':')[2]} in {self.target}"
        when = f"after step {self.step}" if self.step >= 0 else f"at point {self.point}"
        return f"{what} {when} ({self.arrival})"


def _is_kept(field: attrs.Attribute[Any], _: object) -> bool:
    return field.name != "place"  # Other machines have other folders.


_SEED = re.compile(r"seed (-?\d+)")
_DEVIATION = re.compile(r"(\d+):(\d+)")
_FAULT = re.compile(r"(cancel|again|raise|fault|crash) (\S+) (\S+) (\d+)(?: (\S+))?")


@attrs.frozen
class Tape:
    """What was decided in a run: its schedule, and its faults."""

    deviations: tuple[Deviation, ...] = ()
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    """Of the chance that the program itself asks for (`Sim.random`)."""

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        steps = [f"{it.step}:{it.place}" for it in self.deviations]
        seed = [f"seed {self.seed}"] if self.seed else []
        return ", ".join([*seed, *steps, *map(str, self.faults)]) or "round robin"

    def words(self) -> str:
        """Return the tape in words, as ``round robin, cancel get#2 after step 15``."""
        steps = [
            f"step {it.step} by {it.task or f'place {it.place}'}"
            for it in self.deviations[:5]
        ]
        more = len(self.deviations) - len(steps)
        if more:
            steps.append(f"{more} more")
        parts = ["round robin" + (f" but {', '.join(steps)}" if steps else "")]
        return ", ".join([*parts, *(fault.words() for fault in self.faults)])

    def brief(self) -> str:
        """Return the text; the words if it is too long for a line."""
        text = str(self)
        return text if len(text) <= LONG else self.words()

    @classmethod
    def of(cls, tape: Tape | str) -> Tape:
        """Return a tape, or that of a text. Raises TypeError for anything else, and
        ValueError for a text that is none."""
        if isinstance(tape, str):
            return cls.parse(tape)
        if not isinstance(tape, Tape):
            raise TypeError(f"tape must be a Tape, or its text, not {tape!r}")
        return tape

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the tape of a text. Raises ValueError for what is none: a step is
        one task's, and a point is struck once."""
        deviations: list[Deviation] = []
        faults: list[Fault] = []
        seed = 0
        for part in (it.strip() for it in text.split(",")):
            if found := _SEED.fullmatch(part):
                seed = int(found[1])
            elif found := _DEVIATION.fullmatch(part):
                if int(found[2]) == 0:
                    who = "the step of who has waited longest, which is no deviation"
                    raise ValueError(f"{part!r} of tape {text!r:.200} is {who}")
                deviations.append(Deviation(int(found[1]), int(found[2])))
            elif found := _FAULT.fullmatch(part):
                kind: Any = found[1]
                error = found[5] or ""
                faults.append(Fault(kind, found[2], found[3], int(found[4]), error))
            elif part not in ("", "round robin"):
                raise ValueError(
                    f"{part!r:.200} of tape {text!r:.200} is no step and no fault"
                )
        said = Counter([*(f"step {it.step}" for it in deviations), *map(str, faults)])
        if twice := [it for it, times in said.items() if times > 1]:
            raise ValueError(f"tape {text!r:.200} has {twice[0]} twice")
        return cls(tuple(deviations), tuple(faults), seed)

    def to_json(self) -> Mapping[str, Any]:
        """Return the tape as JSON has it, with the number of the schema."""
        return {
            "schema": SCHEMA,
            "seed": self.seed,
            "deviations": [attrs.asdict(it) for it in self.deviations],
            "faults": [attrs.asdict(it, filter=_is_kept) for it in self.faults],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the tape of what `to_json` has made.

        Raises TapeDoesNotFit for another schema, and ValueError for what is no tape.
        """
        try:
            if data["schema"] != SCHEMA:
                raise TapeDoesNotFit(
                    f"the tape has schema {data['schema']!r}; this version reads {SCHEMA}"
                )
            deviations = [Deviation(**it) for it in data["deviations"]]
            faults = [Fault(**it) for it in data["faults"]]
            tape = cls(tuple(deviations), tuple(faults), data["seed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no tape: {error!r}") from error
        if cls.parse(str(tape)) != tape:
            raise ValueError(f"this is no tape: {tape!r:.200}")
        return tape
