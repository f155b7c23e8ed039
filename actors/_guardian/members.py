"""Which processes belong to which tree."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable

from .ending import chase
from .proc import (
    HAS_PROC,
    LastPid,
    Seen,
    group_exists,
    holds,
    look_at,
    look_at_processes,
    mark_of,
    read,
    send_signal,
    variable_of,
)
from .tree import Tree

_KILL = 9
_ROUNDS = 4
_MANY = 256
"""New pids above which reading all of ``/proc`` is cheaper."""


class Members:
    """The trees that are there, and what is known of their processes."""

    def __init__(self, variable: bytes) -> None:
        self._variable = variable
        self._me = os.getpid()
        self.leaders: dict[int, Tree] = {}
        """By pid, until the leader is reaped."""
        self.ended: set[Tree] = set()
        """Trees whose leader has ended and of which something may be left."""
        self._holders: set[int] = set()
        """Children of ours that hold a terminal for a tree."""
        self._known: dict[int, tuple[int, Tree | None]] = {}
        """Start and tree of each descendant, but for the leaders; some may have
        ended."""
        self._pending: dict[int, float] = {}
        """New pids without a process: one may be about to appear. And until when."""
        self._own: set[int] = set()
        """Leaders started since the last count."""
        if HAS_PROC:
            self._newest = LastPid()
        self._last_pid = -1
        self._counted = 0.0
        # At the rate of 16,384 forks a second.
        self._horizon = int(read("/proc/sys/kernel/pid_max", 64) or 0) / 16384

    def begin(self, tree: Tree) -> None:
        """Take notice of a tree that was started."""
        self.leaders[tree.pid] = tree
        self._own.add(tree.pid)
        if tree.holder is not None:
            self._holders.add(tree.holder)

    def forget(self, tree: Tree) -> None:
        """Take notice that nothing of a tree is left."""
        self.ended.discard(tree)
        if tree.holder is not None:
            send_signal(tree.holder, _KILL)

    def ended_child(self, pid: int) -> Tree | None:
        """Return the tree of an orphan that has ended and is not yet reaped."""
        if pid in self._holders:
            self._holders.discard(pid)
            return None
        if pid in self._known:
            return self._known.pop(pid)[1]
        mark = mark_of(pid)
        return next((tree for tree in self._present() if tree.mark == mark), None)

    def look(
        self, *, everywhere: bool, due: Collection[Tree] = ()
    ) -> defaultdict[Tree, list[Seen]]:
        """Return the living members of every tree.

        Args:
            everywhere: look also among processes that are no descendants of
                ours, for the marker.
            due: orphans of these are killed as soon as they are seen: what
                forks on and on does not live until the end of a look.
        """
        members: defaultdict[Tree, list[Seen]] = defaultdict(list)
        if not HAS_PROC:
            for one in self._present():
                if group_exists(one.pid):
                    pid = one.pid
                    seen = Seen(pid, self._me, pid, pid, one.since, True, 0, 0)
                    members[one].append(seen)
            return members
        before = self._newest()
        trees = self._present()
        others: dict[int, Seen] = {}
        children: defaultdict[int, list[tuple[Seen, Tree | None]]] = defaultdict(list)
        for seen in look_at_processes():
            tree: Tree | None = None
            if seen.parent == self._me and seen.alive and seen.pid not in self._holders:
                tree = self.leaders.get(seen.pid) or self._tree_of_orphan(seen)
                if tree is not None and tree in due:
                    send_signal(seen.pid, _KILL)
            children[seen.parent].append((seen, tree))
            others[seen.pid] = seen
        known: dict[int, tuple[int, Tree | None]] = {}
        found = children[self._me]
        while found:
            seen, tree = found.pop()
            del others[seen.pid]
            if seen.pid not in self.leaders and seen.pid not in self._holders:
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

    def is_left(self, tree: Tree) -> bool | None:
        """Tell whether a descendant of a leader that has ended is left.

        None when processes come and go too quickly to tell.
        """
        if not HAS_PROC:
            return group_exists(tree.pid)
        for _ in range(_ROUNDS):
            if not self._has_child():
                return False
            self._count(fully=not self.leaders and not self._known)
            for pid, (started, owner) in [*self._known.items()]:
                if owner is tree:
                    seen = look_at(pid)
                    if seen is not None and seen.alive and seen.started == started:
                        return True
                    if seen is None or seen.started != started:
                        del self._known[pid]
            # What ended meanwhile may have forked meanwhile.
            if self._newest() == self._last_pid:
                return False
        return None

    def is_foreign(self, seen: Seen) -> bool:
        """Tell whether a member does not descend from us."""
        return HAS_PROC and seen.pid not in self._known and seen.pid not in self.leaders

    def signal(self, members: Iterable[Seen], number: int) -> None:
        """Signal members; descendants by group, so that no fork slips through.

        A group lies within one session, and a session of a descendant within
        one tree. That does not hold for a foreign process.
        """
        for target in {s.pid if self.is_foreign(s) else -s.group for s in members}:
            send_signal(target, number)

    def chase(self, tree: Tree) -> None:
        """Kill the newest orphans of a tree, as fast as they come."""
        chase(
            self._newest,
            lambda seen: (
                seen.pid not in self.leaders
                and seen.pid not in self._holders
                and self._tree_of_orphan(seen) is tree
            ),
        )

    def _present(self) -> set[Tree]:
        return {*self.leaders.values(), *self.ended}

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
            self.look(everywhere=False)
            return
        for pid in [*self._pending, *range(self._last_pid + 1, last + 1)]:
            if pid in self.leaders or pid in self._own or pid in self._holders:
                continue
            seen = look_at(pid)
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

    def _origin(self, seen: Seen) -> tuple[bool, Tree | None]:
        """Tell whether a process descends from us, and its tree."""
        ancestor: Seen | None = seen
        while ancestor is not None:
            if ancestor.pid in self.leaders:
                return True, self.leaders[ancestor.pid]
            if ancestor.pid in self._known:
                return True, self._known[ancestor.pid][1]
            if ancestor.parent == self._me:
                return True, self._tree_of_orphan(ancestor)
            if ancestor.parent <= 1:
                return False, None
            parent = look_at(ancestor.parent)
            if parent is None:  # It ended just now; who is the parent instead?
                parent = look_at(ancestor.pid)
            ancestor = parent
        return False, None  # It has ended itself; its children are newer.

    def _tree_of_orphan(self, seen: Seen) -> Tree | None:
        """Return the tree of an adopted process, or None if that is not certain."""
        started, known = self._known.get(seen.pid, (-1, None))
        if started == seen.started and known is not None:
            return known
        trees = self._present()
        mark = mark_of(seen.pid)
        for tree in trees:
            if tree.mark == mark:
                return tree
        marker = variable_of(seen.pid, self._variable)
        for tree in trees:
            if tree.session == seen.session or tree.marker == marker:
                return tree
        for tree in trees:
            if holds(seen.pid, [tree.output]):
                return tree
        # At the first look it can only have come from a tree that is there.
        possible = [tree for tree in trees if tree.since <= seen.started]
        if started != seen.started and len(possible) == 1:
            return possible[0]
        return None  # It ends when the guardian closes.
