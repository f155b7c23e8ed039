"""What is shown when more happens than anybody can read."""

from __future__ import annotations

from collections import Counter

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.shell import Shell
from actors.testing import fake_env
from supervisor._delivery.display import DISPLAY_LIMIT, Admission, admit, cap_lines
from supervisor.runtime import DisplayItem, DisplayQueue, open_runtime


def item(id: str = "s1", kind: str = "completed", **flags: bool) -> DisplayItem:
    return DisplayItem(kind=kind, id=id, text=f"{id} {kind}", **flags)


def pulse(id: str = "s1", **flags: bool) -> DisplayItem:
    return item(id, "progress", pulse=True, **flags)


RESULT = item()
PULSE = pulse()
SAFE = item(protected=True)
SAFE_PULSE = pulse(protected=True)


# ---- Who comes in -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "arriving", "expected"),
    [
        pytest.param([SAFE, PULSE], PULSE, Admission(True), id="room"),
        pytest.param([RESULT, PULSE, PULSE], RESULT, Admission(True, 1), id="a pulse"),
        pytest.param(
            [RESULT, PULSE, PULSE], PULSE, Admission(True, 1), id="a pulse for a pulse"
        ),
        pytest.param(
            [SAFE_PULSE, RESULT, PULSE], RESULT, Admission(True, 2), id="not protected"
        ),
        pytest.param(
            [RESULT, RESULT, RESULT], PULSE, Admission(False), id="no room for a pulse"
        ),
        pytest.param(
            [SAFE, RESULT, RESULT], RESULT, Admission(True, 1), id="the oldest"
        ),
        pytest.param(
            [SAFE, RESULT, RESULT], SAFE, Admission(True, 1), id="for a protected one"
        ),
        pytest.param(
            [SAFE, SAFE_PULSE, SAFE], RESULT, Admission(False), id="none goes"
        ),
        pytest.param([SAFE, SAFE, SAFE], SAFE, Admission(False), id="not even for it"),
    ],
)
def test_a_full_queue_gives_up_pulses_first_and_protected_items_never(
    queue: list[DisplayItem], arriving: DisplayItem, expected: Admission
) -> None:
    """N20: the rule, case by case, in its order."""
    limit = len(queue) + 1 if expected == Admission(True) else len(queue)
    assert admit(queue, arriving, limit) == expected


def test_protection_beats_being_a_pulse() -> None:
    """N21: on both sides."""
    assert admit([SAFE_PULSE, RESULT], RESULT, 2) == Admission(True, 1)
    assert admit([RESULT, RESULT], SAFE_PULSE, 2) == Admission(True, 0)


ITEMS = st.builds(
    item,
    id=st.sampled_from(["s1", "s2", "s3", "s4", "s5"]),
    kind=st.sampled_from(["completed", "failed"]),
    pulse=st.booleans(),
    protected=st.booleans(),
    recorded=st.booleans(),
)


@given(st.lists(ITEMS, max_size=6), ITEMS)
def test_the_rule_changes_nothing_and_agrees_with_itself(
    queue: list[DisplayItem], arriving: DisplayItem
) -> None:
    """N20, N21: asked twice it says the same, and of what it was given nothing
    has changed."""
    before = [*queue]
    admission = admit(queue, arriving, 4)
    assert queue == before
    assert admit(tuple(queue), arriving, 4) == admission
    if admission.evicted is not None:
        assert admission.admitted
        assert not queue[admission.evicted].protected
    if not admission.admitted:
        assert not any(i.pulse and not i.protected for i in queue)


@given(st.lists(ITEMS, max_size=80))
def test_what_comes_is_shown_or_counted_and_never_both(
    arriving: list[DisplayItem],
) -> None:
    """N20, N22: at most 20 are kept, in order, and the rest is accounted for."""
    queue = DisplayQueue()
    for new in arriving:
        queue.add(new)
        assert len(queue) <= DISPLAY_LIMIT
    assert len(queue) == min(len(arriving), DISPLAY_LIMIT)
    shown, folded = queue.take()
    rest = iter(arriving)
    assert all(any(new == kept for new in rest) for kept in shown)
    lost = Counter(arriving) - Counter(shown)
    assert (folded is None) is (not lost)
    if folded is not None:
        assert sum(lost.values()) == sum(
            int(word)
            for word, after in zip(
                folded.text.split(), folded.text.split()[1:], strict=False
            )
            if word.isdigit() and after in ("completed", "failed")
        )


# ---- What is told of the others ------------------------------------------------------


def full_queue() -> DisplayQueue:
    """A queue that is full of what only a protected item can push out."""
    queue = DisplayQueue()
    for number in range(DISPLAY_LIMIT):
        queue.add(item(f"keep{number}", protected=True))
    return queue


def test_losses_are_told_once_by_kind_with_three_names_each() -> None:
    """N22"""
    queue = full_queue()
    for number in range(5):
        assert not queue.add(item(f"s{number}", "failed"))
    assert not queue.add(item("s0", "failed"))
    assert not queue.add(item("s9", "killed"))
    shown, folded = queue.take()
    assert len(shown) == DISPLAY_LIMIT
    assert folded is not None
    assert folded.status == "dropped"
    assert "Dropped 7 from the display" in folded.text
    assert "6 failed (s0, s1, s2 +2), 1 killed (s9);" in folded.text
    assert queue.take() == ([], None)


def test_what_was_cleared_is_never_told() -> None:
    """N22"""
    queue = full_queue()
    queue.add(item())
    queue.clear()
    assert len(queue) == 0
    assert queue.take() == ([], None)
    queue.add(RESULT)
    assert queue.take() == ([RESULT], None)


def test_a_result_that_is_recorded_is_told_as_such_and_sends_nobody_to_look() -> None:
    """N23"""
    queue = full_queue()
    queue.add(item("s1", recorded=True))
    queue.add(pulse("s2"))
    _, folded = queue.take()
    assert folded is not None
    assert folded.status == "recorded"
    assert "1 completed (s1)" in folded.text
    assert "TaskList" not in folded.text
    assert "Dropped" not in folded.text


def test_a_loss_of_both_sends_people_to_what_is_not_recorded() -> None:
    """N23"""
    queue = full_queue()
    queue.add(item("s1", recorded=True))
    queue.add(item("s2"))
    _, folded = queue.take()
    assert folded is not None
    assert folded.status == "dropped"
    assert "Dropped 1 from the display: 1 completed (s2); TaskList" in folded.text
    assert "Recorded without being shown: 1 completed (s1)." in folded.text


def test_a_loss_of_nothing_but_pulses_counts_no_result() -> None:
    """N24"""
    queue = full_queue()
    for number in range(6):
        queue.add(pulse(f"s{number % 4}"))
    _, folded = queue.take()
    assert folded is not None
    assert folded.text == "Interim updates not shown: 6 progress (s0, s1, s2 +1)."


# ---- Notifications ---------------------------------------------------------------------


async def test_the_line_of_a_notification_is_its_display_text(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N15, N23: what was read in another way is recorded, and no need to look."""
    async with open_runtime("/tasks", env=fake_env({"make": 2})) as runtime:
        task = await runtime.launch(Shell("make"))
        await task.wait()
    (note,) = runtime.notifications.drain()
    line = DisplayItem.of(note, protected=True)
    assert (line.kind, line.id, line.text) == ("failed", task.id, note.display)
    assert (line.pulse, line.protected, line.recorded) == (False, True, False)
    note.ack("consumed")
    assert DisplayItem.of(note).recorded


# ---- Lines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_lines", "shown"),
    [
        ([], []),
        (["a", "b", "c"], ["a", "b", "c"]),
        (["a", "b", "c", "d"], ["a", "b", "and 2 more"]),
        ([str(n) for n in range(10)], ["0", "1", "and 8 more"]),
    ],
)
def test_no_more_than_three_lines_are_shown(
    given_lines: list[str], shown: list[str]
) -> None:
    """N46"""
    assert cap_lines(given_lines) == shown
    assert cap_lines(given_lines, 100) == given_lines


def test_no_room_for_a_line_is_refused() -> None:
    with pytest.raises(
        ValueError, match="limit must be a whole number, 1 or more, not 0"
    ):
        cap_lines(["a"], 0)
