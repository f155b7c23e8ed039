"""The environment variables, read once and checked."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.runtime import Limits
from supervisor.settings import Settings, read_limits, read_settings

DISABLE_BACKGROUND_TASKS = "TRIO_SUPERVISOR_DISABLE_BACKGROUND_TASKS"
MAX_OUTPUT_LENGTH = "TRIO_SUPERVISOR_MAX_OUTPUT_LENGTH"
BASH_DEFAULT_TIMEOUT_MS = "TRIO_SUPERVISOR_BASH_DEFAULT_TIMEOUT_MS"
BASH_MAX_TIMEOUT_MS = "TRIO_SUPERVISOR_BASH_MAX_TIMEOUT_MS"
MAX_TASKS = "TRIO_SUPERVISOR_MAX_TASKS"
MAX_SHELLS = "TRIO_SUPERVISOR_MAX_SHELLS"
MAX_AGENTS = "TRIO_SUPERVISOR_MAX_AGENTS"
MODEL_LIMITS = "TRIO_SUPERVISOR_MODEL_LIMITS"
PROVIDER_LIMITS = "TRIO_SUPERVISOR_PROVIDER_LIMITS"
LIMIT_VARIABLES = (MAX_TASKS, MAX_SHELLS, MAX_AGENTS, MODEL_LIMITS, PROVIDER_LIMITS)

NUMBERS = (MAX_OUTPUT_LENGTH, BASH_DEFAULT_TIMEOUT_MS, BASH_MAX_TIMEOUT_MS)
VARIABLES = (DISABLE_BACKGROUND_TASKS, *NUMBERS)


def test_an_environment_without_the_variables_gives_the_defaults() -> None:
    """CO4."""
    assert read_settings({"PATH": "/bin", "HOME": "/root"}) == Settings()
    assert Settings() == Settings(
        background_tasks=True,
        max_output_length=30_000,
        bash_default_timeout=120_000,
        bash_max_timeout=600_000,
    )


def test_each_variable_sets_its_field() -> None:
    """CO4; the seeds' switch for background tasks and limit of the output."""
    settings = read_settings(
        {
            DISABLE_BACKGROUND_TASKS: "1",
            MAX_OUTPUT_LENGTH: "5000",
            BASH_DEFAULT_TIMEOUT_MS: "1500",
            BASH_MAX_TIMEOUT_MS: "2500",
        }
    )
    assert settings == Settings(
        background_tasks=False,
        max_output_length=5000,
        bash_default_timeout=1500,
        bash_max_timeout=2500,
    )


@pytest.mark.parametrize("variable", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [
        *("0", "-1", "+5000", "0x10", "1e4", "1.0", "5_000", "05000", " 5000", "5000 "),
        *("5000\n", "٥٠٠٠", "five", "NaN", "true", "9" * 20, "9" * 100_000),
    ],
)
def test_a_number_that_is_not_plain_is_refused_by_name_and_value(
    variable: str, value: str
) -> None:
    """CO4."""
    with pytest.raises(ValueError, match=variable) as caught:
        read_settings({variable: value})
    assert repr(value[:40])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (MAX_OUTPUT_LENGTH, "999"),
        (MAX_OUTPUT_LENGTH, "10000001"),
        (BASH_MAX_TIMEOUT_MS, str(2**31)),
    ],
)
def test_a_number_out_of_its_range_is_refused(variable: str, value: str) -> None:
    """CO4."""
    with pytest.raises(ValueError, match=rf"{variable} .* from \d+ to \d+.*{value}"):
        read_settings({variable: value})


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes", "On"])
def test_the_switch_turns_background_tasks_off(value: str) -> None:
    """CO4."""
    assert not read_settings({DISABLE_BACKGROUND_TASKS: value}).background_tasks


@pytest.mark.parametrize("value", ["0", "false", "False", "no", "off", ""])
def test_the_switch_leaves_background_tasks_on(value: str) -> None:
    """CO4."""
    assert read_settings({DISABLE_BACKGROUND_TASKS: value}).background_tasks


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    """CO4: a guess would turn off, or leave on, what somebody meant otherwise."""
    with pytest.raises(ValueError, match=rf"{DISABLE_BACKGROUND_TASKS}.*'maybe'"):
        read_settings({DISABLE_BACKGROUND_TASKS: "maybe"})


@pytest.mark.parametrize("variable", NUMBERS)
def test_an_empty_variable_is_as_good_as_none(variable: str) -> None:
    """CO4: `NAME= command` is how a shell unsets one."""
    assert read_settings({variable: ""}) == Settings()


def test_the_default_timeout_follows_a_lower_maximum() -> None:
    """CO4."""
    settings = read_settings({BASH_MAX_TIMEOUT_MS: "1000"})
    assert (settings.bash_default_timeout, settings.bash_max_timeout) == (1000, 1000)


def test_a_default_timeout_above_the_maximum_is_refused() -> None:
    """CO4."""
    with pytest.raises(ValueError, match=rf"{BASH_DEFAULT_TIMEOUT_MS}.*2000.*3000"):
        read_settings({BASH_DEFAULT_TIMEOUT_MS: "3000", BASH_MAX_TIMEOUT_MS: "2000"})


@pytest.mark.parametrize(
    "misspelt",
    [
        "TRIO_SUPERVISOR_DISABLE_BACKGROUND_TASK",
        "TRIO_SUPERVISOR_BASH_MAX_TIMEOUT",
        "TRIO_SUPERVISOR_MAX_OUTPUT_LENGHT",
    ],
)
def test_a_misspelt_variable_is_refused(misspelt: str) -> None:
    """CO4: it would be passed over in silence."""
    with pytest.raises(ValueError, match=rf"{misspelt} is unknown; TRIO_SUPERVISOR_"):
        read_settings({misspelt: "1"})


@given(st.from_regex(r"[0-9A-F]{16}|[0-9a-f]{16}", fullmatch=True))
def test_the_variable_that_marks_processes_is_no_error(mark: str) -> None:
    """CO4: a runtime inside of a task of another one has it."""
    assert read_settings({f"TRIO_SUPERVISOR_{mark}": "s0000000a"}) == Settings()


def test_other_names_are_left_alone() -> None:
    """CO4."""
    assert read_settings({"TRIO_SUPERVISOR_DEMO": "/tmp"}) == Settings()


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text()))
def test_any_environment_is_read_or_refused_with_a_name(
    environ: dict[str, str],
) -> None:
    """CO4."""
    try:
        settings = read_settings(environ)
    except ValueError as error:
        words = str(error)
    else:
        words = ""
        assert settings.bash_default_timeout <= settings.bash_max_timeout
    assert re.match("$|TRIO_SUPERVISOR_[A-Z_]+ must be", words)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"background_tasks": 1}, TypeError, "background_tasks.*1"),
        ({"max_output_length": "5000"}, TypeError, "max_output_length.*'5000'"),
        ({"max_output_length": True}, TypeError, "max_output_length.*True"),
        ({"max_output_length": 10}, ValueError, "max_output_length.*10"),
        ({"bash_max_timeout": 0}, ValueError, "bash_max_timeout.*0"),
        ({"bash_default_timeout": 1.5}, TypeError, "bash_default_timeout.*1.5"),
        ({"bash_default_timeout": 700_000}, ValueError, "at most .*600000.*700000"),
    ],
)
def test_settings_made_by_hand_are_checked(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """The house: a bad argument is an error at construction."""
    with pytest.raises(error, match=words):
        Settings(**arguments)


# Limits


def test_each_variable_sets_its_limit() -> None:
    """CO4, CO8, CO9."""
    environ = {
        MAX_TASKS: "9",
        MAX_SHELLS: "5",
        MAX_AGENTS: "4",
        MODEL_LIMITS: "a/big=1, small=2,c=3",
        PROVIDER_LIMITS: "a=3",
    }
    assert read_limits(environ) == Limits(
        total=9,
        shells=5,
        agents=4,
        models={"a/big": 1, "small": 2, "c": 3},
        providers={"a": 3},
    )
    assert sorted(environ) == sorted(LIMIT_VARIABLES)


def test_what_is_not_set_is_as_the_host_has_it() -> None:
    """CO4: and what is empty is not set."""
    limits = Limits(total=3, agents=2, models={"a": 1}, backlog=7, disk=9)
    assert read_limits({}, limits) == limits
    assert read_limits(dict.fromkeys(LIMIT_VARIABLES, ""), limits) == limits
    assert read_limits({"PATH": "/bin"}) == Limits()
    changed = read_limits({MAX_AGENTS: "5", MODEL_LIMITS: "b=2"}, limits)
    assert changed == attrs.evolve(limits, agents=5, models={"b": 2})


@pytest.mark.parametrize("variable", [MAX_TASKS, MAX_SHELLS, MAX_AGENTS])
@pytest.mark.parametrize(
    "value",
    [
        *("0", "-1", "+5", "0x10", "1e2", "1.0", "5_0", "05", " 5", "5\n", "٥", "all"),
        *("1000001", "9" * 100_000),
    ],
)
def test_a_limit_that_is_no_plain_number_is_refused(variable: str, value: str) -> None:
    """CO4: by name and value, and not passed over."""
    with pytest.raises(ValueError, match=variable) as caught:
        read_limits({variable: value})
    assert repr(value[:40])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("variable", [MODEL_LIMITS, PROVIDER_LIMITS])
@pytest.mark.parametrize(
    "value",
    [
        *(
            "3",
            "a",
            "=3",
            " =3",
            "a=1,",
            ",",
            "a=1,a=2",
            "a=1;b=2",
            "a=1,,b=2",
            "a==2,=1",
            "a=b=1",
        ),
        *(
            "a=0",
            "a=-1",
            "a=0x10",
            "a=1e2",
            "a=1.0",
            "a=",
            "a=x",
            "a= 1",
            "a=" + "9" * 99,
        ),
    ],
)
def test_caps_of_models_that_are_no_plain_numbers_by_name_are_refused(
    variable: str, value: str
) -> None:
    """CO4, CO8: a cap that was meant and is not there lets everybody through."""
    with pytest.raises(ValueError, match=f"^{variable}.* must be "):
        read_limits({variable: value})


def test_a_misspelt_limit_is_refused_by_both() -> None:
    """CO4."""
    for read in (read_settings, read_limits):
        for misspelt in ("TRIO_SUPERVISOR_MAX_AGENT", "TRIO_SUPERVISOR_MODEL_LIMIT"):
            with pytest.raises(ValueError, match=f"{misspelt} is unknown; TRIO_"):
                read({misspelt: "1"})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(LIMIT_VARIABLES)), st.text()))
def test_any_limits_are_read_or_refused_with_a_name(environ: dict[str, str]) -> None:
    """CO4."""
    try:
        read_limits(environ)
    except ValueError as error:
        words = str(error)
    else:
        words = ""
    assert re.match("$|TRIO_SUPERVISOR_[A-Z_]+.* must be", words, re.DOTALL)
