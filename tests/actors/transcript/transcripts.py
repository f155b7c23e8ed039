"""What the tests of transcripts share: a store with its writer, and messages."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from actors.agent import AssistantMessage, Message, ToolAnswer, ToolUse, UserMessage
from actors.env import Env, real_env
from actors.testing import fake_env
from actors.transcript import TranscriptStore
from actors.transcript.hosting import transcript_writer
from supervisor.tree import child, open_supervisor

ID = "a0000001"


@attrs.frozen
class Recorder:
    """A store, the writer of which runs, and what it has warned of."""

    store: TranscriptStore
    env: Env
    warnings: list[tuple[str, str]]

    async def record(
        self, *messages: Message, agent_id: str = ID, **facts: Any
    ) -> None:
        log = self.store.open_log(agent_id, **facts)
        for message in messages:
            log.append(message)
        await log.flush()
        log.close()

    async def messages(self, agent_id: str = ID) -> list[Any]:
        transcript = await self.store.load(agent_id)
        assert transcript is not None
        return transcript.messages

    def lines(self, agent_id: str = ID) -> list[dict[str, Any]]:
        path = self.store.transcript_file(agent_id)
        size = self.env.files.size(path) or 0
        data = self.env.files.read_at(path, 0, size)
        return [json.loads(line) for line in data.split(b"\n") if line]


@asynccontextmanager
async def recorder(
    directory: Path | None = None, env: Env | None = None, **options: Any
) -> AsyncGenerator[Recorder, None]:
    """Have a store in ``directory``, or without one in memory."""
    if env is None:
        env = fake_env({}) if directory is None else real_env()
    where = env.files.make_directory(directory or Path("/tasks"))
    warnings: list[tuple[str, str]] = []
    store = TranscriptStore(
        where, env, lambda *warning: warnings.append(warning), **options
    )
    with trio.fail_after(60):
        async with open_supervisor([child("transcripts", transcript_writer, store)]):
            yield Recorder(store, env, warnings)


def rounds(count: int) -> list[Message]:
    """Return a conversation with so many rounds of a tool, and an answer."""
    conversation: list[Message] = [UserMessage("Count them.")]
    for number in range(count):
        use = ToolUse(f"t{number}", "Bash", {"command": f"ls {number}"})
        conversation += [
            AssistantMessage(f"I look at {number}.", (use,)),
            UserMessage(
                tool_answers=(ToolAnswer(f"t{number}", f"{number} files"),),
                origin="tools",
            ),
        ]
    return [*conversation, AssistantMessage("They are many.")]
