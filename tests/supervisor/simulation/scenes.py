"""All scenes in which public operations are struck, by their names."""

from __future__ import annotations

from . import scenes_of_agents, scenes_of_tasks, scenes_of_trees
from .strikes import Scene

SCENES: dict[str, Scene] = {
    getattr(scene, "__name__", ""): scene
    for scene in (
        *scenes_of_trees.SCENES,
        *scenes_of_tasks.SCENES,
        *scenes_of_agents.SCENES,
    )
}
