"""`actors._kernel.status`: the one-shot guard. What the runtime does with it is tested there."""

from __future__ import annotations

import signal

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors import Ended, Progress, Progressed, TaskStatus
from actors._kernel.status import LEGAL_TRANSITIONS, Guard

TERMINAL = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED}


def guard_in(status: TaskStatus) -> Guard:
    guard = Guard()
    if status in (TaskStatus.COMPLETED, TaskStatus.PAUSED):
        assert guard.transition(TaskStatus.RUNNING)
    if status is not TaskStatus.PENDING:
        assert guard.transition(status)
    return guard


def test_the_six_states_bear_these_names() -> None:
    """SM1."""
    assert [status.value for status in TaskStatus] == [
        "pending",
        "running",
        "paused",
        "completed",
        "failed",
        "killed",
    ]
    assert Guard().status is TaskStatus.PENDING


@pytest.mark.parametrize("status", TaskStatus)
def test_a_state_is_terminal_unless_it_is_pending_running_or_paused(
    status: TaskStatus,
) -> None:
    """SM1."""
    assert status.is_terminal is (status in TERMINAL)
    assert status.is_terminal is (not LEGAL_TRANSITIONS[status])


@pytest.mark.parametrize("after", TaskStatus)
@pytest.mark.parametrize("before", TaskStatus)
def test_a_transition_happens_if_it_is_legal_and_changes_nothing_if_not(
    before: TaskStatus, after: TaskStatus
) -> None:
    """SM2, SM6, SM10, SM12: legal are only pending to running, pending to failed or
    killed, running to any terminal state, and running to paused and back. What is
    paused may fail and be killed, and not complete."""
    legal = {
        (TaskStatus.PENDING, TaskStatus.RUNNING),
        (TaskStatus.PENDING, TaskStatus.FAILED),
        (TaskStatus.PENDING, TaskStatus.KILLED),
        (TaskStatus.RUNNING, TaskStatus.COMPLETED),
        (TaskStatus.RUNNING, TaskStatus.FAILED),
        (TaskStatus.RUNNING, TaskStatus.KILLED),
        (TaskStatus.RUNNING, TaskStatus.PAUSED),
        (TaskStatus.PAUSED, TaskStatus.RUNNING),
        (TaskStatus.PAUSED, TaskStatus.FAILED),
        (TaskStatus.PAUSED, TaskStatus.KILLED),
    }
    guard = guard_in(before)
    assert guard.transition(after) is ((before, after) in legal)
    assert guard.status is (after if (before, after) in legal else before)


@pytest.mark.parametrize("first", sorted(TERMINAL, key=str))
@pytest.mark.parametrize("second", sorted(TERMINAL, key=str))
def test_the_first_terminal_state_wins(first: TaskStatus, second: TaskStatus) -> None:
    """SM3, SM6, SM10: so what follows a terminal transition follows once."""
    guard = guard_in(TaskStatus.RUNNING)
    assert guard.transition(first)
    assert not guard.transition(second)
    assert guard.status is first


@given(st.lists(st.sampled_from(TaskStatus), max_size=12))
def test_any_sequence_of_attempts_ends_once_and_pauses_only_what_runs(
    attempts: list[TaskStatus],
) -> None:
    """SM2, SM3, SM6."""
    guard = Guard()
    passed: list[TaskStatus] = []
    for attempt in attempts:
        before = guard.status
        if guard.transition(attempt):
            passed.append(attempt)
            assert guard.status is attempt
        else:
            assert guard.status is before
    lasting = [status for status in passed if status is not TaskStatus.PAUSED]
    again = passed.count(TaskStatus.PAUSED)
    assert len(lasting) <= 2 + again
    assert sum(status.is_terminal for status in passed) <= 1
    assert not any(status.is_terminal for status in passed[:-1])
    for before, after in zip([TaskStatus.PENDING, *passed], passed, strict=False):
        if after is TaskStatus.PAUSED:
            assert before is TaskStatus.RUNNING


def test_asking_to_stop_is_no_transition() -> None:
    """SM11: a guard has no state for it, so a task that was told to stop is running, or
    paused, until it has ended."""
    assert LEGAL_TRANSITIONS[TaskStatus.RUNNING] == TERMINAL | {TaskStatus.PAUSED}
    guard = guard_in(TaskStatus.RUNNING)
    assert not guard.transition(TaskStatus.RUNNING)
    assert guard.status is TaskStatus.RUNNING


def test_a_guard_is_one_slotted_record() -> None:
    assert not hasattr(Guard(), "__dict__")
    with pytest.raises(AttributeError):
        Guard().ended = True  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_an_interrupt_in_a_transition_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3, D23: deciding and recording are one step."""
    guard = Guard()

    class Interrupting(frozenset[TaskStatus]):
        def __contains__(self, item: object) -> bool:
            signal.raise_signal(signal.SIGINT)
            return super().__contains__(item)

    monkeypatch.setitem(
        LEGAL_TRANSITIONS, TaskStatus.PENDING, Interrupting({TaskStatus.RUNNING})
    )

    async def main() -> None:
        assert guard.transition(TaskStatus.RUNNING)
        await trio.lowlevel.checkpoint()
        raise AssertionError("the interrupt was lost")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert guard.status is TaskStatus.RUNNING


@pytest.mark.parametrize("end", [s for s in TaskStatus if s.is_terminal])
def test_a_guard_admits_progress_before_the_end_and_the_end_once(
    end: TaskStatus,
) -> None:
    """P3, P6: whatever was tried in between."""
    guard = Guard()
    progressed = Progressed("s1", "s1-1", Progress("half"))
    ended = Ended("s1", "s1-1", end, "n1")
    for status in (TaskStatus.PENDING, TaskStatus.RUNNING):
        guard.status = status
        assert guard.admits(progressed) and not guard.admits(ended)
    assert guard.transition(end)
    for _ in range(2):
        assert guard.admits(ended) and not guard.admits(progressed)
    guard.has_told_end = True
    assert not guard.admits(ended) and not guard.admits(progressed)
