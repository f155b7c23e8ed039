"""The loop that serves the runtime."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from .ending import end_descendants
from .members import Members
from .proc import HAS_PROC, is_alive, send_signal, signal_groups
from .requests import decode_environment, decode_request, split_request
from .starting import descriptor_limit, start, use_all_descriptors
from .tree import Tree

_FIRST_PAUSE = 0.002
_NO_EVENT = 0.05
"""Seconds between two looks for an end that no event reports."""
_MOST_EXITS = 1024
"""Exits taken before others have their turn, some 20 ms of work: a storm of orphans may
bring them faster than they can be taken. They must be many. Whoever is not taken is
looked at in each look until he is; with 64 a turn, chains of forks on a busy machine
made a thousand of them, the looks slower, and so more of them."""
_PAUSE = 0.05
"""Seconds before what has failed is tried again."""
_READ = 1 << 16
"""Bytes read at once of what a runtime asks for. Most requests are a few thousand, and
memory for many more comes from the kernel each time, and goes back to it."""
_SPARE = 16
"""Descriptors that the guardian needs for its own work."""
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Look first and reap later: while it is a zombie its tree can still be found."""


class Poll:
    """A set of descriptors to wait for."""

    def __init__(self, *descriptors: int) -> None:
        self._poll = select.poll()
        for descriptor in descriptors:
            self.add(descriptor)

    def add(self, descriptor: int, events: int = select.POLLIN) -> None:
        """Wait for this one, too, or for other events of it."""
        self._poll.register(descriptor, events)

    def discard(self, descriptor: int) -> None:
        """Stop waiting for this one."""
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            pass

    def wait(self, seconds: float | None) -> set[int]:
        """Return those that are ready, at the latest after so many seconds."""
        milliseconds = None if seconds is None else max(0, seconds * 1000)
        return {descriptor for descriptor, _ in self._poll.poll(milliseconds)}


def open_wakeup() -> tuple[socket.socket, socket.socket]:
    """Return what can be read after a signal, and its other end."""
    wakeup, waker = socket.socketpair()
    wakeup.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    return wakeup, waker


def drain(wakeup: socket.socket) -> None:
    """Take all that is there to be read."""
    try:
        while len(wakeup.recv(4096)) == 4096:
            pass
    except BlockingIOError:
        pass


class Server:
    """All trees, and the two loops that serve them."""

    def __init__(
        self,
        control: socket.socket,
        variable: bytes,
        runtime: int | None,
        outer: int | None,
    ) -> None:
        """Args: the two processes that may end before us, as pidfds."""
        self._control = control
        self._variable = variable
        self._runtime = runtime
        self._outer = outer
        self._me = os.getpid()
        self._members = Members(variable)
        self._trees: dict[int, Tree] = {}
        """By the descriptor of their channel, while we read from it."""
        self._owing: dict[int, Tree] = {}
        """By the same, the trees with something unsent."""
        self._wishing: set[Tree] = set()
        """Trees with a wish that is not granted yet."""
        self._failed = False
        """Whether something failed and must be tried again."""
        self._doomed: set[Tree] = set()
        """Trees to be killed of which something may be left."""
        self._child_ended = False
        self._exits: dict[Tree, str] = {}
        """What is to be told of leaders that were reaped."""
        self._look_wanted = False
        """Whether a stopped tree has nothing left but perhaps strangers."""
        self._next_look = 0.0
        self._environment = b"", dict[bytes, bytes]()
        """The last one, as bytes and decoded: most requests send the same."""
        use_all_descriptors()
        self._wakeup, self._waker = open_wakeup()
        self._poll = Poll(control.fileno(), self._wakeup.fileno())
        for pidfd in (runtime, outer):
            if pidfd is not None:
                self._poll.add(pidfd)

    def serve(self) -> None:
        """Serve until the runtime or the outer guardian ends."""
        control, wakeup = self._control.fileno(), self._wakeup.fileno()
        while True:
            failed, self._failed = self._failed, False
            try:
                if failed:
                    # The event may have been lost with the failure and is not repeated,
                    # so look at everything.
                    time.sleep(_PAUSE)
                    self._child_ended = True
                ready = self._poll.wait(0.0 if failed else self._patience())
                if self._outer in ready:
                    self.lose()
                    return
                if self._runtime in ready:
                    return
                if wakeup in ready or failed:
                    drain(self._wakeup)
                    self._reap()
            except OSError:
                self._failed = True
                continue
            for descriptor in ready:
                if descriptor in self._owing:
                    self._send(self._owing[descriptor])
                if descriptor in self._trees:
                    self._hear(self._trees[descriptor])
            try:
                if control in ready and not self._accept():
                    return
            except OSError:
                self._failed = True
            self._obey()
            try:
                self._settle()
            except OSError:
                self._failed = True

    def close(self) -> None:
        """Kill every descendant until no child is left."""
        for tree in [*self._members.leaders.values(), *self._members.ended]:
            self._doom(tree)
        if HAS_PROC:
            end_descendants(
                self._members.children,
                self._variable,
                self._reap,
                self._wait,
            )
            return
        pause = 0.001
        while self._members.leaders or self._members.ended:
            try:
                self._reap()
                self._settle()
                self._wait(pause)
            except OSError:
                time.sleep(pause)
            pause = min(pause * 2, 0.5)

    def lose(self) -> None:
        """Report that no exit will be reported any more."""
        for tree in self._members.leaders.values():
            tree.tell("lost")
        if HAS_PROC:  # Without /proc we kill the leaders' groups, so keep them.
            self._members.leaders.clear()

    def _patience(self) -> float | None:
        """Return how many seconds may pass without an event."""
        if not (self._doomed or self._look_wanted):
            return None
        moments = [tree.next_sweep for tree in self._doomed]
        if self._look_wanted:
            moments.append(self._next_look)
        return max(0.0, min(moments) - time.monotonic())

    def _wait(self, seconds: float) -> None:
        Poll(self._wakeup.fileno()).wait(seconds)
        drain(self._wakeup)

    # What the runtime wants

    def _accept(self) -> bool:
        """Take a tree's channel; return whether the runtime is still there."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        for descriptor in descriptors:
            channel = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor
            )
            try:
                os.set_inheritable(descriptor, False)
                channel.setblocking(False)
            except OSError:
                channel.close()  # The runtime hears that, and tries again.
                continue
            tree = self._trees[descriptor] = Tree(channel)
            self._poll.add(descriptor)
            if descriptor < max(descriptor_limit() - _SPARE, _SPARE):
                self._hear(tree)
            else:
                # The kernel gives out the lowest free number, so all below are in use.
                # The few that are left are for the work on the trees that exist.
                tree.gone = True
                self._tell(tree, f"failed {errno.EMFILE} program")
                self._close(tree)
        return bool(data)

    def _hear(self, tree: Tree) -> None:
        try:
            self._listen(tree)
        except OSError:  # Our own work failed. The data is still there to read.
            self._failed = True

    def _listen(self, tree: Tree) -> None:
        try:
            data = tree.channel.recv(_READ)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._abandon(tree)
        elif tree.pid:
            tree.wishes += data
            self._wishing.add(tree)
        else:
            tree.request += data
            if (parts := split_request(tree.request)) is not None:
                head, env, wishes = parts
                tree.request.clear()
                self._start(tree, head, env)
                if wishes:
                    tree.wishes = wishes
                    self._wishing.add(tree)

    def _start(self, tree: Tree, head: bytes, block: bytes) -> None:
        if block != self._environment[0]:
            self._environment = block, decode_environment(block)
        env = self._environment[1]
        request = decode_request(head)
        env[self._variable] = tree.marker = request.marker
        tree.since = _ticks_since_boot()
        try:
            tree.mark = request.mark
            started = start(request, env, tree.mark)
        except OSError as error:
            tree.gone = True
            self._tell(tree, f"failed {error.errno} {error.filename}")
            self._close(tree)
            return
        tree.begin(started)
        self._members.begin(tree)
        line = f"started {tree.pid} {tree.session} {self._me}"
        self._tell(tree, line, started.streams)

    def _obey(self) -> None:
        """Grant all wishes. One that fails does not hold up the others."""
        if not self._wishing:
            return
        wishing, self._wishing = self._wishing, set()
        # One look, after all were heard: it reads all of /proc, and a stop of many
        # trees would read that as often as there are trees.
        strangers = cache(self._members.strangers)
        for tree in wishing:
            wishes, tree.wishes = tree.wishes, b""
            for wish in wishes:
                try:
                    # Before: an end that came earlier must not be reported as the
                    # result of this wish.
                    self._reap_leader(tree)
                    if not tree.gone:
                        self._grant(tree, wish, strangers)
                except OSError:
                    tree.wishes += bytes([wish])
                    self._wishing.add(tree)
                    self._failed = True

    def _grant(
        self, tree: Tree, wish: int, strangers: Callable[[], Mapping[Tree, list[int]]]
    ) -> None:
        if wish == ord("m"):
            members = {*filter(is_alive, self._members.descendants(tree))}
            members.update(strangers().get(tree, ()))
            pids = sorted(members)
            self._tell(tree, " ".join(["members", *map(str, pids)]))
        elif wish == ord("t"):
            tree.stopped = True
            self._signal(
                tree, strangers().get(tree, ()), signal.SIGTERM, signal.SIGCONT
            )
        elif wish == ord("k"):
            self._doom(tree)

    def _signal(self, tree: Tree, strangers: Iterable[int], *numbers: int) -> None:
        # Groups of descendants lie within the tree. The group of a stranger may have
        # others in it, so a stranger is signalled alone.
        descendants = self._members.descendants(tree)
        for number in numbers:
            signal_groups(descendants, number)
            for pid in {*strangers}.difference(descendants):
                send_signal(pid, number)

    def _abandon(self, tree: Tree) -> None:
        self._reap_leader(tree)
        if tree.gone:
            return
        if tree.pid:
            del self._trees[tree.descriptor]
            self._attend(tree)
            self._doom(tree)
        else:
            tree.gone = True
            self._tell(tree, "gone")
            self._close(tree)

    def _doom(self, tree: Tree) -> None:
        tree.stopped = True
        tree.pause = _FIRST_PAUSE
        tree.next_sweep = 0.0
        self._doomed.add(tree)

    def _close(self, tree: Tree) -> None:
        """Close the channel of a tree, once the last report is sent."""
        self._trees.pop(tree.descriptor, None)
        self._attend(tree)

    # What the runtime hears

    def _tell(self, tree: Tree, line: str, descriptors: Sequence[int] = ()) -> None:
        tree.tell(line, descriptors)
        if tree.unsent:
            self._attend(tree)

    def _send(self, tree: Tree) -> None:
        unsent = len(tree.unsent)
        tree.send()
        if len(tree.unsent) == unsent:
            # Poll says that there is room, yet nothing was sent: memory is short. A
            # failure brings a pause, without which we would spin.
            self._failed = True
        self._attend(tree)

    def _attend(self, tree: Tree) -> None:
        """Watch a channel for the events that matter now, or close it."""
        events = 0
        if tree.descriptor in self._trees:
            events |= select.POLLIN
        if tree.unsent:
            events |= select.POLLOUT
            self._owing[tree.descriptor] = tree
        else:
            self._owing.pop(tree.descriptor, None)
        if events:
            self._poll.add(tree.descriptor, events)
        else:
            self._poll.discard(tree.descriptor)
            if tree.gone:
                tree.channel.close()

    # What ends

    def _reap(self) -> bool:
        """Take the exits of children that have ended, and wake up again if there
        may be more. Return whether a child is left."""
        try:
            return self._take_exits()
        finally:
            self._tell_exits()

    def _take_exits(self) -> bool:
        for _ in range(_MOST_EXITS):
            try:
                ended = os.waitid(os.P_ALL, 0, _LOOK)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            self._take_exit(ended)
        try:
            self._waker.send(b"\0")
        except BlockingIOError:  # Its buffer is full, so it wakes up anyway.
            pass
        return True

    def _reap_leader(self, tree: Tree) -> None:
        if tree.pid in self._members.leaders:
            ended = os.waitid(os.P_PID, tree.pid, _LOOK)
            if ended is not None:
                try:
                    self._take_exit(ended)
                finally:
                    self._tell_exits()

    def _take_exit(self, ended: os.waitid_result) -> None:
        leader = self._members.leaders.get(ended.si_pid)
        orphans = None if leader else self._members.ended_child(ended.si_pid)
        # This reaps it. The tree was looked up before, from the zombie.
        usage = os.wait4(ended.si_pid, 0)[2]
        self._members.leaders.pop(ended.si_pid, None)
        seconds = usage.ru_utime + usage.ru_stime
        if leader is not None:
            self._leader_ended(leader, ended.si_code, ended.si_status, seconds)
        elif orphans is not None:
            orphans.add_use(seconds)
            if orphans.unsent:
                self._attend(orphans)
        self._child_ended = True

    def _leader_ended(self, tree: Tree, how: int, status: int, seconds: float) -> None:
        code, number = (status, 0) if how == os.CLD_EXITED else (-1, status)
        line = f"exit {code} {number} {int(tree.stopped)} {seconds:.6f}"
        if tree.has_untold_use():
            line = f"{tree.use()}\n{line}"
        self._members.ended.add(tree)
        self._exits[tree] = line

    def _tell_exits(self) -> None:
        """Tell of the leaders that have ended; one look says what they have left."""
        if not self._exits:
            return
        exits, self._exits = self._exits, {}
        orphans: Mapping[Tree, list[int]] | None = None
        try:
            orphans = self._members.orphans()
        except OSError:
            self._failed = True
        for tree, line in exits.items():
            # After a stop, strangers must be looked for first: see `_settle`.
            if tree.stopped or orphans is None or tree in orphans:
                self._tell(tree, line)
            else:
                # The usual end. One packet for both lines, so the runtime wakes up once.
                self._forget(tree, f"{line}\ngone")
        if orphans is not None and not self._members.ended:
            # This look was made after all of these exits: it need not be made again.
            self._child_ended = bool(self._doomed)

    def _settle(self) -> None:
        """Kill what is doomed, and report the ended trees of which nothing is left."""
        if not (self._doomed or self._look_wanted or self._child_ended):
            return
        now = time.monotonic()
        due = {tree for tree in self._doomed if tree.next_sweep <= now}
        look = self._look_wanted and self._next_look <= now
        if not (due or look or self._child_ended):
            return
        self._child_ended = self._look_wanted = False
        strangers: Mapping[Tree, list[int]] | None = None
        if due:
            try:
                strangers = self._look_for_strangers()
            except OSError:  # Kill the others all the same.
                self._failed = True
        for tree in due:
            try:
                self._signal(tree, (strangers or {}).get(tree, ()), signal.SIGKILL)
            except OSError:
                self._failed = True
            tree.next_sweep = time.monotonic() + tree.pause
            tree.pause = min(tree.pause * 2, 0.5)
        if self._doomed:
            # At each event, due or not: in a chain that forks and ends, the end of one
            # link brings us the next, and a pause would let it run on.
            self._members.chase(self._doomed)
        orphans = self._members.orphans()
        for tree in [*self._members.ended]:
            if tree in orphans:
                if not HAS_PROC:
                    self._look_in(_NO_EVENT)
            elif not tree.stopped:
                self._forget(tree)
            elif strangers is None and not self._may_look(tree):
                self._look_wanted = True
            else:
                if strangers is None:
                    strangers = self._look_for_strangers()
                tree.looked = True
                if tree in strangers:
                    self._look_in(_NO_EVENT)
                else:
                    self._forget(tree)

    def _look_for_strangers(self) -> Mapping[Tree, list[int]]:
        began = time.monotonic()
        strangers = self._members.strangers()
        # A look reads all of /proc: spend at most a tenth of the time on looks.
        end = time.monotonic()
        self._next_look = end + 10 * (end - began)
        return strangers

    def _may_look(self, tree: Tree) -> bool:
        first = tree in self._doomed and not tree.looked
        return first or self._next_look <= time.monotonic()

    def _look_in(self, seconds: float) -> None:
        self._look_wanted = True
        self._next_look = max(self._next_look, time.monotonic() + seconds)

    def _forget(self, tree: Tree, line: str = "") -> None:
        if not line:
            line = f"{tree.use()}\ngone" if tree.has_untold_use() else "gone"
        tree.gone = True
        self._members.forget(tree)
        self._doomed.discard(tree)
        self._tell(tree, line)
        self._close(tree)


def _ticks_since_boot() -> int:
    if sys.platform == "linux":
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    return 0
