"""Specs and flags: defaults, and what bad input is told."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import functools
import math
import pydoc
import time
import types
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from functools import partial
from types import FunctionType

import pytest
import trio
from trio.lowlevel import enable_ki_protection

import supervisor.tree
from actors import Completed
from supervisor.tree import (
    Backoff,
    ChildSpec,
    InvalidChildSpec,
    InvalidSupervisorFlags,
    SupervisorError,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


async def idle(ctx):
    await trio.sleep_forever()


def test_id_and_function_are_mandatory():
    """B1: two distinct errors, and unknown keys are rejected. Deviation: OTP
    ignores unknown keys."""
    with pytest.raises(InvalidChildSpec, match=r"missing id.*''"):
        child("", idle)
    with pytest.raises(InvalidChildSpec, match=r"missing id.*7"):
        child(7, idle)  # type: ignore[call-overload]
    with pytest.raises(InvalidChildSpec, match=r"missing start.*'a'.*'idle'"):
        child("a", "idle")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="colour"):
        child("a", idle, colour="red")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        ChildSpec("a")  # type: ignore[call-arg]


def test_the_defaults_are_those_of_otp():
    """B2: permanent, worker, not significant, five seconds; infinity for a supervisor."""
    worker = child("a", idle)
    assert (worker.restart, worker.kind, worker.significant) == (
        "permanent",
        "worker",
        False,
    )
    assert worker.shutdown == 5.0
    assert child("s", open_supervisor, kind="supervisor").shutdown == "infinity"
    assert worker.backoff is None
    assert (worker.wait_started, worker.drain) == (False, 0.0)


def test_a_spec_is_frozen_data():
    """B2: a spec can be shared and compared."""
    with pytest.raises(AttributeError):
        child("a", idle).restart = "temporary"  # type: ignore[misc]
    assert child("a", idle) == child("a", idle)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restart", "always"),
        ("restart", None),
        ("restart", True),
        ("shutdown", -1),
        ("shutdown", -0.5),
        ("shutdown", True),
        ("shutdown", math.nan),
        ("shutdown", math.inf),
        ("shutdown", 10**400),
        ("shutdown", "never"),
        ("significant", 1),
        ("kind", "manager"),
        ("backoff", 3),
        ("wait_started", "yes"),
        ("drain", -1),
        ("drain", True),
        ("drain", math.nan),
        ("drain", 10**400),
        ("mailbox", 0),
        ("mailbox", True),
        ("mailbox", 1.5),
    ],
)
def test_a_bad_field_is_named_with_its_value(field, value):
    """B3: each field is checked at construction."""
    with pytest.raises(InvalidChildSpec) as caught:
        child("a", idle, **{field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "'a'" in str(caught.value)


def test_no_budget_at_all_is_legal():
    """B3: 0 is a legal budget and stays distinct from brutal_kill."""
    assert child("a", idle, shutdown=0).shutdown == 0
    assert child("a", idle, shutdown="brutal_kill").shutdown == "brutal_kill"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 30), "0"),
        ((-3, 30), "-3"),
        ((True, 30), "True"),
        ((3, 2), "2"),
        ((3, math.nan), "nan"),
        ((3, math.inf), "inf"),
        (("3", 30), "'3'"),
    ],
)
def test_a_bad_backoff_is_named(arguments, named):
    """B67: bounds are checked at construction."""
    with pytest.raises(InvalidChildSpec, match=f"not {named}"):
        Backoff(*arguments)


@pytest.mark.parametrize("name", ["jitter", "reset_after"])
@pytest.mark.parametrize("value", [-1, True, math.nan, "x"])
def test_a_bad_backoff_option_is_named(name, value):
    """B67: so are the options."""
    with pytest.raises(InvalidChildSpec, match=name) as caught:
        Backoff(3, 30, **{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("strategy", "two_for_one"),
        ("strategy", None),
        ("intensity", -1),
        ("intensity", True),
        ("intensity", 1.0),
        ("intensity", "infinity"),
        ("period", 0),
        ("period", -5),
        ("period", True),
        ("period", math.nan),
        ("period", math.inf),
        ("auto_shutdown", "sometimes"),
    ],
)
def test_a_bad_flag_is_named_with_its_value(flag, value):
    """B6: named errors, before anything is started."""
    with pytest.raises(InvalidSupervisorFlags) as caught:
        open_supervisor([child("a", idle)], **{flag: value})
    assert flag in str(caught.value)
    assert repr(value) in str(caught.value)


def test_an_unknown_flag_is_rejected():
    """B6, deviation: OTP ignores it."""
    with pytest.raises(TypeError, match="intensty"):
        open_supervisor([], intensty=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [-1, True, 2.0, "3"])
def test_bad_max_children_is_named(value):
    """B6, B48: a count or None."""
    with pytest.raises(InvalidSupervisorFlags, match="max_children") as caught:
        open_dynamic_supervisor(max_children=value)
    assert repr(value) in str(caught.value)


async def test_the_default_budget_is_one_restart_in_five_seconds(autojump_clock):
    """B6: intensity 1, period 5."""
    crashes = []

    async def crash(ctx):
        crashes.append(trio.current_time())
        await trio.sleep(5.1 if len(crashes) == 1 else 1)
        raise ValueError

    with pytest.raises(SupervisorError):
        async with open_supervisor([child("a", crash)]) as sup:
            await sup.wait()
    # The second end, 1 s after the first, was one too many.
    assert crashes == [0.0, pytest.approx(5.1)]


@pytest.mark.parametrize(
    ("children", "message"),
    [
        (
            [child("a", idle), child("b", idle), child("a", idle)],
            "duplicate child id 'a'",
        ),
        ([child("a", idle), idle], "idle"),
        ([child("a", idle), ("b", idle)], r"\('b', "),
        ([child("a", idle), None], "None"),
        (
            [child("a", idle), child("b", idle, significant=True, restart="transient")],
            "'b' is significant and the supervisor's auto_shutdown is 'never'",
        ),
    ],
)
async def test_a_bad_list_starts_nothing(children, message):
    """B4, B5: a duplicate id, what is no spec, a bad combination: nothing is
    started, and the error names it."""
    started = []

    async def note(ctx):
        started.append(ctx.id)
        await trio.sleep_forever()

    first = child("first", note)
    with pytest.raises(InvalidChildSpec, match=message):
        async with open_supervisor([first, *children]):
            raise AssertionError("entered")  # pragma: no cover
    assert started == []


@pytest.mark.parametrize("children", [None, 3, child("a", idle)])
def test_children_that_are_no_list_are_named(children):
    """B4: what is given for children at all."""
    with pytest.raises(InvalidChildSpec, match="children must be a list"):
        open_supervisor(children)


async def test_significant_and_permanent_do_not_go_together():
    """B5: it would be restarted and never end."""
    bad = child("b", idle, significant=True)
    with pytest.raises(InvalidChildSpec, match="'b' is significant and permanent"):
        async with open_supervisor([bad], auto_shutdown="any_significant"):
            raise AssertionError("entered")  # pragma: no cover


async def test_start_child_checks_the_combination_with_the_flags():
    """B5: also for a child that comes later; nothing is kept."""
    async with open_supervisor() as sup:
        with pytest.raises(InvalidChildSpec, match="auto_shutdown is 'never'"):
            await sup.start_child(
                child("b", idle, significant=True, restart="transient")
            )
        with pytest.raises(InvalidChildSpec, match="None"):
            await sup.start_child(None)  # type: ignore[arg-type]
        assert sup.which_children() == []


async def test_a_dynamic_supervisor_has_no_significant_children():
    """B5: as in Elixir, for a spec and for a template."""
    bad = child("b", idle, significant=True, restart="transient")
    with pytest.raises(InvalidChildSpec, match="'b': True"):
        async with open_dynamic_supervisor(bad):
            raise AssertionError("entered")  # pragma: no cover
    async with open_dynamic_supervisor() as sup:
        with pytest.raises(InvalidChildSpec, match="'b': True"):
            await sup.start_child(bad)
        with pytest.raises(InvalidChildSpec, match="idle"):
            await sup.start_child(idle)
        with pytest.raises(InvalidChildSpec, match="needs a child spec"):
            await sup.start_child()
        assert sup.which_children() == []


async def test_ids_need_not_be_unique_in_a_dynamic_supervisor():
    """B4: they are named by ref there."""
    async with open_dynamic_supervisor() as sup:
        one = await sup.start_child(child("same", idle))
        two = await sup.start_child(child("same", idle))
        assert one is not two
        assert [info.ref for info in sup.which_children()] == [one, two]


async def test_a_block_is_entered_once():
    """A restart needs a new block, so a partial makes one each time."""
    block = open_supervisor([child("a", idle)])
    async with block:
        pass
    with pytest.raises(SupervisorError, match="only once"):
        async with block:
            pass
    make = partial(open_supervisor, [child("a", idle)])
    async with make() as one, make() as two:
        assert one.count_children().active == two.count_children().active == 1


def test_help_lists_what_the_module_of_the_tree_offers():
    """Its names come from private modules, which help() leaves out otherwise."""
    public = {
        name
        for name, value in vars(supervisor.tree).items()
        if not name.startswith("_") and isinstance(value, type | FunctionType)
    }
    assert set(supervisor.tree.__all__) == public
    assert "open_dynamic_supervisor" in pydoc.plain(pydoc.render_doc(supervisor.tree))


class AsyncCall:
    async def __call__(self, ctx):
        return 1

    async def method(self, ctx):
        return 1

    def plain(self, ctx):
        return 1


class SyncCall:
    def __call__(self, ctx):
        return 1


def sync(ctx):
    return 1


async def returns_one(ctx, *args):
    return 1


async def generates(ctx):
    yield 1


@functools.wraps(returns_one)
def wraps_async(*args):
    return returns_one(*args)


def says_so(ctx) -> Awaitable[int]:
    return returns_one(ctx)


@types.coroutine
def old_style(ctx):
    yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105
    return 1


def _name(fn):
    return getattr(fn, "__name__", type(fn).__name__)


SYNC = [
    sync,
    lambda ctx: 1,
    partial(sync),
    partial(partial(sync)),
    SyncCall(),
    AsyncCall,
    AsyncCall().plain,
    print,
    time.sleep,
    generates,
    functools.lru_cache(sync),
    int,
]


@pytest.mark.parametrize("make", [child, ChildSpec])
@pytest.mark.parametrize("fn", SYNC, ids=_name)
def test_a_function_that_is_not_async_is_refused_where_it_is_made(make, fn):
    """Naming it, and what is wanted."""
    with pytest.raises(InvalidChildSpec) as caught:
        make("a", fn)
    assert "child 'a'" in str(caught.value)
    assert repr(fn) in str(caught.value)
    assert "must be an async function" in str(caught.value)


@pytest.mark.parametrize(
    "fn",
    [
        returns_one,
        partial(returns_one),
        partial(partial(returns_one, object())),
        AsyncCall(),
        partial(AsyncCall()),
        AsyncCall().method,
        wraps_async,
        says_so,
        old_style,
        enable_ki_protection(returns_one),
    ],
    ids=_name,
)
async def test_whatever_shows_that_it_is_async_is_a_child(fn):
    """Partials, objects, methods, wrappers, and functions that say so; also as
    a supervisor of its own making."""
    if isinstance(fn, partial) and fn.args:
        fn = partial(returns_one)
    for kind in ("worker", "supervisor"):
        async with open_supervisor() as sup:
            ref = await sup.start_child(child("a", fn, restart="transient", kind=kind))
            assert await ref.wait_stopped() == Completed(1)


async def test_whatever_makes_a_block_is_a_supervisor():
    """The classes, partials of them, functions, lambdas, generators."""

    @asynccontextmanager
    async def own(*args):
        async with open_supervisor() as sup:
            yield sup

    for make in (
        open_supervisor,
        open_dynamic_supervisor,
        partial(open_supervisor, strategy="one_for_all"),
        lambda: open_supervisor(),
        own,
        partial(own, 1),
    ):
        async with open_supervisor([child("s", make, kind="supervisor")]) as sup:
            (info,) = sup.which_children()
            assert info.ref.started_value.which_children() == []
