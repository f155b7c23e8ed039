"""The guardian when more happens than it, or the runtime, can keep up with."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from actors._system.guardian.tree import Tree

_STORM = """
import os, signal, socket
from actors._system.guardian import serving
from actors._system.guardian.serving import Server

serving._MOST_EXITS = most = 64
control, _ = socket.socketpair()
control.setblocking(False)
server = Server(control, b"X", None, None)
signal.signal(signal.SIGCHLD, lambda *_: None)
children = 3 * most
reading, writing = os.pipe()
for _ in range(children):
    if os.fork() == 0:
        os._exit(0)
os.close(writing)
os.read(reading, 1)  # The end: they have all closed their side.
assert server._reap(), "none is left"
left = 0
taken = server._take_exit
def count(ended):
    global left
    left += 1
    taken(ended)
server._take_exit = count
while server._reap():
    server._wait(60)
assert left >= children - most, left
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper elsewhere")
def test_a_storm_of_ends_leaves_others_their_turn() -> None:
    """P1, P10: some are taken, then others are heard, and the rest is not
    forgotten."""
    subprocess.run([sys.executable, "-c", _STORM], check=True, timeout=50)


_CROWD = """
import os, signal, socket
from actors._system.guardian.serving import Server

server = Server(socket.socketpair()[0], b"X", None, None)
signal.signal(signal.SIGCHLD, lambda *_: None)
reading, writing = os.pipe()
for _ in range(300):
    if os.fork() == 0:
        os._exit(0)
os.close(writing)
os.read(reading, 1)  # The end: they have all closed their side.
for _ in range(300):
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
server._reap()
left = len(server._members.children())
assert left < 50, left  # The last ones may still be on their way out.
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper elsewhere")
def test_whoever_has_ended_is_in_no_second_look() -> None:
    """P1: chains of forks end faster than looks do that read each of the ended, and
    then a stop waits for the looks."""
    subprocess.run([sys.executable, "-c", _CROWD], check=True, timeout=50)


_WISHES = """
import os, signal, socket, sys
from actors._system.guardian.serving import Server
from actors._system.guardian.tree import Tree

server = Server(socket.socketpair()[0], b"X", None, None)
trees, channels = [], []
reading, writing = os.pipe()
for number in range(1, 31):
    ours, theirs = socket.socketpair()
    tree = Tree(theirs)
    tree.pid, tree.mark, tree.marker = os.fork(), -number, b"%d" % number
    if tree.pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()  # Or the stop would reach us, too.
        os.close(writing)
        while True:
            signal.pause()
    server._members.begin(tree)
    trees.append(tree)
    channels.append(ours)
os.close(writing)
os.read(reading, 1)  # The end: they are all deaf, and apart.
looks = []
sys.addaudithook(
    lambda event, args: event == "os.listdir" and args == ("/proc",) and looks.append(1)
)
try:
    for channel, tree in zip(channels, trees):
        channel.send(b"tm")
        server._hear(tree)
    server._obey()
    for channel, tree in zip(channels, trees):
        assert channel.recv(99) == b"members %d\\n" % tree.pid
    assert len(looks) == 1, looks
finally:
    for tree in trees:
        os.kill(tree.pid, 9)
        os.waitpid(tree.pid, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stop_of_many_trees_reads_all_processes_once() -> None:
    """P1: not once for each, which takes seconds where there are hundreds."""
    subprocess.run([sys.executable, "-c", _WISHES], check=True, timeout=50)


_UNOWNED = """
import os, socket, sys
from actors._system.guardian.members import Members
from actors._system.guardian.tree import Tree

members = Members(b"X")
trees = [Tree(socket.socket()) for _ in range(40)]
for number, tree in enumerate(trees, 1):
    tree.pid = tree.session = tree.mark = -number
    tree.marker, tree.output = b"%d" % number, f"pipe:[-{number}]"
    members.begin(tree)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    os.execve("/bin/sleep", ["sleep", "150"], {"X": "7"})
reads = []
def note(event, args):
    if event in ("open", "os.listdir") and str(args[0]).startswith(f"/proc/{child}/"):
        reads.append(os.path.basename(args[0]))
sys.addaudithook(note)
try:
    for _ in range(5):
        assert members.orphans() == {}
    assert sorted(reads) == ["environ", "fd", "stat"], reads
    os.close(writing)
    while not (found := members.strangers()):
        pass
    assert found == {trees[6]: [child]}, found
finally:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_orphan_that_nobody_owns_is_read_once_however_many_trees_there_are() -> None:
    """P1: or a crowd of them keeps the guardian from hearing of a stop. One that takes
    the variable of a tree later is that one's all the same."""
    subprocess.run([sys.executable, "-c", _UNOWNED], check=True, timeout=50)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no guardian")
def test_a_runtime_that_hears_nothing_for_long_learns_of_the_end() -> None:
    """P2: what orphans use meanwhile leaves room for the exit of the command."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        tree = Tree(theirs)
        for _ in range(100_000):
            tree.add_use(0.25)
        tree.tell("exit 0 0 0 1.0")
        tree.tell(f"{tree.use()}\ngone")
        theirs.shutdown(socket.SHUT_WR)
        with ours.makefile() as lines:
            told = lines.read().splitlines()
    assert told[-3:] == ["exit 0 0 0 1.0", "used 25000.000", "gone"]
    assert told[0] == "used 0.250"
