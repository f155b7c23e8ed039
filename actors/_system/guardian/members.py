"""Which processes belong to which tree."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Collection, Mapping

from .ending import chase
from .proc import (
    HAS_PROC,
    Children,
    all_pids,
    descendants_of,
    files_of,
    group_exists,
    look_at,
    mark_of,
    send_signal,
    variable_of,
)
from .tree import Tree


class Members:
    """The trees that have not ended, and what is known of their processes."""

    def __init__(self, variable: bytes) -> None:
        self._variable = variable
        self.leaders: dict[int, Tree] = {}
        """By pid, until the leader is reaped."""
        self.ended: set[Tree] = set()
        """Trees whose leader has ended and of which something may be left."""
        self._by_mark: dict[int, Tree] = {}
        self._holders: set[int] = set()
        """Children of ours that hold a terminal for a tree: see `starting`."""
        self._owners: dict[int, Tree | None] = {}
        """The trees of the other children that we have seen, until they are reaped."""
        if HAS_PROC:
            self.children = Children()

    def begin(self, tree: Tree) -> None:
        """Add a tree that was started."""
        self.leaders[tree.pid] = tree
        self._by_mark[tree.mark] = tree
        if tree.holder is not None:
            self._holders.add(tree.holder)

    def forget(self, tree: Tree) -> None:
        """Remove a tree of which nothing is left."""
        self.ended.discard(tree)
        self._by_mark.pop(tree.mark, None)
        # Before its holder is killed: at the end of a session's leader the kernel
        # would throw away output that is not yet read.
        tree.let_output_end()
        if tree.holder is not None:
            send_signal(tree.holder, signal.SIGKILL)

    def ended_child(self, pid: int) -> Tree | None:
        """Return the tree of an orphan that has ended and is not yet reaped."""
        if pid in self._holders:
            self._holders.discard(pid)
            return None
        owner = self._owner(pid)
        del self._owners[pid]
        return owner

    def orphans(self) -> Mapping[Tree, list[int]]:
        """Return the children of ours, dead ones included, that trees have left.

        A tree whose leader was reaped and that is not among them is gone: whatever
        is alive has an ancestor that is a child of ours, and the list of children is
        complete (see `Children`).
        """
        found: defaultdict[Tree, list[int]] = defaultdict(list)
        if HAS_PROC:
            for pid in self.children():
                if self._is_orphan(pid) and (owner := self._owner(pid)) is not None:
                    found[owner].append(pid)
        else:
            for tree in self.ended:
                if group_exists(tree.pid):
                    found[tree].append(tree.pid)
        return dict(found)

    def descendants(self, tree: Tree) -> list[int]:
        """Return what descends from a leader. Some of it may have ended already."""
        roots = [*self.orphans().get(tree, ())]
        if tree.pid in self.leaders:
            roots.append(tree.pid)
        if not HAS_PROC:
            return roots
        found = descendants_of(roots)
        # A process that has lost its parent during this look is a child of ours now,
        # and was perhaps missed: look at these once more.
        found += descendants_of({*self.orphans().get(tree, ())}.difference(found))
        return [*{*found}]

    def strangers(self) -> Mapping[Tree, list[int]]:
        """Return processes that carry a tree's variable but are not known members."""
        found: defaultdict[Tree, list[int]] = defaultdict(list)
        if not HAS_PROC:
            return {}
        trees = {tree.marker: tree for tree in self._present()}
        for pid in all_pids():
            value = variable_of(pid, self._variable)
            tree = None if value is None else trees.get(value)
            if (
                tree is not None
                and self._owners.get(pid) is None
                and mark_of(pid) not in self._by_mark
                and (seen := look_at(pid)) is not None
                and seen.alive
            ):
                found[tree].append(pid)
        return dict(found)

    def chase(self, trees: Collection[Tree]) -> None:
        """Kill the orphans of trees, as fast as they come."""
        if HAS_PROC:
            chase(
                self.children,
                lambda pid: self._is_orphan(pid) and self._owner(pid) in trees,
            )

    def _is_orphan(self, pid: int) -> bool:
        return pid not in self.leaders and pid not in self._holders

    def _present(self) -> set[Tree]:
        return {*self.leaders.values(), *self.ended}

    def _owner(self, pid: int) -> Tree | None:
        """Return the tree of a child of ours that is neither leader nor holder.

        The answer is kept: a process that nothing ties to its tree can tie itself to
        it again only by taking the tree's variable, and `strangers` looks for that.
        """
        if pid not in self._owners:
            owner = self._by_mark.get(mark_of(pid) or 0)
            if owner is None and HAS_PROC:
                owner = self._likely_owner(pid)
            self._owners[pid] = owner
        return self._owners[pid]

    def _likely_owner(self, pid: int) -> Tree | None:
        """Return the tree of a child that has lost its mark, if that is certain."""
        trees = self._present()
        session = os.getsid(pid)
        marker = variable_of(pid, self._variable)
        for tree in trees:
            if tree.session == session or tree.marker == marker:
                return tree
        outputs = {tree.output: tree for tree in trees}
        for name in files_of(pid):
            if name in outputs:
                return outputs[name]
        # It can belong only to a tree that began before it.
        seen = look_at(pid)
        possible = [it for it in trees if seen is None or it.since <= seen.started]
        # If none is certain, it is killed only when the guardian ends.
        return possible[0] if len(possible) == 1 else None
