"""What keeps actors running, and tells about it.

Public names come from the modules:

- `supervisor.tree`: supervisors of actors.
- `supervisor.runtime`: background tasks.
- `supervisor.agents`, `.permissions`, `.hooks`, `.definitions`, `.settings_file`:
  what agents may do.
- `supervisor.tools`, `.attachments`, `.settings`, `.schedule`: what a host gives its
  model.
- `supervisor.lowlevel`: for a host that is a whole program.

`supervisor.cli` is the command `trio-supervisor`.

Nothing but this docstring may stand here. The package shares its import name
with supervisord: where both are installed, the `__init__` of whichever came
last is the one on disk, and neither may depend on its own.
"""
