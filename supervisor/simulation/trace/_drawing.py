"""Trees of what has a name, a parent and a life: pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Node:
    """A task, a supervisor or a child in a tree."""

    id: str
    name: str
    parent: str | None = None
    began: float = 0.0
    ended: float | None = None
    """None if it had not ended."""
    exit: str = ""
    """How it ended, where that is known."""


def tree(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Return nodes as JSON has a tree: each with its ``children``."""
    made: dict[str, dict[str, Any]] = {}
    roots: list[dict[str, Any]] = []
    for node in nodes:
        it = made[node.id] = {**attrs.asdict(node), "children": []}
        (made[node.parent]["children"] if node.parent in made else roots).append(it)
    return roots


def mermaid(nodes: Iterable[Node]) -> str:
    """Return nodes as a flowchart of Mermaid."""
    lines = ["graph TD"]
    for node in nodes:
        label = node.name.replace("&", "#amp;").replace('"', "#quot;")
        label = " ".join(label.split())
        lines.append(f'  {node.id}["{label}"]')
        if node.parent is not None:
            lines.append(f"  {node.parent} --> {node.id}")
    return "\n".join(lines)


def dot(nodes: Iterable[Node]) -> str:
    """Return nodes as a graph of Graphviz."""
    lines = ["digraph tree {"]
    for node in nodes:
        lines.append(f"  {json.dumps(node.id)} [label={json.dumps(node.name)}];")
        if node.parent is not None:
            lines.append(f"  {json.dumps(node.parent)} -> {json.dumps(node.id)};")
    return "\n".join([*lines, "}"])
