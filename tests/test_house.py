"""The rules of the house that a reader of one file cannot see, by syntax tree.

Three of them: which way imports run (brief, section 3), that every effect on
the world goes through `actors.env.Env` (P11), and what modules and public names
are called (section 7). Each check is one function from source text to findings,
so the same function that passes the real source is shown here to catch a
planted violation of every class.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import LIMIT

ROOT = Path(__file__).parent.parent


def sources(*folders: str) -> dict[str, str]:
    """Map every Python file below ``folders`` to its text, by relative path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


RUNTIME = sources("actors", "supervisor")


def module_name(path: str) -> str:
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


# ---- What a source refers to, with the names it gave things undone ----------


class References:
    """Every import and every dotted name of one file, made absolute.

    ``import os as o; o.kill`` and ``from os import kill as k; k`` are both
    ``os.kill``; so are ``from .env import x`` and ``actors.env.x`` where
    ``path`` is in ``actors``. Scopes are ignored: a name that stands for a
    module anywhere in the file stands for it everywhere.
    """

    def __init__(self, path: str, source: str) -> None:
        self.tree = ast.parse(source, filename=path)
        self.package = module_name(path)
        if not path.endswith("__init__.py"):
            self.package = self.package.rpartition(".")[0]
        self.imports: list[tuple[int, str]] = []
        """The line and absolute name of everything imported."""
        self._meaning: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                self._learn_import(node)
            elif isinstance(node, ast.ImportFrom):
                self._learn_from(node)
        while self._learn_assignments():
            pass

    def _learn_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append((node.lineno, alias.name))
            if alias.asname:
                self._learn(alias.asname, alias.name)
            else:
                first = alias.name.partition(".")[0]
                self._learn(first, first)

    def _learn_from(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            parents = self.package.split(".")
            parents = parents[: len(parents) - node.level + 1]
            origin = ".".join([*parents, *([origin] if origin else [])])
        for alias in node.names:
            name = f"{origin}.{alias.name}"
            self.imports.append((node.lineno, name))
            self._learn(alias.asname or alias.name, name)

    def _learn(self, name: str, meaning: str) -> bool:
        known = self._meaning.setdefault(name, set())
        if meaning in known:
            return False
        known.add(meaning)
        return True

    def _learn_assignments(self) -> bool:
        """Learn from ``o = os``; return whether that was news."""
        news = False
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                targets, value = [node.target], node.value
            else:
                continue
            for target in targets:
                if isinstance(target, ast.Name):
                    for meaning in self.meanings(value):
                        # `x = x.y` must not go on for ever.
                        if meaning.count(".") < 8:
                            news |= self._learn(target.id, meaning)
        return news

    def meanings(self, node: ast.expr) -> set[str]:
        """Return what a name or an attribute of a name may stand for."""
        if isinstance(node, ast.Name):
            return self._meaning.get(node.id, set())
        if isinstance(node, ast.Attribute):
            return {f"{left}.{node.attr}" for left in self.meanings(node.value)}
        if isinstance(node, ast.NamedExpr):
            return self.meanings(node.value)
        if isinstance(node, ast.Call) and len(node.args) >= 2:
            function, (whose, name) = node.func, node.args[:2]
            if isinstance(function, ast.Name) and function.id == "getattr":
                attr = name.value if isinstance(name, ast.Constant) else "*"
                return {f"{left}.{attr!s}" for left in self.meanings(whose)}
        return set()

    def uses(self) -> Iterator[tuple[int, str]]:
        """Yield the line and absolute name of every import and every use.

        A builtin is ``builtins.<name>``; an attribute of something unknown is
        ``?.<name>``.
        """
        yield from self.imports
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.expr):
                continue
            meanings = self.meanings(node)
            for meaning in meanings:
                yield node.lineno, meaning
            if meanings:
                continue
            if isinstance(node, ast.Attribute):
                yield node.lineno, f"?.{node.attr}"
            elif (
                isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Load)
                and hasattr(builtins, node.id)
            ):
                yield node.lineno, f"builtins.{node.id}"


# ---- P11: effects go through Env --------------------------------------------

EXEMPT = {
    "actors/_system/files.py": "the real files, which `actors.env.real_env` hands out",
    "actors/_system/share.py": "the locks of their directory",
    "actors/_system/opening.py": "how both are opened",
    "actors/_system/guardian/": "the helper process: it has no runtime and no Env",
    "actors/_system/posix.py": "the real clock, ids and processes, likewise",
    "actors/_system/process.py": "a real process tree, which `actors._system.posix` starts",
    "actors/_system/process_input.py": "its standard input",
    "actors/_system/process_output.py": "its output",
    "actors/_system/orphans.py": "what is left of one whose program has died",
    "supervisor/cli/": "the command line: a program, not the runtime",
    "supervisor/simulation/_steering/loop.py": "takes the place of trio's own scheduler",
    "supervisor/simulation/_steering/policies.py": "chance that a seed decides",
    "supervisor/simulation/_steering/sim.py": "likewise",
    "supervisor/simulation/_steering/sites.py": "in which folder a project begins",
    "supervisor/simulation/_steering/probes.py": "likewise",
    "supervisor/simulation/_search/sweeps.py": "likewise",
    "supervisor/simulation/crash.py": "likewise",
    "supervisor/simulation/_steering/culprits.py": "names what it watches for",
    "supervisor/simulation/_search/swarm.py": "likewise",
    "supervisor/simulation/_search/jobs.py": "processes that simulate: outside of any run",
    "supervisor/simulation/_items.py": "whether pytest runs in CI",
    "supervisor/simulation/_plugin.py": "what pytest does with tapes, and how long",
    "supervisor/simulation/campaign.py": "a program's log, in real time, likewise",
    "supervisor/simulation/doctor.py": "looks at what is installed, also in a new process",
    "supervisor/simulation/_search/again.py": "the path of a program, as a user writes it",
    "supervisor/simulation/_search/corpus.py": "tapes, which are files of the user's",
    "supervisor/simulation/log/_record.py": "a log, which is a file of its user's",
    "supervisor/simulation/trace/": "measures real steps, and writes for its user",
    "supervisor/simulation/studies.py": "loads matplotlib, which few have",
    "supervisor/simulation/network.py": "a network in memory, which trio's own loop serves",
    "supervisor/simulation/_sockets.py": "its sockets, and a number for who polls them",
    "supervisor/hooks/_text_file.py": "files of the host's, read before there is a runtime",
    "supervisor/definitions/__init__.py": "the directory of such files",
    "supervisor/tools/_host.py": "which processes are the host's own, never to be killed",
}

MODULES = {
    "time": "clock",
    "sched": "clock",
    "random": "chance",
    "secrets": "chance",
    "uuid": "chance",
    "subprocess": "process",
    "multiprocessing": "process",
    "pty": "process",
    "ctypes": "process",
    "resource": "process",
    "runpy": "process",
    "tempfile": "file",
    "shutil": "file",
    "glob": "file",
    "fileinput": "file",
    "fcntl": "file",
    "mmap": "file",
    "select": "file",
    "selectors": "file",
    "termios": "file",
    "tty": "file",
    "sqlite3": "file",
    "tarfile": "file",
    "zipfile": "file",
    "importlib.resources": "file",
    "logging.handlers": "file",
    "socket": "network",
    "socketserver": "network",
    "ssl": "network",
    "http": "network",
    "urllib.request": "network",
    "asyncio": "another loop",
    "concurrent.futures.thread": "thread",
    "concurrent.futures.process": "process",
}
"""Modules of which nothing may be used."""

HARMLESS = {
    # Pure functions and constants. The environment is an input the process was
    # given, the same at each look, as are its arguments.
    "os": r"""PathLike|fspath|fsencode|fsdecode|strerror|error|environ
        |sep|altsep|pathsep|linesep|devnull|curdir|pardir|name
        |waitstatus_to_exitcode|W[A-Z]{4,}
        |path(\.(join|basename|dirname|split|splitext|normpath|normcase
        |isabs|commonpath|commonprefix|sep))?""",
    # Which thread is asking: an identity, not an effect. `tell` compares it to
    # refuse a foreign thread, and nothing that is recorded depends on it.
    "threading": "get_ident",
    "_thread": "get_ident",
    # Names of signals; to send, to catch or to wait for one is an effect.
    "signal": r"Signals|Handlers|strsignal|SIG_?[A-Z0-9]+",
    # trio's own clock can be replaced, so it and `trio.sleep` are no effects.
    # `from_thread` is how a foreign thread comes in, not how we get one.
    "trio": r"""(?!(run_process|Process|open_file|wrap_file|Path|to_thread
        |open_signal_receiver|socket|SocketStream|SocketListener|SSLStream
        |SSLListener|DTLS\w*|open_tcp_\w+|open_unix_socket|open_ssl_\w+
        |serve_\w+)\b)
        (?!lowlevel\.(open_process|start_thread_soon|FdStream|wait_readable
        |wait_writable|notify_closing|WaitForSingleObject|wait_overlapped
        |readinto_overlapped|write_overlapped|register_with_iocp
        |monitor_completion_key|monitor_kevent|wait_kevent|current_kqueue
        |current_iocp|\*)\b)
        [^*]+""",
}
"""Modules of which only this may be used."""

NAMES = {
    "builtins.open": "file",
    "builtins.input": "file",
    "builtins.__import__": "import by name",
    "builtins.eval": "import by name",
    "builtins.exec": "import by name",
    "importlib.import_module": "import by name",
    "io.open": "file",
    "io.open_code": "file",
    "io.FileIO": "file",
    "codecs.open": "file",
    "contextlib.chdir": "file",
    "logging.FileHandler": "file",
    "logging.basicConfig": "file",
    "pathlib.Path.cwd": "file",
    "pathlib.Path.home": "file",
    "datetime.datetime.now": "clock",
    "datetime.datetime.utcnow": "clock",
    "datetime.datetime.today": "clock",
    "datetime.date.today": "clock",
    "concurrent.futures.ThreadPoolExecutor": "thread",
    "concurrent.futures.ProcessPoolExecutor": "process",
}
"""Single names that may not be used."""

PATH_METHODS = frozenset(
    """
    absolute chmod exists expanduser hardlink_to is_block_device is_char_device
    is_dir is_fifo is_file is_mount is_socket is_symlink iterdir lchmod lstat
    mkdir open read_bytes read_text readlink rename resolve rglob rmdir samefile
    stat symlink_to touch unlink write_bytes write_text
    """.split()
)
"""What `pathlib.Path` does to the disk, on whatever object: a syntax tree does
not know types."""


def within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def effect(name: str) -> str | None:
    """Return the kind of effect that the absolute ``name`` stands for, if any."""
    for outer, kind in (MODULES | NAMES).items():
        if within(name, outer):
            return kind
    for module, harmless in HARMLESS.items():
        if name.startswith(f"{module}."):
            inner = name.removeprefix(f"{module}.")
            if not re.fullmatch(harmless, inner, re.VERBOSE):
                return f"not among the harmless of {module}"
    left, _, last = name.rpartition(".")
    if left in ("?", "pathlib.Path") and last in PATH_METHODS:
        return "file"
    return None


def effects(path: str, source: str) -> list[str]:
    """Return what in ``source`` goes past Env."""
    return [
        f"{path}:{line}: {name} ({kind})"
        for line, name in References(path, source).uses()
        if (kind := effect(name))
    ]


def is_exempt(path: str) -> bool:
    return any(path == entry or path.startswith(entry) for entry in EXEMPT)


@pytest.mark.parametrize("path", [path for path in RUNTIME if not is_exempt(path)])
def test_effects_go_through_env(path: str) -> None:
    """P11: the runtime touches clock, chance, processes and files by Env alone."""
    assert effects(path, RUNTIME[path]) == []


@pytest.mark.parametrize("entry", EXEMPT)
def test_an_exemption_names_a_file_that_exists_and_needs_it(entry: str) -> None:
    """P11: the list is no longer than it has to be."""
    covered = {path: text for path, text in RUNTIME.items() if path.startswith(entry)}
    assert covered, f"{entry} does not exist"
    assert any(effects(path, text) for path, text in covered.items())


def test_env_alone_reaches_the_modules_that_are_exempt() -> None:
    """P11: an effect must not come in by importing a module that may have it."""
    private = {module_name(entry) for entry in EXEMPT if entry.startswith("actors/_")}
    reached = [
        f"{path}:{line}: {name}"
        for path, text in RUNTIME.items()
        if path != "actors/env.py" and not is_exempt(path)
        for line, name in References(path, text).imports
        if any(within(name, module) for module in private)
    ]
    assert reached == []


@pytest.mark.parametrize(
    ("planted", "caught"),
    [
        # the clock
        ("import time", "time"),
        ("import time as t\nnow = t.monotonic()", "time.monotonic"),
        ("from time import sleep", "time.sleep"),
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
        (
            "from datetime import datetime as dt\ndt.utcnow()",
            "datetime.datetime.utcnow",
        ),
        ("from datetime import datetime\nf(datetime.now)", "datetime.datetime.now"),
        ("from datetime import date\ndate.today()", "datetime.date.today"),
        # chance
        ("import random", "random"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import secrets", "secrets"),
        ("import os\nos.urandom(4)", "os.urandom"),
        ("import os\nos.getrandom(4)", "os.getrandom"),
        # processes and signals
        ("import subprocess", "subprocess"),
        ("def f():\n    from subprocess import Popen", "subprocess.Popen"),
        ("import multiprocessing.pool", "multiprocessing.pool"),
        ("import os as o\no.kill(1, 9)", "os.kill"),
        ("from os import killpg as k\nk(1, 9)", "os.killpg"),
        ("import os\nos.fork()", "os.fork"),
        ("import os\nos.spawnvp(0, 'x', [])", "os.spawnvp"),
        ("import os\nos.execve('x', [], {})", "os.execve"),
        ("import os\nos.posix_spawn('x', [], {})", "os.posix_spawn"),
        ("import os\nos.waitpid(1, 0)", "os.waitpid"),
        ("import os\nos.waitid(0, 1, 4)", "os.waitid"),
        ("import os\nos.getpid()", "os.getpid"),
        ("import os\nos.system('x')", "os.system"),
        ("import os\nos.pidfd_open(1)", "os.pidfd_open"),
        ("import signal\nsignal.raise_signal(2)", "signal.raise_signal"),
        ("import signal as s\ns.signal(2, f)", "signal.signal"),
        ("from signal import pthread_kill", "signal.pthread_kill"),
        ("import trio\nawait trio.run_process('x')", "trio.run_process"),
        (
            "from trio import lowlevel as l\nl.open_process",
            "trio.lowlevel.open_process",
        ),
        ("from trio.lowlevel import open_process", "trio.lowlevel.open_process"),
        ("import trio\ntrio.open_signal_receiver(2)", "trio.open_signal_receiver"),
        ("import trio\np: trio.Process", "trio.Process"),
        # files
        ("open('x')", "builtins.open"),
        ("f = open", "builtins.open"),
        ("import builtins\nbuiltins.open('x')", "builtins.open"),
        ("import io\nio.open('x')", "io.open"),
        ("import os\nos.open('x', 0)", "os.open"),
        ("import os\nos.read(0, 1)", "os.read"),
        ("import os\nos.write(0, b'')", "os.write"),
        ("from os import unlink, rename", "os.unlink"),
        ("from os import unlink, rename", "os.rename"),
        ("import os\nos.mkdir('x')", "os.mkdir"),
        ("import os\nos.path.exists('x')", "os.path.exists"),
        ("import os.path as p\np.getsize('x')", "os.path.getsize"),
        ("from os.path import isfile", "os.path.isfile"),
        ("from pathlib import Path\nPath('x').read_text()", "?.read_text"),
        ("def f(path):\n    path.parent.mkdir()", "?.mkdir"),
        ("def f(path):\n    g(path.write_text)", "?.write_text"),
        ("def f(path):\n    with path.open() as g: ...", "?.open"),
        ("from pathlib import Path as P\nP.unlink(x)", "pathlib.Path.unlink"),
        ("import pathlib\npathlib.Path.cwd()", "pathlib.Path.cwd"),
        ("import tempfile", "tempfile"),
        ("import shutil", "shutil"),
        ("import trio\nawait trio.open_file('x')", "trio.open_file"),
        ("from trio import Path", "trio.Path"),
        # threads and the network
        (
            "from trio import to_thread as t\nt.run_sync(f)",
            "trio.to_thread.run_sync",
        ),
        ("import trio.to_thread", "trio.to_thread"),
        ("import threading\nthreading.Thread(target=f)", "threading.Thread"),
        ("import _thread\n_thread.start_new_thread(f, ())", "_thread.start_new_thread"),
        (
            "from concurrent.futures import ThreadPoolExecutor",
            "concurrent.futures.ThreadPoolExecutor",
        ),
        (
            "import trio\ntrio.lowlevel.start_thread_soon",
            "trio.lowlevel.start_thread_soon",
        ),
        ("import socket", "socket"),
        ("import trio\ntrio.open_tcp_stream('h', 1)", "trio.open_tcp_stream"),
        # ways round the names
        ("import os\no = os\no.kill(1, 9)", "os.kill"),
        ("import os\nf(o := os)\no.kill(1, 9)", "os.kill"),
        ("import os\n(o := os).kill(1, 9)", "os.kill"),
        ("import os\ngetattr(os, 'kill')(1, 9)", "os.kill"),
        ("import os\ngetattr(os, x)(1, 9)", "os.*"),
        ("import trio\ngetattr(trio, x)", "trio.*"),
        ("from os import *", "os.*"),
        ("from trio import *", "trio.*"),
        ("__import__('os')", "builtins.__import__"),
        ("import importlib\nimportlib.import_module(x)", "importlib.import_module"),
    ],
)
def test_a_planted_effect_is_caught(planted: str, caught: str) -> None:
    """P11: imports and uses, under every alias."""
    found = effects("actors/planted.py", planted)
    assert any(f": {caught} (" in finding for finding in found), found


@pytest.mark.parametrize(
    "innocent",
    [
        "import trio\nawait trio.sleep(1)\ntrio.current_time()",
        "import trio\ntrio.lowlevel.checkpoint\ntrio.from_thread.run_sync",
        "from trio.lowlevel import ParkingLot, spawn_system_task",
        "import os\nos.path.join('a', 'b')\nos.fspath(p)\nos.environ['PATH']",
        "import os\nos.waitstatus_to_exitcode(0)\nos.WIFSIGNALED(0)",
        "import signal\nsignal.Signals(9).name\nsignal.SIGTERM",
        "import threading\nthreading.get_ident()",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "from pathlib import Path\nPath('a') / 'b'",
        "def f(env):\n    env.clock.now()\n    env.files.remove(p)",
        "def f(text):\n    text.replace('a', 'b')\n    match.group(1)",
        "def f(time, random):\n    return time + random",
        "class A:\n    def open(self): ...",
    ],
)
def test_what_is_no_effect_is_left_alone(innocent: str) -> None:
    """P11: a clock that trio can replace, names, pure functions, Env itself."""
    assert effects("actors/innocent.py", innocent) == []


# ---- The arrow ---------------------------------------------------------------

# outcome comes with trio: its `reschedule` takes one.
BASE = {"trio", "outcome", "attrs", "attr", "cattrs", "orjson"}
TERMINAL = {"click", "rich"}
EXTRAS = {
    "actors/models/_api.py": {"httpx2"},
    "actors/models/anthropic.py": {"anthropic"},
    "actors/models/openai.py": {"openai"},
    "actors/models/_script_file.py": {"yaml"},
    "supervisor/schedule.py": {"cronsim"},
    "supervisor/simulation/hypothesis.py": {"hypothesis"},
    "supervisor/simulation/_items.py": {"pytest"},
    "supervisor/definitions/_frontmatter.py": {"yaml"},
}
"""What only one file imports, inside the function that needs it."""


def is_command(module: str) -> bool:
    return module.split(".")[:2] == ["supervisor", "cli"]


def is_rim(module: str) -> bool:
    return is_command(module) or within(module, "supervisor.simulation")


def is_private(name: str) -> bool:
    return any(
        part.startswith("_") and not part.endswith("__") for part in name.split(".")
    )


def is_elsewhere(name: str, module: str) -> bool:
    """Tell whether a private ``name`` is none of the house that ``module`` is in. The
    command line is a house of its own: it is a host like any other."""
    if is_command(module) and within(name, "supervisor"):
        return not is_command(name)
    return within(name, "actors")


def wrong_imports(path: str, source: str) -> list[str]:
    """Return what ``source`` refers to against the arrow
    rim -> supervisor -> actors -> the base dependencies."""
    module = module_name(path)
    inside = module.partition(".")[0]
    references = References(path, source)
    findings: list[str] = []
    for line, name in references.imports:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in BASE or top == inside:
            wrong = is_rim(name) and not is_rim(module)
        elif top in TERMINAL:
            wrong = not is_command(module)
        elif top in EXTRAS.get(path, ()):
            wrong = False
        else:
            wrong = (inside, top) != ("supervisor", "actors")
        if wrong:
            findings.append(f"{path}:{line}: {name}")
    if inside != "actors":
        findings += [
            f"{path}:{line}: {name} (private)"
            for line, name in references.uses()
            if is_private(name) and is_elsewhere(name, module)
        ]
    return findings


@pytest.mark.parametrize("path", RUNTIME)
def test_imports_run_one_way(path: str) -> None:
    """Brief, section 3: and supervisor uses only public names of actors."""
    assert wrong_imports(path, RUNTIME[path]) == []


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        ("actors/x.py", "import supervisor"),
        ("actors/x.py", "from supervisor.tree import child"),
        ("actors/x.py", "def f():\n    import supervisor.runtime"),
        ("actors/x.py", "import click"),
        ("actors/x.py", "import numpy"),
        ("actors/x.py", "import sniffio"),
        ("supervisor/x.py", "from rich.live import Live"),
        ("supervisor/x.py", "import requests"),
        ("supervisor/x.py", "from .cli import main"),
        ("supervisor/x.py", "from . import simulation"),
        ("supervisor/x.py", "from actors._kernel.ref import ActorRef"),
        ("supervisor/x.py", "from actors import _ref"),
        ("supervisor/x.py", "import actors\nactors._ref.ActorRef"),
        ("supervisor/x.py", "from actors import lowlevel as l\nl._run"),
        ("supervisor/cli/x.py", "from actors._system.guardian import main"),
        ("supervisor/cli/x.py", "import numpy"),
        ("supervisor/cli/x.py", "from .._events import Event"),
        ("supervisor/cli/x.py", "def f():\n    from .. import _spec"),
        ("supervisor/cli/demo/x.py", "from ...tools._tool import Call"),
        ("supervisor/simulation/x.py", "import rich"),
    ],
)
def test_a_planted_import_against_the_arrow_is_caught(path: str, planted: str) -> None:
    assert wrong_imports(path, planted) != []


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("actors/x.py", "import trio, attrs, cattrs, orjson, re\nfrom ._ref import a"),
        ("actors/x.py", "from __future__ import annotations"),
        ("supervisor/x.py", "from actors import Exit\nfrom actors.lowlevel import run"),
        ("supervisor/x.py", "from ._spec import ChildSpec"),
        ("supervisor/cli.py", "import click, rich.live\nfrom .runtime import x"),
        ("supervisor/cli/x.py", "import click\nfrom ..runtime import x"),
        ("supervisor/cli/x.py", "from ._view import x\nfrom ..lowlevel import y"),
        ("supervisor/cli/demo/x.py", "from .._view import x\nfrom . import _y"),
    ],
)
def test_imports_along_the_arrow_are_left_alone(path: str, allowed: str) -> None:
    assert wrong_imports(path, allowed) == []


@pytest.mark.parametrize("path", sources("examples", "bench"))
def test_examples_and_benchmarks_use_only_public_names(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    private = [
        f"{path}:{line}: {name}"
        for line, name in References(path, text).uses()
        if (within(name, "actors") or within(name, "supervisor")) and is_private(name)
    ]
    assert private == []


# ---- Names of modules -------------------------------------------------------

SUPERVISORD = frozenset(
    """
    childutils compat confecho datatypes dispatchers events http http_client
    loggers medusa options pidproxy poller process rpcinterface scripts skel
    socket_manager states supervisorctl supervisord templating tests ui web
    xmlrpc
    """.split()
)
"""What supervisord has in its package of the same import name."""

VAGUE = {"base", "bases", "helper", "helpers", "manager", "managers", "util", "utils"}


def bad_module_names(path: str) -> list[str]:
    """Return the parts of ``path`` that a module here must not be called."""
    parts = PurePosixPath(path).with_suffix("").parts
    bad = [part for part in parts if VAGUE & set(part.lower().split("_"))]
    if parts[0] == "supervisor":
        bad += [part for part in parts[1:] if part in SUPERVISORD]
    return bad


def test_no_module_is_named_vaguely_or_like_one_of_supervisords() -> None:
    """Brief, section 7, and style 3."""
    everything = {
        path.relative_to(ROOT).as_posix()
        for folder in ("actors", "supervisor", "bench", "examples", "tests")
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    }
    assert {path: bad for path in everything if (bad := bad_module_names(path))} == {}


@pytest.mark.parametrize(
    "path",
    [
        "supervisor/process.py",
        "supervisor/web",
        "supervisor/cli/options.py",
        "actors/utils.py",
        "actors/_task_manager.py",
        "bench/helper.py",
        "supervisor/_base.py",
    ],
)
def test_a_planted_module_name_is_caught(path: str) -> None:
    assert bad_module_names(path) != []


def test_the_init_of_supervisor_is_a_docstring_and_nothing_else() -> None:
    """Brief, section 7: supervisord's own may be the one on disk."""
    tree = ast.parse(RUNTIME["supervisor/__init__.py"])
    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


def test_both_packages_say_that_they_are_typed() -> None:
    assert (ROOT / "actors/py.typed").is_file()
    assert (ROOT / "supervisor/py.typed").is_file()


# ---- Public names -----------------------------------------------------------

FIXED = {
    "actors": """ActorRef Completed Context Exit Failed Mailbox Progress Stopped
        TaskStatus""",
    "actors.shell": "Shell",
    "supervisor.tree": """Backoff ChildSpec child open_dynamic_supervisor
        open_supervisor""",
    "supervisor.runtime": "open_runtime",
}
"""What users' code relies on: brief, section 4."""


def exports(source: str) -> list[str]:
    """Return the names that a module makes public, as often as it does so.

    Those are ``X`` of ``from m import X as X``, and the names in ``__all__`` or,
    without one, the module's own definitions that bear no underscore.
    """
    body = ast.parse(source).body
    listed: list[str] | None = None
    reexported: list[str] = []
    defined: list[str] = []
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            reexported += [a.name for a in node.names if a.asname == a.name]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [t.id for t in targets if isinstance(t, ast.Name)]
            if names == ["__all__"] and node.value is not None:
                listed = list(ast.literal_eval(node.value))
            defined += names
    if listed is None:
        listed = [name for name in dict.fromkeys(defined) if name[0] != "_"]
    # What is both, as help() needs it, is public once.
    return list((Counter(listed) | Counter(reexported)).elements())


def definitions(source: str) -> set[str]:
    """Return the names that a module defines itself and that bear no underscore."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return {name for name in found if name[0] != "_"}


def half_exported(source: str) -> list[str]:
    """Return what a package's ``__init__`` binds without saying it is public,
    and what it makes public twice or under a private name."""
    public = Counter(exports(source))
    wrong = [name for name, times in public.items() if times > 1 or name[0] == "_"]
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                bound = alias.asname or alias.name
                future = (
                    isinstance(node, ast.ImportFrom) and node.module == "__future__"
                )
                # What makes the others public is private by its name.
                if bound not in public and not future and bound != "_publish":
                    wrong.append(bound)
    return wrong


def test_every_public_name_of_actors_is_exported_once() -> None:
    assert half_exported(RUNTIME["actors/__init__.py"]) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from ._ref import ActorRef as ActorRef, ActorRef as ActorRef",
        "from ._ref import ActorRef as ActorRef\n__all__ = ['ActorRef', 'ActorRef']",
        "from ._ref import ActorRef",
        "from ._ref import _Slot as _Slot",
        "import trio",
    ],
)
def test_a_planted_export_is_caught(planted: str) -> None:
    assert half_exported(planted) != []


UNLISTED = {
    "actors.agent.hosting": "what the host of an agent needs of it",
    "actors.envelope": "the form of an envelope, for who writes them",
    "actors.hosting": "what the host of tasks needs of the rooms below",
    "actors.house": "checks of arguments, and how names are published",
    "actors.notifier": "the actor that writes envelopes",
    "actors.text": "the rules of text",
    "actors.transcript.hosting": "what the host of agents needs of conversations",
    "actors.transcript.writer": "the actor that writes them",
}
"""The modules without ``__all__``: they are for `actors` and `supervisor` alone, their
docstrings say so, and no page and no example names them."""

PAGES = ("README.md", "examples/*.py", "examples/*.yaml")


def test_a_module_without_all_says_that_it_is_for_the_house_alone() -> None:
    found = {
        module_name(path): ast.get_docstring(ast.parse(text)) or ""
        for path, text in RUNTIME.items()
        if not is_private(module_name(path)) and "\n__all__ = [" not in text
        if not is_command(module_name(path)) and module_name(path) != "supervisor"
    }
    assert found.keys() == UNLISTED.keys()
    assert [name for name, text in found.items() if "no ``__all__``" not in text] == []


def test_design_names_every_module_without_all() -> None:
    """The sentence after that on modules without ``__all__``."""
    design = (ROOT / "design.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^These are (`actors\..*)$", design, re.MULTILINE)
    assert set(re.findall(r"`([a-z.]+)`", named)) == UNLISTED.keys()


def test_no_page_and_no_example_names_a_module_of_the_house_alone() -> None:
    pages = [page for pattern in PAGES for page in ROOT.glob(pattern)]
    named = [
        f"{page.name}: {module}"
        for page in pages
        for module in UNLISTED
        if re.search(rf"\b{re.escape(module)}\b", page.read_text(encoding="utf-8"))
    ]
    assert named == []


def test_no_name_is_public_both_in_actors_and_in_lowlevel() -> None:
    both = set(exports(RUNTIME["actors/__init__.py"])) & set(
        exports(RUNTIME["actors/lowlevel.py"])
    )
    assert both == set()


def test_what_is_imported_from_actors_is_public_there() -> None:
    """Nobody relies on a name that `actors` merely happens to have imported, and the
    command line on none that `supervisor` has."""
    public = {
        module_name(path): set(exports(text))
        for path, text in RUNTIME.items()
        if not is_private(module_name(path))
    }
    defined = {module_name(path): definitions(text) for path, text in RUNTIME.items()}
    modules = {module_name(path) for path in RUNTIME}
    unknown: list[str] = []
    for path, text in sources("supervisor", "examples", "bench", "tests").items():
        for line, name in References(path, text).imports:
            module, _, last = name.rpartition(".")
            is_held = module.startswith("actors") or is_command(module_name(path))
            known = public.get(module) if is_held else None
            if path.startswith("tests/") and last in defined.get(module, ()):
                continue  # A test may look at what stands in the module itself.
            if known is not None and name not in modules and last not in known:
                unknown.append(f"{path}:{line}: {name}")
    assert unknown == []


@pytest.mark.parametrize("module", FIXED)
def test_the_names_that_users_rely_on_are_there(module: str) -> None:
    """Brief, section 4."""
    found = importlib.import_module(module)
    assert [name for name in FIXED[module].split() if not hasattr(found, name)] == []


# ---- How long tests may take ---------------------------------------------------

SECONDS = "fail_after run communicate wait check_output".split()
VIRTUAL = 600
"""Nobody gives that many real seconds to a test."""


def bounds_without_limit(text: str, limit: float = LIMIT) -> list[str]:
    """Return where a test may take longer by its own bounds than it is left to."""
    tree = ast.parse(text)
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    marks = constants.get("pytestmark")
    of_all = max([limit, *limits(marks)] if marks is not None else [limit])
    found: list[str] = []
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = max(
            [of_all, *(it for mark in function.decorator_list for it in limits(mark))]
        )
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            given = [it.value for it in call.keywords if it.arg == "timeout"]
            if name == "fail_after":
                given = call.args[:1]
            for value in given if name in SECONDS else ():
                if isinstance(value, ast.Name):
                    value = constants.get(value.id, value)
                if (
                    isinstance(value, ast.Constant)
                    and isinstance(value.value, int | float)
                    and own <= value.value < VIRTUAL
                ):
                    found.append(f"{call.lineno}: {ast.unparse(call)[:60]}")
    return found


def limits(node: ast.expr) -> list[float]:
    """Return what the marks in an expression set as the limit of a test."""
    return [
        ast.literal_eval(call.args[0])
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.limit"
    ]


def test_no_test_gives_itself_longer_than_it_is_left_to() -> None:
    """It would be interrupted before it could say what it has waited for."""
    found = {
        path: bounds_without_limit(text) for path, text in sources("tests").items()
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "def test():\n    with trio.fail_after(120): pass",
        "LONG = 120.0\ndef test():\n    with fail_after(LONG): pass",
        "def test():\n    subprocess.run([], timeout=100)",
        "@pytest.mark.limit(90)\ndef test():\n    with trio.fail_after(120): pass",
        "pytestmark = [pytest.mark.limit(90)]\ndef a():\n    with trio.fail_after(90): pass",
    ],
)
def test_a_planted_bound_is_caught(planted: str) -> None:
    assert bounds_without_limit(planted) != []


@pytest.mark.parametrize(
    "right",
    [
        "def test():\n    with trio.fail_after(60): pass",
        "def test():\n    with trio.fail_after(1e6): pass",
        "@pytest.mark.limit(130)\ndef test():\n    with trio.fail_after(120): pass",
        "pytestmark = pytest.mark.limit(130)\ndef a():\n    with trio.fail_after(120): pass",
    ],
)
def test_a_bound_below_the_limit_is_none(right: str) -> None:
    assert bounds_without_limit(right) == []


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        (
            "import supervisor.runtime",
            "cattrs supervisor.definitions supervisor.settings supervisor.tools",
        ),
        (
            # What `--help` shows.
            "import supervisor.cli._command",
            "cattrs supervisor.runtime supervisor.settings supervisor.hooks",
        ),
        (
            "import supervisor.cli._command, supervisor.cli.run",
            "cattrs supervisor.cli.agent supervisor.definitions supervisor.tools",
        ),
    ],
)
def test_a_short_program_loads_nothing_that_it_does_not_need(
    program: str, needless: str
) -> None:
    """Each short command pays for what is loaded. Imports stand in the functions that
    need them, where not everybody does."""
    listed = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout.split()
    assert {*needless.split()} & {*listed} == set()
