"""What cattrs makes of an agent's events. Making it takes a while, so it is imported
where the first event is written or read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cattrs.preconf.orjson import make_converter
from cattrs.strategies import configure_tagged_union

from ._events import AgentEvent, AssistantMessage, UserMessage

converter = make_converter()
# What JSON can hold stays as it is, however deep: `encodable_data` looks at it.
converter.register_unstructure_hook_func(
    lambda kind: kind in (dict, list, Mapping[str, Any]), lambda data: data
)
# Before the other, which contains it.
configure_tagged_union(AssistantMessage | UserMessage, converter, tag_name="type")
configure_tagged_union(AgentEvent, converter, tag_name="type")
