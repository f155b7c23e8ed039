"""What keeps actors running, and tells about it.

Public names come from the modules: `supervisor.tree` (supervisors),
`supervisor.runtime` (background tasks), `supervisor.cli` (the command).

Nothing but this docstring may stand here. The package shares its import name
with supervisord: where both are installed, the `__init__` of whichever came
last is the one on disk, and neither may depend on its own.
"""
