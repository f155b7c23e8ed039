"""The restart decision against an independent model, and the backoff's numbers."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import Completed, Exit, Failed, Stopped
from supervisor.tree import Backoff, ChildSpec, child
from supervisor.tree._restart import (
    GiveUp,
    History,
    ShutDown,
    StartAgain,
    StayDown,
    count_failures,
    decide_restart,
    needs_restart,
    restart_scope,
)
from supervisor.tree._spec import AUTO_SHUTDOWNS, RESTARTS, STRATEGIES, Flags


async def nothing(ctx):
    pass


def spec(restart="permanent", **more) -> ChildSpec[object]:
    return child("c", nothing, restart=restart, **more)


ABNORMAL: list[Exit[object]] = [Failed(ValueError()), Stopped("deadline")]
NORMAL: list[Exit[object]] = [
    Completed(None),
    Stopped("stop"),
    Stopped("supervisor", "because"),
    Stopped("auto_shutdown", "x"),
    Stopped("owner"),
]
exits = st.sampled_from(ABNORMAL + NORMAL)
# Quarters are exact in binary, so that the window's edge can be hit.
quarters = st.integers(0, 80).map(lambda n: n / 4)


@attrs.define
class Model:
    """OTP's rules written down once more, in the plainest way: the times of all
    restarts ever made, and nothing is ever pruned."""

    intensity: int
    period: float
    restarted_at: list[float] = attrs.Factory(list)

    def follow(self, restart, exit, now, *, significant, auto, last) -> str:
        comes_back = {
            "permanent": True,
            "transient": exit in ABNORMAL,
            "temporary": False,
        }[restart]
        if comes_back:
            within = sum(1 for t in self.restarted_at if now - t <= self.period)
            if within + 1 > self.intensity:
                return "give up"
            self.restarted_at.append(now)
            return "restart"
        if significant and (
            auto == "any_significant" or (auto == "all_significant" and last)
        ):
            return "shut down"
        return "stay down"


NAMES = {
    StartAgain: "restart",
    GiveUp: "give up",
    ShutDown: "shut down",
    StayDown: "stay down",
}


@given(
    intensity=st.integers(0, 4),
    period=quarters.filter(bool),
    auto=st.sampled_from(AUTO_SHUTDOWNS),
    ends=st.lists(
        st.tuples(
            st.sampled_from(RESTARTS),
            exits,
            quarters.map(lambda q: q / 8),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_a_run_of_decisions_agrees_with_the_model(intensity, period, auto, ends):
    """B18, B19, B20, B31, B32, B34, B44, B45: the decision is pure, and a
    supervisor's history of many children's ends is judged as the model does."""
    flags = Flags(intensity=intensity, period=period, auto_shutdown=auto)
    model = Model(intensity, period)
    history = History()
    now = 1000.0
    for restart, exit, pause, significant, last in ends:
        now += pause
        before = attrs.evolve(history)
        decision, history_after = decide_restart(
            spec(restart, significant=significant),
            flags,
            history,
            exit,
            now,
            last_significant=last,
        )
        assert history == before
        history = history_after
        expected = model.follow(
            restart,
            exit,
            now,
            significant=significant,
            auto=auto,
            last=last,
        )
        assert NAMES[type(decision)] == expected
        assert len(history.restarts) <= intensity
        if isinstance(decision, GiveUp):
            break


@given(intensity=st.integers(0, 50))
def test_intensity_n_survives_n_restarts_at_one_moment(intensity):
    """B31: N restarts in the window are allowed, the one after is not."""
    flags = Flags(intensity=intensity, period=5.0)
    history = History()
    for _ in range(intensity):
        decision, history = decide_restart(spec(), flags, history, Completed(None), 7.0)
        assert decision == StartAgain(0.0)
    decision, _ = decide_restart(spec(), flags, history, Completed(None), 7.0)
    assert decision == GiveUp()


@pytest.mark.parametrize(
    ("later", "expected"),
    [(0.0, GiveUp()), (5.0, GiveUp()), (5.0000001, StartAgain(0.0))],
)
def test_the_window_includes_its_edge(later, expected):
    """B32: a restart exactly one period old still counts. Deviation: the window
    is a float of seconds, not OTP's whole seconds."""
    flags = Flags(intensity=1, period=5.0)
    _, history = decide_restart(spec(), flags, History(), Completed(None), 10.0)
    assert (
        decide_restart(spec(), flags, history, Completed(None), 10.0 + later)[0]
        == expected
    )


@pytest.mark.parametrize("exit", NORMAL, ids=repr)
def test_a_normal_end_is_normal(exit):
    """B17: returning and being stopped are normal: only permanent comes back."""
    assert needs_restart(spec("permanent"), exit)
    assert not needs_restart(spec("transient"), exit)
    assert not needs_restart(spec("temporary"), exit)


@pytest.mark.parametrize("exit", ABNORMAL, ids=repr)
def test_an_abnormal_end_is_abnormal(exit):
    """B17: failures, and missed deadlines, bring a transient child back too."""
    assert needs_restart(spec("permanent"), exit)
    assert needs_restart(spec("transient"), exit)
    assert not needs_restart(spec("temporary"), exit)


def test_each_strategy_has_its_scope():
    """B23: what a restart touches."""
    scopes = [restart_scope(Flags(strategy=strategy)) for strategy in STRATEGIES]
    assert dict(zip(STRATEGIES, scopes, strict=True)) == {
        "one_for_one": "child",
        "one_for_all": "all",
        "rest_for_one": "rest",
    }


def test_the_backoff_doubles_up_to_its_maximum():
    """B67: 3, 6, 12, 24, 30, 30 for (3, 30)."""
    backoff = Backoff(3, 30)
    assert [backoff.delay(n, 0.0) for n in range(1, 7)] == [3, 6, 12, 24, 30, 30]


def test_the_decision_waits_as_the_backoff_says():
    """B67: the number of failures in a row selects the delay."""
    flags = Flags(intensity=10)
    waiting = spec(backoff=Backoff(3, 30))
    delays = [
        decide_restart(
            waiting, flags, History(), Failed(ValueError()), 0.0, failures=n
        )[0]
        for n in range(1, 7)
    ]
    assert delays == [StartAgain(d) for d in (3, 6, 12, 24, 30, 30)]


seconds = st.floats(0.001, 1e6)


@given(seconds, seconds, st.floats(0, 10), st.integers(1, 10**9), st.floats(0, 1))
def test_the_delay_stays_within_its_bounds(low, more, jitter, failures, chance):
    """B67: from min up to max, plus at most the jitter's share, however often
    it has failed."""
    backoff = Backoff(low, low + more, jitter=jitter)
    plain = Backoff(low, low + more).delay(failures, chance)
    delay = backoff.delay(failures, chance)
    assert low <= plain <= low + more
    assert plain <= delay <= plain * (1 + jitter) * (1 + 1e-9)
    assert backoff.delay(failures, 0.0) == plain


@given(seconds, seconds, st.integers(1, 2000))
def test_the_delay_never_shrinks_from_one_failure_to_the_next(low, more, failures):
    """B67: each wait is at least as long as the one before."""
    backoff = Backoff(low, low + more)
    assert backoff.delay(failures, 0.0) <= backoff.delay(failures + 1, 0.0)


@pytest.mark.parametrize(
    ("reset_after", "limit"), [(None, 16.5), (40.0, 40.0), (0.0, 0.0)]
)
def test_a_long_run_makes_the_backoff_begin_anew(reset_after, limit):
    """B67: reset after (min + max) / 2 without an end, or after reset_after."""
    backoff = Backoff(3, 30, reset_after=reset_after)
    assert count_failures(backoff, 4, limit) == 1
    if limit:
        assert count_failures(backoff, 4, limit * 0.999) == 5


def test_without_a_backoff_failures_only_add_up():
    """B67: there is nothing to reset."""
    assert count_failures(None, 4, 1e9) == 5
    assert decide_restart(spec(), Flags(), History(), Completed(None), 0.0, failures=5)[
        0
    ] == StartAgain(0.0)
