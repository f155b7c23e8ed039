"""Models for agents: the loop around a model, and the places that models come from.

`loop` makes the ``run`` of an `actors.agent.Agent` from a `Model`. There are these
models. Each has a module that imports what it needs only when it is used:

- `actors.models.anthropic` and `actors.models.openai`: the official SDKs.
- `actors.models.scripted`: a file of turns. It needs no key.
"""

from __future__ import annotations

from .._kernel.public import publish as _publish
from ._loop import loop
from ._model import Model, ModelFailed

# For help(), which shows only what a module defines itself or lists here.
__all__ = ["Model", "ModelFailed", "loop"]

_publish(globals())
