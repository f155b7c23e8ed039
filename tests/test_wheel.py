"""The wheel that users install, and its peace with supervisord.

supervisord has the same import name. Both distributions put a `supervisor`
directory into site-packages, and the one installed last wins every file that
they share; brief section 7 says how both still work. Everything here is real:
wheels, virtual environments, both programs. It needs the package index; leave
it out with ``-m "not wheel"``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from functools import partial
from pathlib import Path, PurePosixPath

import attrs
import pytest
import trio

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.limit(320),
    pytest.mark.skipif(os.name == "nt", reason="supervisord needs POSIX"),
]

OURS = """
import trio
from actors import Completed, Context
from supervisor.tree import child, open_supervisor

async def add_up(ctx: Context[int], start: int) -> int:
    total = start
    async for number in ctx.mailbox:
        total += number
    return total

async def main() -> None:
    with trio.fail_after(30):
        async with open_supervisor(children=[]) as sup:
            ref = await sup.start_child(child("sum", add_up, 40, restart="temporary"))
            ref.tell(2)
            ref.stop()
            assert await ref.wait_exit() == Completed(42)

trio.run(main)
print("ours works")
"""

SUPERVISORD_CONF = """
[unix_http_server]
file = {folder}/ctl

[supervisord]
logfile = {folder}/log
pidfile = {folder}/pid
childlogdir = {folder}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl = unix://{folder}/ctl

[program:sleeper]
command = sleep 600
autostart = false
startsecs = 0
"""


@attrs.frozen
class Venv:
    """A virtual environment, apart from whatever surrounds this process."""

    path: Path

    @property
    def environ(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return inherited | {
            "PATH": f"{self.path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "VIRTUAL_ENV": str(self.path),
        }

    def attempt(
        self, command: str, *arguments: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands, outside the checkout."""
        return subprocess.run(
            [self.path / "bin" / command, *arguments],
            cwd=self.path,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    def run(self, command: str, *arguments: str | Path) -> str:
        """Run one of its commands, which has to succeed; return the output."""
        done = self.attempt(command, *arguments)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
        return done.stdout


@attrs.frozen
class Pip:
    """One pip for every environment: to give each its own takes seconds."""

    home: Venv

    def new_venv(self, path: Path, *install: str | Path) -> Venv:
        """Make an environment and install into it, one after the other."""
        venv.create(path, symlinks=True)
        for what in install:
            self("--python", path, "install", "--no-compile", what)
        return Venv(path)

    def __call__(self, *arguments: str | Path) -> None:
        self.home.run("python", "-m", "pip", "--quiet", *arguments)


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Pip:
    home = tmp_path_factory.mktemp("pip")
    venv.create(home, symlinks=True, with_pip=True)
    return Pip(Venv(home))


@pytest.fixture(scope="module")
def wheel(pip: Pip, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, or the one that TRIO_SUPERVISOR_WHEEL names."""
    if given := os.environ.get("TRIO_SUPERVISOR_WHEEL"):
        return Path(given).resolve(strict=True)
    dist = tmp_path_factory.mktemp("dist")
    pip("wheel", "--no-deps", "--wheel-dir", dist, ROOT)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: list[str]) -> Message:
    (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_both_packages_whole_and_the_plugin(names: list[str]) -> None:
    shipped = {name for name in names if ".dist-info/" not in name}
    written = {
        path.relative_to(ROOT).as_posix()
        for package in ("actors", "supervisor")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == written | {"_trio_supervisor_pytest.py"}
    assert {"actors/py.typed", "supervisor/py.typed"} <= shipped


def test_the_wheel_says_what_it_is(names: list[str], metadata: Message) -> None:
    """Brief, section 7: the base dependencies, the import names, the licence."""
    needed = {
        requirement.split(">=")[0]
        for requirement in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    }
    assert needed == {"trio", "attrs", "cattrs", "orjson"}
    assert metadata.get_all("Import-Name") == [
        "_trio_supervisor_pytest; private",
        "actors",
        "supervisor",
    ]
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= {
        PurePosixPath(name).name for name in names if "/licenses/" in name
    }


@pytest.fixture(
    scope="module",
    params=["ours last", "supervisord last"],
    ids=["ours_last", "supervisord_last"],
)
def both(
    request: pytest.FixtureRequest,
    pip: Pip,
    wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Venv:
    """An environment with both distributions, installed in either order."""
    order: list[str | Path] = ["supervisor", wheel]
    if request.param == "supervisord last":
        order.reverse()
    return pip.new_venv(tmp_path_factory.mktemp("both"), *order)


def test_ours_runs_a_tree_beside_supervisord(both: Venv) -> None:
    """Brief, section 7: whichever was installed last."""
    assert "ours works" in both.run("python", "-c", OURS)


def test_the_command_names_the_extra_that_it_lacks(both: Venv) -> None:
    """The base install has the command too, but neither click nor rich."""
    done = both.attempt("trio-supervisor", "demo")
    assert done.returncode != 0
    assert "trio-supervisor[cli]" in done.stdout
    assert "Traceback" not in done.stdout


def test_supervisord_answers_beside_ours(both: Venv) -> None:
    assert both.run("supervisord", "--version").strip().startswith("4.")


@pytest.fixture
def supervisord_conf() -> Iterator[Path]:
    # Not tmp_path: the path of a Unix socket may have some hundred bytes only.
    with tempfile.TemporaryDirectory(prefix="supervisord-") as folder:
        conf = Path(folder, "conf")
        conf.write_text(SUPERVISORD_CONF.format(folder=folder))
        yield conf


async def test_supervisord_runs_a_program_beside_ours(
    both: Venv, supervisord_conf: Path
) -> None:
    """Brief, section 7: supervisord and supervisorctl over a Unix socket."""

    async def ctl(*arguments: str) -> str:
        done = await trio.run_process(
            [both.path / "bin" / "supervisorctl", "-c", supervisord_conf, *arguments],
            cwd=supervisord_conf.parent,
            env=both.environ,
            capture_stdout=True,
            check=False,
        )
        return done.stdout.decode()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            daemon = await nursery.start(
                partial(
                    trio.run_process,
                    [both.path / "bin" / "supervisord", "-n", "-c", supervisord_conf],
                    cwd=supervisord_conf.parent,
                    env=both.environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
            assert isinstance(daemon, trio.Process)
            assert daemon.stdout is not None
            async with daemon.stdout as output:
                log = b""
                # Its socket is open by the time it says so.
                while b"supervisord started with pid" not in log:
                    chunk = await output.receive_some()
                    assert chunk, log.decode()
                    log += chunk
                assert await ctl("start", "sleeper") == "sleeper: started\n"
                assert "RUNNING" in await ctl("status", "sleeper")
                assert await ctl("stop", "sleeper") == "sleeper: stopped\n"
                assert await ctl("shutdown") == "Shut down\n"
                # To the end, so that a full pipe does not hold it up; its exit
                # code is checked by run_process.
                async for _ in output:
                    pass


def test_supervisords_files_and_ours_share_one_name(
    both: Venv, names: list[str]
) -> None:
    """Brief, section 7: the one file that the later install overwrites."""
    listing = both.run(
        "python",
        "-c",
        "import importlib.metadata as m\n"
        "for file in m.files('supervisor') or (): print(file)",
    )
    theirs = {
        line
        for line in listing.splitlines()
        if line.startswith("supervisor/") and "__pycache__" not in line
    }
    assert "supervisor/process.py" in theirs
    assert theirs & set(names) == {"supervisor/__init__.py"}


def test_ours_runs_a_tree_when_supervisord_is_gone_again(
    pip: Pip, wheel: Path, tmp_path: Path
) -> None:
    """Its uninstallation takes away the `__init__` that was shared."""
    left = pip.new_venv(tmp_path, wheel, "supervisor")
    pip("--python", left.path, "uninstall", "--yes", "supervisor")
    assert not list(left.path.glob("lib/*/site-packages/supervisor/__init__.py"))
    assert "ours works" in left.run("python", "-c", OURS)


# ---- The plugin of pytest, in environments as users have them ---------------------------

PROJECT = """
import random

import anyio
import pytest
import trio


@pytest.mark.sim(seeds=10)
async def test_schedules(sim):
    await trio.sleep(100)
    print("seed", sim.random.random())


@pytest.mark.sim(seeds=60)
async def test_race(sim):
    seen = []

    async def put(name):
        await trio.lowlevel.checkpoint()
        seen.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, "first")
        nursery.start_soon(put, "second")
    assert seen == ["first", "second"], seen


async def program(sim):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        nursery.start_soon(wait)


async def wait():
    await trio.sleep(2)


def test_sweep(cancel_everywhere):
    assert cancel_everywhere(program).points


async def test_of_pytest_trio(nursery):
    assert isinstance(nursery, trio.Nursery)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_anyio(anyio_backend):
    await anyio.sleep(0)


def test_that_asks_for_nothing():
    assert random.random() < 1
"""


def project(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = trio\n    anyio\n")
    (folder / "test_project.py").write_text(PROJECT)
    return folder


def test_the_plugin_works_beside_others_with_supervisord_installed_last(
    pip: Pip, wheel: Path, tmp_path: Path
) -> None:
    """xdist splits the seeds of a test; pytest-trio and anyio run their own tests, and
    pytest-randomly shuffles all of them. The extra `cli` is not there."""
    plugins = "pytest", "pytest-trio", "anyio", "pytest-randomly", "pytest-xdist"
    users = pip.new_venv(tmp_path / "venv", wheel, *plugins, "supervisor")
    tests = project(tmp_path / "tests")

    def run(*arguments: str) -> str:
        return users.attempt(
            "pytest", "-o", "console_output_style=classic", *arguments, str(tests)
        ).stdout

    shown = run("-k", "not anyio and not pytest_trio")
    assert "1 failed, 3 passed" in shown, shown
    assert "Using --randomly-seed" in shown
    shown = run("-n", "2", "-k", "not pytest_trio")
    assert "explore: 30 runs" in shown, shown
    assert "test_race[1of2]" in shown
    assert "test_schedules" not in shown.partition("short test summary")[2]
    kept = [json.loads(it.read_text()) for it in (tests / ".sim").iterdir()]
    assert {it["of"] for it in kept} == {"test_project.py::test_race"}
    shown = run("-n", "2", "-o", "trio_mode=true", "-k", "not anyio and not race")
    assert "5 passed" in shown, shown  # One of them in two parts.
    shown = run("-p", "no:randomly", "-k", "race", "--sim-seed", "0", "-n", "2")
    assert "tapes kept: " in shown, shown
    assert "1 failed" in shown, shown


def test_the_plugin_names_who_has_the_import_name_of_an_editable_install(
    pip: Pip, tmp_path: Path
) -> None:
    """supervisord comes before it on the path. Tests that ask for nothing are run."""
    users = pip.new_venv(tmp_path / "venv", "pytest", "anyio", "supervisor")
    pip("--python", users.path, "install", "--no-compile", "--editable", ROOT)
    tests = project(tmp_path / "tests")
    shown = users.attempt("pytest", str(tests)).stdout
    assert "the simulator cannot be imported: No module named" in shown
    assert "The import name `supervisor` belongs to supervisor" in shown
    assert re.search(r"\b[23] failed, .*\b[2-9] passed", shown), shown
