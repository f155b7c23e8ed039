"""The lines of a journal and what they add up to, against a model."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from supervisor._tasks.journal.lines import Lines
from supervisor._tasks.journal.records import (
    KINDS,
    SCHEMA,
    Acked,
    Continued,
    Ended,
    Header,
    Moved,
    NewerJournal,
    NotALine,
    Paused,
    Record,
    Started,
    from_line,
    to_line,
)
from supervisor._tasks.journal.state import State, read
from tests.supervisor.life.test_struck_inside import Blows

AT = "2026-11-23T12:00:00.000+00:00"
GOOD_HEADER = Header(at=AT)
GOOD = to_line(GOOD_HEADER)


def history(seed: int, length: int = 60) -> list[Record]:
    """Return lines such as a runtime writes, with some that make no sense."""
    chance = random.Random(seed)
    ids = [f"s{number:08x}" for number in range(6)]
    told: list[Record] = [Header(at=AT)]
    runs, notes, begun = 0, 0, ["s0-000000"]
    for _ in range(length):
        task = chance.choice(ids)
        run = chance.choice(begun)
        match chance.randrange(8):
            case 0 | 1:
                runs += 1
                begun.append(f"{task}-{runs:06}")
                key = chance.choice([None, None, "k"])
                # The first tasks are agents, with files of their own.
                is_agent = task < ids[3]
                told.append(
                    Started(
                        run=begun[-1],
                        type="local_agent" if is_agent else "local_bash",
                        at=AT,
                        key=key,
                        agent="{}" if is_agent else None,
                        background=chance.random() < 0.7,
                    )
                )
            case 2 | 3:
                note = None
                if chance.random() < 0.8:
                    notes += 1
                    note = f"n{notes:06}"
                told.append(Ended(run=run, status="failed", at=AT, note=note))
            case 4:
                told.append(Acked(note=f"n{chance.randint(1, notes + 1):06}"))
            case 5:
                told.append(Moved(run=run))
            case 6:
                attempt = chance.randrange(4)
                heard = chance.random() < 0.5
                at = "" if attempt == 0 else f"{AT}{chance.randrange(3)}"
                told.append(Paused(run=run, attempt=attempt, at=at, told=heard))
            case _:
                told.append(Continued(run=run, answered=chance.random() < 0.3))
    return told


def added(records: list[Record]) -> State:
    state = State()
    for record in records:
        state.add(record)
    return state


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda it: it.kind)
def test_what_is_written_is_read(kind: Any) -> None:
    chance = random.Random(1)
    values = {
        "str": lambda: chance.choice(["", "a\nb", "\udc80", "ä" * 99, '"\\\0']),
        "str | None": lambda: chance.choice([None, "x", "<&>"]),
        "int": lambda: chance.randrange(-2, 2**40),
        "int | None": lambda: chance.choice([None, 0, 9]),
        "bool": lambda: chance.random() < 0.5,
    }
    for _ in range(200):
        given: dict[str, Any] = {
            it.name: values[str(it.type)]() for it in attrs.fields(kind)
        }
        if kind is Header:
            given["schema"] = SCHEMA
        record = kind(**given)
        line = to_line(record)
        assert line.count(b"\n") == 1 and line.endswith(b"\n")
        again = from_line(line)
        assert to_line(again) == line
        if "\udc80" not in given.values():
            assert again == record


def test_no_two_fields_of_a_kind_have_one_key() -> None:
    for kind in KINDS.values():
        keys = [it.metadata["key"] for it in attrs.fields(kind)]
        assert len({"k", *keys}) == len(keys) + 1


@pytest.mark.parametrize("seed", range(200))
def test_the_fewest_lines_add_up_to_the_same(seed: int) -> None:
    state = added(history(seed))
    header = Header(at=AT, last_note=state.last_note)
    again = added([header, *state.records()])
    assert again == state
    assert [*again.notes] == [*state.notes]
    more = sum(len(it.tries) + 1 for it in state.tasks.values()) + len(state.agents)
    assert len([*state.records()]) <= 2 * len(state.tasks) + more


@pytest.mark.parametrize("seed", range(200))
def test_what_may_still_count_of_them_adds_up_to_the_same(seed: int) -> None:
    """Also if one is taken twice, because it failed, wherever that was. A runtime ends
    each run that it has begun once, and none that goes on in another."""
    records, chance = history(seed, 120), random.Random(seed)
    lines, state = Lines(), State()
    for record in records:
        known = state.tasks.get(getattr(record, "run", ""))
        if isinstance(record, Ended) and (known is None or known.ended is not None):
            continue
        state.add(record)
        if chance.random() < 0.2:
            with Blows(chance.randint(1, 12), below="Lines.add"):
                try:
                    lines.add(record, to_line(record))
                except MemoryError:
                    lines.add(record, to_line(record))
        else:
            lines.add(record, to_line(record))
    again = read(lines.joined(Header(at=AT, last_note=lines.last_note))).state
    assert again.tasks == state.tasks
    assert again.notes == state.notes
    assert again.unfinished == state.unfinished
    assert again.agents == state.agents
    assert again.last_note == state.last_note


def test_no_line_is_kept_of_a_task_that_is_over() -> None:
    started = Started(run="s0-000001", type="local_bash", at=AT)
    others = attrs.evolve(started, run="s1-000002")
    silent = attrs.evolve(started, run="s2-000003")
    told: list[Record] = [
        *(started, others, silent, Moved(run="s0-000001")),
        Ended(run="s0-000001", status="failed", at=AT, note="n000001"),
        Ended(run="s2-000003", status="failed", at=AT),
        Acked(note="n000001"),
    ]
    lines = Lines(told)
    assert lines.last_note == 1
    assert lines.joined(GOOD_HEADER) == GOOD + to_line(others)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_was_cut_anywhere_is_its_whole_lines(seed: int) -> None:
    records = history(seed, 12)
    lines = [*map(to_line, records)]
    contents = b"".join(lines)
    for size in range(len(contents) + 1):
        there = read(contents[:size])
        whole, count = 0, 0
        while count < len(lines) and whole + len(lines[count]) <= size:
            whole, count = whole + len(lines[count]), count + 1
        assert there.state == added(records[:count])
        assert (there.whole, there.torn, there.bad) == (whole, size - whole, ())


@pytest.mark.parametrize("seed", range(20))
def test_a_line_that_says_nothing_is_left_out_and_told(seed: int) -> None:
    chance = random.Random(seed)
    records = history(seed, 12)
    lines = [*map(to_line, records)]
    at = chance.randrange(1, len(lines) - 1)
    lines[at] = chance.choice(
        [
            b"\n",
            b"{}\n",
            b"[]\n",
            b"\0" * 40 + b"\n",
            b'{"k":"start","t":3}\n',
            lines[at][5:],
        ]
    )
    there = read(b"".join(lines))
    assert there.bad == (at + 1,)
    assert there.torn == 0
    assert there.state == added([*records[:at], *records[at + 1 :]])


def test_what_is_behind_the_last_line_that_says_something_is_a_torn_tail() -> None:
    lines = [*map(to_line, history(3, 5))]
    good = b"".join(lines)
    there = read(good + b"\0\0\0\n{}\n{")
    assert (there.whole, there.torn, there.bad) == (len(good), 8, ())


@pytest.mark.parametrize(
    "version", [b"2", b"9" * 30, b'"2"', b'"1"', b"1.5", b"1.0", b"true", b"null", b"0"]
)
def test_a_version_that_is_not_known_is_refused(version: bytes) -> None:
    """Nobody can say what the lines mean then, so none may be cut."""
    line = b'{"k":"journal","v":' + version + b',"at":"x"}\n'
    with pytest.raises(NewerJournal, match=r"its version is .* reads 1"):
        read(line)
    with pytest.raises(NewerJournal):
        read(to_line(Header(at=AT)) + line)


@pytest.mark.parametrize(
    ("contents", "is_damaged"),
    [
        (b"", False),
        (GOOD, False),
        (GOOD + b'{"k":"ac', False),
        (GOOD + b"\0" * 40, False),
        (GOOD + b"rubbish\n", True),
        (GOOD + b"rubbish\n" + to_line(Acked(note="n1")), True),
        (b"rubbish\n" + GOOD, True),
        (to_line(Acked(note="n1")) + GOOD, True),
        (GOOD[:-1], True),
        (b"precious", True),
        (b"\0" * 40, True),
    ],
)
def test_what_no_death_of_the_program_explains_is_damage(
    contents: bytes, is_damaged: bool
) -> None:
    assert read(contents).is_damaged is is_damaged


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"3",
        b'{"k":"nothing"}',
        b'{"k":["end"]}',
        b'{"k":"end"}',
        b'{"k":"end","r":"s1","s":"failed","at":1}',
        b'{"k":"end","r":"s1","s":"failed","at":"x","x":true}',
        b'{"k":"journal","at":"x"}',
        b'{"k":"journal","v":1,"at":7}',
        b'{"k":"ack","n":null}',
    ],
)
def test_what_no_line_can_say_is_refused(line: bytes) -> None:
    with pytest.raises(NotALine):
        from_line(line)


def test_a_line_that_only_reserves_numbers_leaves_who_has_written_it() -> None:
    """By that name the processes are found that a dead program has left."""
    first = Header(at=AT, program="boot 1 2")
    state = read(to_line(first) + to_line(Header(at="", last_note=101))).state
    assert (state.program, state.last_note) == ("boot 1 2", 101)


@pytest.mark.parametrize("rare", [0.0, 0.02, 0.2])
def test_nobody_has_to_read_lines_that_are_the_fewest(rare: float) -> None:
    """What a reader would make of them, also later, is no less."""
    seen = 0
    for seed in range(100):
        chance = random.Random(seed)
        lines, state = Lines(), State()
        for record in history(seed):
            if isinstance(record, Moved | Paused | Continued):
                if chance.random() >= rare:
                    continue
            elif isinstance(record, Ended):
                known = state.tasks.get(record.run)
                if known is None or known.ended is not None:
                    continue
            elif isinstance(record, Started) and chance.random() >= rare:
                record = attrs.evolve(record, key=None, agent=None)
            state.add(record)
            lines.add(record, to_line(record))
            if lines.are_fewest:
                seen += 1
                header = Header(at=AT, last_note=lines.last_note)
                there = lines.joined(header)
                later = read(there).state
                later.forget("9999")
                fewest = Lines(later.records(), later.last_note).joined(header)
                assert sorted(fewest.splitlines()) == sorted(there.splitlines())
    assert seen > 500
    # That of an agent goes after a day.
    over = Ended(run="a0-000001", status="completed", at=AT)
    assert not Lines([over]).are_fewest


def test_a_line_is_written_as_ever() -> None:
    """Also with what is hard to write. Other programs may read them."""
    run = "s0-000001"
    lines: dict[bytes, Record] = {
        b'{"k":"journal","v":1,"at":"t","p":"","n":0}\n': Header(at="t"),
        b'{"k":"start","r":"s0-000001","y":"local_bash","at":"t","d":"a\\n\\"","o":"main",'
        b'"b":false,"n":"defer","c":"\\\\udc80","i":"k"}\n': Started(
            run=run,
            type="local_bash",
            at="t",
            description='a\n"',
            owner="main",
            background=False,
            notify="defer",
            command="\udc80",
            key="k",
        ),
        b'{"k":"move","r":"s0-000001"}\n': Moved(run=run),
        b'{"k":"pause","r":"s0-000001","m":"why","a":2,"t":true}\n': Paused(
            run=run, reason="why", attempt=2, told=True
        ),
        b'{"k":"go on","r":"s0-000001"}\n': Continued(run=run),
        b'{"k":"go on","r":"s0-000001","a":true}\n': Continued(run=run, answered=True),
        b'{"k":"end","r":"s0-000001","s":"failed","at":"t","n":"n1","x":null,"z":0}\n': (
            Ended(
                run=run,
                status="failed",
                at="t",
                note="n1",
                exit_code=2**70,
                duration_ms=0,
            )
        ),
        b'{"k":"ack","n":"n1"}\n': Acked(note="n1"),
        b'{"k":"ack","n":"n1","h":"silent"}\n': Acked(note="n1", how="silent"),
    }
    assert {type(it) for it in lines.values()} == {*KINDS.values()}
    for line, record in lines.items():
        assert to_line(record) == line


@pytest.mark.parametrize(
    "make",
    [
        lambda run: Started(run=run, type="", at=AT),
        lambda run: Ended(run=run, status="", at=AT),
        lambda run: Ended(run=run, status="", at=AT, note=run),
    ],
    ids=["start", "end", "end that is told"],
)
def test_a_line_that_is_kept_takes_little_more_memory_than_its_bytes(
    make: Callable[[str], Record],
) -> None:
    lines, records = Lines(), [make(f"s{n:08x}-000001") for n in range(500)]
    tracemalloc.start()
    try:
        for record in records:
            lines.add(record, to_line(record))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Beside them there are dicts.
    assert taken < 700 * len(records)
