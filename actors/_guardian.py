"""The guardian: a small process that starts process trees and outlives its parent.

Run as a script, alone: it imports the standard library only, so that it starts
fast and depends on no path. A runtime starts one, hands it one socket per tree,
and may then be killed at any moment; the guardian ends whatever is left, until
it has no child any more, and then itself.

Two properties of Linux carry it. As a *subreaper* it becomes the parent of every
descendant whose own parent ended, so no double fork escapes, and the death of
every orphan is an event. A pidfd of its parent tells of the parent's death, even
if the parent forked and its sockets live on in a child.

Reading all of ``/proc`` takes milliseconds, too much for the ordinary end of a
leader that left nothing behind. But pids are given out in turn, and
``/proc/loadavg`` tells the last one: it suffices to read the processes that are
new, and to remember those that descend from a leader. All of ``/proc`` is read to
signal a tree, and when so many pids may have been given out that the count could
have gone round.

Where there is no ``/proc`` and no subreaper (macOS), a tree is the process
group of its leader, and the end of the control socket alone tells of the
parent's death.

The protocol. On the control socket each byte carries the descriptor of one
tree's socket. On that socket the runtime first writes a request (see
`encode_request`), then one letter per wish: ``t`` terminate, ``k`` kill, ``m``
members. The end of the stream means: kill the tree and forget it. The guardian
writes lines: ``started PID`` (with the output pipe's descriptor) or
``failed ERRNO cwd|program``; ``exit CODE SIGNAL AFTER_STOP``; ``gone``;
``members PID...``.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import NamedTuple

if sys.platform == "win32":
    raise ImportError("the guardian needs a Unix system")

_HAS_PROC = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_CATCHABLE = tuple(
    sorted(
        {int(number) for number in signal.valid_signals()}
        - {signal.SIGKILL, signal.SIGSTOP}
    )
)
_FIRST_PAUSE = 0.002
_MANY = 256
"""New pids above which reading all of ``/proc`` is cheaper."""
_SURVIVED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)
"""What a terminal, a service manager or a clumsy ``kill`` may send to us."""


# Requests


def encode_request(
    argv: Iterable[str],
    cwd: str,
    env: Mapping[str, str],
    marker: str,
) -> bytes:
    """Return the bytes that ask for a tree.

    Raises:
        ValueError: if a string could not be given to a program: it contains a
            NUL, or a variable's name is empty or contains ``=``.
    """
    arguments = list(argv)
    if not arguments:
        raise ValueError("argv is empty")
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a variable name: {name!r}")
    fields = [
        marker,
        cwd,
        str(len(arguments)),
        *arguments,
        *(f"{name}={value}" for name, value in env.items()),
    ]
    body = os.fsencode("\0".join(fields))
    if body.count(b"\0") != len(fields) - 1:
        raise ValueError("an argument, the directory or a variable contains a NUL")
    return len(body).to_bytes(8, "big") + body


class _Request(NamedTuple):
    marker: bytes
    cwd: bytes
    argv: list[bytes]
    env: dict[bytes, bytes]


def _decode_request(body: bytes) -> _Request:
    marker, cwd, count, *rest = body.split(b"\0")
    argv, variables = rest[: int(count)], rest[int(count) :]
    env = dict(variable.split(b"=", 1) for variable in variables)
    return _Request(marker, cwd, argv, env)


# What /proc tells


class Seen(NamedTuple):
    """A process as one look at ``/proc`` showed it."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks since boot."""
    alive: bool
    """False for a zombie."""


def look_at_processes() -> Iterator[Seen]:
    """Yield every process, the newest first: what forks on and on is there."""
    pids = sorted(
        (int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True
    )
    for pid in pids:
        if (seen := _look_at(pid)) is not None:
            yield seen


def _look_at(pid: int) -> Seen | None:
    stat = _read(f"/proc/{pid}/stat", 1024)
    if not stat:
        return None
    # The name in parentheses may itself contain anything.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A process whose first thread has ended reads as a zombie while others run.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Seen(
        pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        alive=alive,
    )


class LastPid:
    """Tells the pid that was given out last."""

    def __init__(self) -> None:
        self._file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._file, 128, 0).split()[-1])

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._file)


def variable_of(pid: int, name: bytes) -> bytes | None:
    """Return the value of an environment variable of a process, if readable."""
    prefix = name + b"="
    for variable in _read(f"/proc/{pid}/environ", 1 << 22).split(b"\0"):
        if variable.startswith(prefix):
            return variable[len(prefix) :]
    return None


def _read(path: str, limit: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # It is gone, or not ours to read.
        return b""
    try:
        chunks: list[bytes] = []
        while limit > 0 and (chunk := os.read(descriptor, min(limit, 1 << 16))):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _holds_pipe(pid: int, pipe: str) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") == pipe:
                return True
        except OSError:
            continue
    return False


def send_signal(pid: int, number: int) -> None:
    """Signal a process, or with a negative ``pid`` a group; an absent one is fine.

    No pidfd is needed to guard against a pid that is used anew: pids are given
    out in turn, so tens of thousands of processes would have to start between
    the look at ``/proc`` and this call.
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


# Starting


def _start(request: _Request, output: int) -> int:
    """Return the pid of a new session's leader, its output at ``output``.

    Raises:
        OSError: with ``cwd`` or ``program`` as its filename.
    """
    # posix_spawn has no directory of its own to give; ours is nobody else's.
    try:
        os.chdir(request.cwd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "cwd") from None
    try:
        return _start_here(request, output)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "program") from None
    finally:
        # Stay in no directory that somebody may want to unmount.
        os.chdir("/")


def _start_here(request: _Request, output: int) -> int:
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in _places(request):
        try:
            return os.posix_spawn(
                program,
                request.argv,
                request.env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_CATCHABLE,
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error  # As a shell does: look on, but remember.
    raise failure


def _places(request: _Request) -> list[bytes]:
    program = request.argv[0]
    if b"/" in program:
        return [program]
    if not program:
        return []
    path = request.env.get(b"PATH", os.fsencode(os.defpath))
    places = [os.path.join(directory, program) for directory in path.split(b":")]
    return [place for place in places if os.access(place, os.F_OK)]


# Waiting


class _Poll:
    """A set of descriptors to wait for."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self.add(descriptor)

    def add(self, descriptor: int) -> None:
        self._poll.register(descriptor, select.POLLIN)

    def discard(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def wait(self, seconds: float | None) -> set[int]:
        milliseconds = None if seconds is None else max(0, seconds * 1000)
        return {descriptor for descriptor, _ in self._poll.poll(milliseconds)}


# Trees


class _Tree:
    """What the guardian knows of one tree."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.request = bytearray()
        self.pid = 0
        self.marker = b""
        self.pipe = ""
        self.since = 0
        """Clock ticks since boot, not after any member's start."""
        self.stopped = False
        """Whether a signal was asked for."""
        self.gone = False
        """Whether nothing is left, or nothing was ever started."""
        self.abandoned = False
        """Whether the runtime has closed its side for writing."""
        self.next_sweep = 0.0
        self.pause = 0.0

    def tell(self, line: str, descriptor: int | None = None) -> None:
        data = line.encode() + b"\n"
        try:
            if descriptor is None:
                self.channel.send(data)
            else:
                socket.send_fds(self.channel, [data], [descriptor])
        except OSError:
            # The runtime is gone or hears nothing; that ends the stream, which
            # is dealt with where it is read.
            pass


class _Guardian:
    """All trees, and the two loops that serve them."""

    def __init__(
        self, control: socket.socket, variable: bytes, parent: int | None
    ) -> None:
        self._control = control
        self._variable = variable
        self._parent = parent
        self._me = os.getpid()
        self._trees: dict[int, _Tree] = {}
        """By the descriptor of their channel, until the runtime closes it."""
        self._leaders: dict[int, _Tree] = {}
        """By pid, until the leader is reaped."""
        self._ended: set[_Tree] = set()
        """Trees whose leader has ended and of which something may be left."""
        self._doomed: set[_Tree] = set()
        """Trees to be killed of which something may be left."""
        self._known: dict[int, tuple[int, _Tree | None]] = {}
        """Start and tree of each descendant, but for the leaders; some may have
        ended."""
        self._pending: dict[int, float] = {}
        """New pids without a process: one may be about to appear. And until when."""
        self._own: set[int] = set()
        """Leaders started since the last count."""
        if _HAS_PROC:
            self._newest = LastPid()
        self._last_pid = -1
        self._counted = 0.0
        # At the rate of 16,384 forks a second.
        self._horizon = int(_read("/proc/sys/kernel/pid_max", 64) or 0) / 16384
        self._look_wanted = False
        self._next_look = 0.0
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._poll = _Poll(control.fileno())
        self._poll.add(self._wakeup.fileno())
        if parent is not None:
            self._poll.add(parent)

    def serve(self) -> None:
        """Serve until the control socket or the parent process ends."""
        control, wakeup = self._control.fileno(), self._wakeup.fileno()
        while True:
            ready = self._poll.wait(self._patience())
            if self._parent in ready:
                return
            if wakeup in ready:
                self._drain()
                self._reap()
            for descriptor in ready:
                if descriptor in self._trees:
                    self._listen(self._trees[descriptor])
            if control in ready and not self._accept():
                return
            self._settle()

    def close(self) -> None:
        """Kill every descendant until there is no child any more."""
        for tree in [*self._leaders.values(), *self._ended]:
            self._doom(tree)
        pause = 0.001
        everywhere = True
        while self._reap() or (self._ended and not _HAS_PROC):
            if _HAS_PROC:
                self._kill_descendants(everywhere=everywhere)
                if not everywhere:
                    self._chase(None)
            else:
                self._settle()
            everywhere = False
            # The event is the death of a child. The pause is for a fork that
            # was missed, and for what cannot be killed at once.
            _Poll(self._wakeup.fileno()).wait(pause)
            self._drain()
            pause = min(pause * 2, 0.5)

    def _patience(self) -> float | None:
        """Return how many seconds may pass without an event."""
        moments = [tree.next_sweep for tree in self._doomed]
        if self._look_wanted:
            moments.append(self._next_look)
        if not moments:
            return None
        return max(0.0, min(moments) - time.monotonic())

    def _drain(self) -> None:
        try:
            while self._wakeup.recv(4096):
                pass
        except BlockingIOError:
            pass

    # What the runtime wants

    def _accept(self) -> bool:
        """Take a tree's channel; tell whether the runtime is still there."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            channel = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor
            )
            channel.setblocking(False)
            self._trees[descriptor] = _Tree(channel)
            self._poll.add(descriptor)
            self._listen(self._trees[descriptor])
        return bool(data)

    def _listen(self, tree: _Tree) -> None:
        try:
            data = tree.channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._abandon(tree)
        elif tree.pid or tree.gone:
            self._obey(tree, data)
        else:
            tree.request += data
            end = 8 + int.from_bytes(tree.request[:8], "big")
            if len(tree.request) >= end > 8:
                body, wishes = bytes(tree.request[8:end]), bytes(tree.request[end:])
                tree.request.clear()
                self._start(tree, body)
                self._obey(tree, wishes)

    def _start(self, tree: _Tree, body: bytes) -> None:
        request = _decode_request(body)
        request.env[self._variable] = tree.marker = request.marker
        tree.since = _ticks_since_boot()
        try:
            # The write end never exists in the runtime, which may fork.
            reader, writer = os.pipe()
        except OSError as error:
            tree.gone = True
            tree.tell(f"failed {error.errno} program")
            return
        try:
            os.set_blocking(reader, False)
            tree.pipe = f"pipe:[{os.fstat(reader).st_ino}]"
            tree.pid = _start(request, writer)
            self._leaders[tree.pid] = tree
            self._own.add(tree.pid)
            tree.tell(f"started {tree.pid}", reader)
        except OSError as error:
            tree.gone = True
            tree.tell(f"failed {error.errno} {error.filename}")
        finally:
            os.close(reader)
            os.close(writer)

    def _obey(self, tree: _Tree, wishes: bytes) -> None:
        for wish in wishes:
            # An end that came before the wish must not read as its result.
            self._reap()
            if wish == ord("m"):
                members = [] if tree.gone else self._look(everywhere=True)[tree]
                pids = sorted(member.pid for member in members)
                tree.tell(" ".join(["members", *map(str, pids)]))
            elif tree.gone:
                continue
            elif wish == ord("t"):
                tree.stopped = True
                members = self._look(everywhere=True)[tree]
                self._signal(members, signal.SIGTERM)
                self._signal(members, signal.SIGCONT)
            elif wish == ord("k"):
                self._doom(tree)

    def _abandon(self, tree: _Tree) -> None:
        tree.abandoned = True
        self._poll.discard(tree.channel.fileno())
        del self._trees[tree.channel.fileno()]
        self._reap()
        if tree.pid and not tree.gone:
            self._doom(tree)
        else:
            tree.channel.close()

    def _doom(self, tree: _Tree) -> None:
        tree.stopped = True
        tree.pause = _FIRST_PAUSE
        tree.next_sweep = 0.0
        self._doomed.add(tree)

    # What ends

    def _reap(self) -> bool:
        """Take the exit of every child that has ended; tell whether one is left."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                left = False
                break
            if ended is None:
                left = True
                break
            if (tree := self._leaders.pop(ended.si_pid, None)) is not None:
                self._leader_ended(tree, ended.si_code, ended.si_status)
            self._look_wanted = bool(self._ended)
            for doomed in self._doomed:
                doomed.next_sweep = 0.0
        return left

    def _leader_ended(self, tree: _Tree, how: int, status: int) -> None:
        code, number = (status, 0) if how == os.CLD_EXITED else (-1, status)
        line = f"exit {code} {number} {int(tree.stopped)}"
        self._ended.add(tree)
        # After a stop a foreign process may have to be looked for as well.
        if tree.stopped or self._is_left(tree):
            tree.tell(line)
        else:
            # The ordinary end: one packet, so one wakeup of the runtime.
            self._forget(tree, f"{line}\ngone")

    def _settle(self) -> None:
        """Kill what is doomed, and tell which ended trees are gone."""
        now = time.monotonic()
        due = {tree for tree in self._doomed if tree.next_sweep <= now}
        if not due and not (self._look_wanted and self._next_look <= now):
            return
        self._look_wanted = False
        members = None
        if due or any(tree.stopped for tree in self._ended):
            members = self._look(everywhere=True, due=due)
        for tree in due:
            assert members is not None
            self._signal(members[tree], signal.SIGKILL)
            if tree.pause > _FIRST_PAUSE:
                self._chase(tree)
            tree.next_sweep = time.monotonic() + tree.pause
            tree.pause = min(tree.pause * 2, 0.5)
        end = time.monotonic()
        # A look has its price: spend no more than a tenth of the time on it.
        self._next_look = end + 10 * (end - now)
        for tree in [*self._ended]:
            seen = members[tree] if members is not None and tree.stopped else []
            if not seen and not self._is_left(tree):
                self._forget(tree, "gone")
            elif not _HAS_PROC or any(self._is_foreign(member) for member in seen):
                # The one end of which no event tells.
                self._look_wanted = True
                self._next_look = end + 0.05

    def _forget(self, tree: _Tree, line: str) -> None:
        tree.gone = True
        tree.tell(line)
        self._ended.discard(tree)
        self._doomed.discard(tree)
        if tree.abandoned:
            tree.channel.close()

    # What belongs to a tree

    def _look(
        self, *, everywhere: bool, due: Collection[_Tree] = ()
    ) -> defaultdict[_Tree, list[Seen]]:
        """Return the living members of every tree.

        Args:
            everywhere: look also among processes that are no descendants of
                ours, for the marker.
            due: orphans of these are killed as soon as they are seen: what
                forks on and on does not live until the end of a look.
        """
        members: defaultdict[_Tree, list[Seen]] = defaultdict(list)
        if not _HAS_PROC:
            for one in self._present():
                if group_exists(one.pid):
                    pid = one.pid
                    members[one].append(Seen(pid, self._me, pid, pid, one.since, True))
            return members
        before = self._newest()
        trees = self._present()
        others: dict[int, Seen] = {}
        children: defaultdict[int, list[tuple[Seen, _Tree | None]]] = defaultdict(list)
        for seen in look_at_processes():
            tree: _Tree | None = None
            if seen.parent == self._me and seen.alive:
                tree = self._leaders.get(seen.pid) or self._tree_of_orphan(seen)
                if tree is not None and tree in due:
                    send_signal(seen.pid, signal.SIGKILL)
            children[seen.parent].append((seen, tree))
            others[seen.pid] = seen
        known: dict[int, tuple[int, _Tree | None]] = {}
        found = children[self._me]
        while found:
            seen, tree = found.pop()
            del others[seen.pid]
            if seen.pid not in self._leaders:
                known[seen.pid] = seen.started, tree
            if tree is not None and seen.alive:
                members[tree].append(seen)
            found += [(child, tree) for child, _ in children[seen.pid]]
        self._known = known
        self._counted_to(before)
        if everywhere:
            del others[self._me]
            by_marker = {tree.marker: tree for tree in trees}
            for seen in others.values():
                value = variable_of(seen.pid, self._variable)
                if value is not None and value in by_marker and seen.alive:
                    members[by_marker[value]].append(seen)
        return members

    def _present(self) -> set[_Tree]:
        return {*self._leaders.values(), *self._ended}

    def _is_left(self, tree: _Tree) -> bool:
        """Tell whether a descendant of a leader that has ended is left."""
        if not _HAS_PROC:
            return group_exists(tree.pid)
        while self._has_child():
            self._count(fully=not self._leaders and not self._known)
            for pid, (started, owner) in [*self._known.items()]:
                if owner is tree:
                    seen = _look_at(pid)
                    if seen is not None and seen.alive and seen.started == started:
                        return True
                    del self._known[pid]
            # What ended meanwhile may have forked meanwhile.
            if self._newest() == self._last_pid:
                return False
        return False

    def _has_child(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _count(self, *, fully: bool) -> None:
        """Take notice of the processes that were started since the last count."""
        now = time.monotonic()
        last = self._newest()
        if (
            fully
            or not 0 <= last - self._last_pid <= _MANY
            or now - self._counted > self._horizon
            or len(self._known) > 16 * _MANY
        ):
            self._look(everywhere=False)
            return
        for pid in [*self._pending, *range(self._last_pid + 1, last + 1)]:
            if pid in self._leaders or pid in self._own:
                continue
            seen = _look_at(pid)
            if seen is None:
                # Perhaps its parent is still busy making it.
                if self._pending.setdefault(pid, now + 0.1) < now:
                    del self._pending[pid]
                continue
            self._pending.pop(pid, None)
            if self._known.get(pid, (-1, None))[0] != seen.started:
                self._known.pop(pid, None)
                ours, tree = self._origin(seen)
                if ours:
                    self._known[pid] = seen.started, tree
        self._counted_to(last)

    def _counted_to(self, last: int) -> None:
        self._last_pid = last
        self._counted = time.monotonic()
        self._own = {pid for pid in self._own if pid > last}

    def _origin(self, seen: Seen) -> tuple[bool, _Tree | None]:
        """Tell whether a process descends from us, and its tree."""
        ancestor: Seen | None = seen
        while ancestor is not None:
            if ancestor.pid in self._leaders:
                return True, self._leaders[ancestor.pid]
            if ancestor.pid in self._known:
                return True, self._known[ancestor.pid][1]
            if ancestor.parent == self._me:
                return True, self._tree_of_orphan(ancestor)
            if ancestor.parent <= 1:
                return False, None
            parent = _look_at(ancestor.parent)
            if parent is None:  # It ended just now; who is the parent instead?
                parent = _look_at(ancestor.pid)
            ancestor = parent
        return False, None  # It has ended itself; its children are newer.

    def _tree_of_orphan(self, seen: Seen) -> _Tree | None:
        """Return the tree of an adopted process, or None if that is not certain."""
        started, known = self._known.get(seen.pid, (-1, None))
        if started == seen.started and known is not None:
            return known
        marker = variable_of(seen.pid, self._variable)
        trees = self._present()
        for tree in trees:
            if tree.pid == seen.session or tree.marker == marker:
                return tree
        for tree in trees:
            if _holds_pipe(seen.pid, tree.pipe):
                return tree
        # At the first look it can only have come from a tree that is there.
        possible = [tree for tree in trees if tree.since <= seen.started]
        if started != seen.started and len(possible) == 1:
            return possible[0]
        return None  # It ends when the guardian closes.

    def _signal(self, members: Iterable[Seen], number: int) -> None:
        """Signal members; descendants by group, so that no fork slips through.

        A group lies within one session, and a session of a descendant within
        one tree. That does not hold for a foreign process.
        """
        for target in {s.pid if self._is_foreign(s) else -s.group for s in members}:
            send_signal(target, number)

    def _chase(self, tree: _Tree | None) -> None:
        """Kill the newest orphans, of one tree or all, as fast as they come.

        A chain of processes that fork, leave the session and end is always one
        link ahead of a look at all processes.
        """
        for _ in range(50):
            last = self._newest()
            for pid in range(last, last - 3, -1):
                seen = _look_at(pid)
                if (
                    seen is not None
                    and seen.parent == self._me
                    and (tree is None or pid not in self._leaders)
                    and (tree is None or self._tree_of_orphan(seen) is tree)
                ):
                    send_signal(pid, signal.SIGKILL)

    def _is_foreign(self, seen: Seen) -> bool:
        ours = seen.pid in self._known or seen.pid in self._leaders
        return _HAS_PROC and not ours

    def _kill_descendants(self, *, everywhere: bool) -> None:
        others: dict[int, Seen] = {}
        children: defaultdict[int, list[Seen]] = defaultdict(list)
        for seen in look_at_processes():
            if seen.parent == self._me:
                send_signal(seen.pid, signal.SIGKILL)
            children[seen.parent].append(seen)
            others[seen.pid] = seen
        found = children[self._me]
        while found:
            seen = found.pop()
            del others[seen.pid]
            send_signal(-seen.group, signal.SIGKILL)
            found += children[seen.pid]
        if everywhere:
            for pid in others:
                if variable_of(pid, self._variable) is not None:
                    send_signal(pid, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Tell whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _ticks_since_boot() -> int:
    if sys.platform == "linux":
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    return 0


# The process


def _nothing(number: int, frame: FrameType | None) -> None:
    """Catch a signal: unlike an ignored one it is not ignored by programs."""


def _become_subreaper() -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _open_parent(parent: int) -> int | None:
    """Return a pidfd of the parent, or None where there are none.

    Raises:
        ProcessLookupError: if the parent has ended.
    """
    descriptor = None
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            raise
        except OSError:  # An old kernel, or a sandbox.
            pass
    # The pidfd is of the parent only if the parent was there after it was opened.
    if os.getppid() != parent:
        raise ProcessLookupError
    return descriptor


def main() -> None:
    """Run as the guardian of the parent process; descriptor 0 is its control."""
    parent, variable = int(sys.argv[1]), os.fsencode(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _CATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in _SURVIVED:
        signal.signal(number, _nothing)
    if _HAS_PROC:
        _become_subreaper()
    try:
        parent_fd = _open_parent(parent)
    except ProcessLookupError:
        return
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=0)
    control.setblocking(False)
    guardian = _Guardian(control, variable, parent_fd)
    try:
        guardian.serve()
    finally:
        guardian.close()
        os._exit(0)  # At once: somebody waits for it.


if __name__ == "__main__":
    main()
