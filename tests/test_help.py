"""help() shows what a public module offers, and nothing else of it."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import pkgutil
import pydoc
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from inspect import formatannotation
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import attrs
import pytest

import actors
import supervisor
import supervisor.runtime as supervisor_runtime
from actors import Completed, TaskStatus
from actors.env import Clock, Files, Ids, Processes, real_env
from actors.shell import Shell
from actors.testing import fake_env
from bench.house import modules

NAMES = Path(__file__).with_name("public_names.txt")
MODULES = sorted({line.split()[0] for line in NAMES.read_text().splitlines()})


def offered(source: str) -> tuple[set[str], set[str]]:
    """Return what a module imports from the house, and what it defines."""
    imported: list[str] = []
    defined: list[str] = []
    body = ast.parse(source).body
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            # What it loads late it imports here, for type checkers.
            body += node.body
        elif isinstance(node, ast.ImportFrom) and node.level:
            imported += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined += [target.id for target in targets if isinstance(target, ast.Name)]
    return set(imported), set(defined)


def wrongly_listed(source: str, listed: list[str]) -> list[str]:
    """Return what is listed and private or not there, and what is imported for nothing
    but to be listed and is not."""
    imported, defined = offered(source)
    used = {it.id for it in ast.walk(ast.parse(source)) if isinstance(it, ast.Name)}
    wrong = {name for name in listed if name.startswith("_")}
    return sorted(
        wrong | (set(listed) - imported - defined) | (imported - used - set(listed))
    )


@pytest.mark.parametrize("name", MODULES)
def test_help_lists_what_a_module_offers_and_nothing_private(name: str) -> None:
    """Names of private modules are left out of it otherwise. What a module uses or
    defines and does not list is for the house."""
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert wrongly_listed(inspect.getsource(module), listed) == []
    shown = pydoc.plain(pydoc.render_doc(module))
    assert [public for public in listed if public not in shown] == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from ._ref import Ref, Exit", ["Exit"]),
        ("from ._ref import Ref\n_x = 1", ["_x"]),
        ("import trio", ["Ref"]),
        ("from elsewhere import Ref", ["Ref"]),
    ],
)
def test_a_planted_list_is_caught(source: str, wrong: list[str]) -> None:
    listed = ["Ref", "_x"] if "_x" in source else ["Ref"]
    assert wrongly_listed(source, listed) == wrong


def public_modules() -> list[ModuleType]:
    found = ["actors"]
    for package in (actors, supervisor):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            parts = module.name.split(".")
            if not any(part.startswith("_") for part in parts) and "cli" not in parts:
                found.append(module.name)
    return [importlib.import_module(name) for name in found]


def test_every_public_name_says_that_it_is_from_a_public_module() -> None:
    """So tracebacks name what a program can import; and it is really there."""
    wrong: list[str] = []
    seen = 0
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            offered = getattr(module, name)
            if not isinstance(offered, type | FunctionType):
                continue
            seen += 1
            home = offered.__module__
            is_private = any(part.startswith("_") for part in home.split("."))
            if (
                is_private
                or getattr(importlib.import_module(home), name) is not offered
            ):
                wrong.append(f"{module.__name__}.{name}: {home}")
    assert wrong == []
    assert seen > 190
    error = supervisor_runtime.UnknownTask("x", ())
    (line,) = traceback.format_exception_only(error)
    assert line.startswith("supervisor.runtime.UnknownTask: ")
    assert pickle.loads(pickle.dumps(Shell("ls"))) == Shell("ls")


SAMPLES: Mapping[str, object] = {
    "int": 3,
    "float": 2.5,
    "bool": True,
    "Path": Path("a/b"),
    "Exception": LookupError("gone"),
    "Exit[object]": Completed(None),
    "TaskSnapshot": SimpleNamespace(id="s1", status=TaskStatus.FAILED),
    "tuple[tuple[str, str], ...]": (("a", "b"),),
    "tuple[tuple[int | None, str], ...]": ((None, "no head"),),
    "tuple[Problem, ...]": (),
    "datetime | None": datetime(2026, 5, 1, tzinfo=UTC),
}
"""One of each type that an exception may hold; of any other a text will do."""


def public_exceptions() -> set[type[BaseException]]:
    found = [
        getattr(module, name)
        for module in public_modules()
        for name in getattr(module, "__all__", ())
    ]
    return {
        it for it in found if isinstance(it, type) and issubclass(it, BaseException)
    }


def test_an_exception_can_be_copied_and_sent_to_another_process() -> None:
    assert len(public_exceptions()) > 40
    for kind in public_exceptions():
        has_fields: bool = attrs.has(kind)
        fields = attrs.fields(cast("Any", kind)) if has_fields else ()
        types = [formatannotation(it.type).strip("'") for it in fields if it.init]
        given = [SAMPLES.get(re.sub(r"^(\w+\.)+", "", it), "text") for it in types]
        error = kind(*given or ["text"])
        error.add_note("and more")
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is kind and other is not error
            assert str(other) == str(error) and repr(other) == repr(error)
            assert len(other.args) == len(error.args)
            for name in {field.name for field in fields} | {"__notes__"}:
                assert repr(getattr(other, name)) == repr(getattr(error, name))


def test_help_shows_how_each_class_is_called() -> None:
    """Not what attrs and `__init__` make of it: no marker for a missing default, no
    type variable of a converter, and not that a call of it returns None."""
    wrong: list[str] = []
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            offered = getattr(module, name)
            if isinstance(offered, type) and "__init__" in offered.__dict__:
                shown = str(inspect.signature(offered))
                if re.search(r"NOTHING|-> None|\[T\]|Factory", shown):
                    wrong.append(f"{name}{shown}")
    assert wrong == []
    assert "limits: 'Limits | None' = None" in pydoc.plain(
        pydoc.render_doc(supervisor_runtime.open_runtime)
    )


def test_the_help_of_actors_names_its_public_modules() -> None:
    import actors

    text = actors.__doc__ or ""
    assert [
        name
        for name in MODULES
        if re.fullmatch(r"actors\.\w+", name) and f"`{name}`" not in text
    ] == []


def test_the_help_of_fake_env_says_what_a_command_may_be() -> None:
    shown = pydoc.plain(pydoc.render_doc(fake_env))
    assert [it for it in ("script", "str", "int", "OSError") if it not in shown] == []


def test_what_stands_behind_the_seam_has_the_help_of_its_protocol() -> None:
    """It is written once: what a protocol says holds of whatever implements it."""
    for env in (real_env(), fake_env()):
        for protocol, behind in (
            (Clock, env.clock),
            (Ids, env.ids),
            (Processes, env.processes),
            (Files, env.files),
        ):
            assert protocol in type(behind).__mro__
            names = [name for name in vars(protocol) if not name.startswith("_")]
            assert names and all(inspect.getdoc(getattr(behind, n)) for n in names)
            help_of = pydoc.plain(pydoc.render_doc(type(behind)))
            assert [name for name in names if name not in help_of] == []


def test_every_field_of_what_a_caller_reads_is_documented() -> None:
    """As a docstring below it, which an editor shows."""
    bare: list[str] = []
    left = {"Limits", "TaskError", "TaskSnapshot", "Usage"}
    for path in modules().values():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in left:
                left.remove(node.name)
                for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                    if isinstance(field, ast.AnnAssign) and not isinstance(
                        below, ast.Expr
                    ):
                        bare.append(f"{node.name}.{ast.unparse(field.target)}")
    assert (bare, left) == ([], set())


def test_help_shows_what_each_class_of_agents_holds() -> None:
    """A docstring below a field is not shown by it."""
    from actors.agent import Agent
    from supervisor.agents import AgentPolicy
    from supervisor.hooks import Hook, Hooks
    from supervisor.permissions import Permissions
    from supervisor.runtime import (
        Approval,
        Approvals,
        Limits,
        Runtime,
        StopResult,
        open_runtime,
    )

    bare: list[str] = []
    for kind in (Agent, AgentPolicy, Approval, Hook, Hooks, Limits, Permissions):
        shown = inspect.getdoc(kind) or ""
        fields = [field.alias or field.name for field in attrs.fields(kind)]
        bare += [f"{kind.__name__}.{it}" for it in fields if it not in shown]
    for thing, words in (
        (Approvals, ["ApprovalRequested"]),
        (StopResult, ["snapshot", "stopped", "survivors"]),
        (Runtime, ["events", "subscribe()", "notifications", "root", "directory"]),
        (open_runtime, ["AgentPolicy", "Bash", "Another runtime"]),
    ):
        shown = inspect.getdoc(thing) or ""
        bare += [f"{thing.__name__}: {word}" for word in words if word not in shown]
    assert bare == []


def test_the_help_of_permissions_lists_every_mode() -> None:
    from supervisor import permissions

    shown = permissions.__doc__ or ""
    assert [mode for mode in permissions.MODES if f"``{mode}``" not in shown] == []
