"""Models for agents: the loop round one, and where a model may come from.

`loop` makes the ``run`` of an `actors.agent.Agent` of a `Model`. Of models there
are these, each in a module that imports what it needs only when it is used:

- `actors.models.anthropic` and `actors.models.openai`: the official SDKs.
- `actors.models.scripted`: a file of turns, for which no key is needed.
"""

from __future__ import annotations

from .._kernel.public import publish as _publish
from ._loop import loop
from ._model import Model, ModelFailed

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["Model", "ModelFailed", "loop"]

_publish(globals())
