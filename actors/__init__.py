"""What runs: actors, their mailboxes, and the concrete actors of background tasks.

Besides the actors themselves, which are here:

- `actors.shell`: a shell command as a background task.
- `actors.agent`: an agent as a background task, whatever model is behind it.
- `actors.models`: agents' loops for real models and for a script.
- `actors.work`: what a background task is, for those who write their own.
- `actors.output`: where what a task prints is kept.
- `actors.env`: the seam to the operating system.
- `actors.testing`: a world in memory, for tests.
- `actors.probe`: what production code tells a simulator.
- `actors.transcript`: what a directory keeps of agents.
- `actors.lowlevel`: what only a supervisor needs.

The other modules (`house`, `hosting`, `text`, `envelope`, `notifier`, the `hosting` of
`agent` and `transcript`, and `transcript.writer`) are for this package and `supervisor`
alone. Nothing of theirs is promised.
"""

# General layout, from below to above:
#
# probe          almost nothing, but in a simulation; it loads nothing
# _kernel        an async function becomes an actor with a mailbox, a reference and
#                exactly one exit an incarnation; this module and lowlevel are its faces
# text           every rule of text
# env            the seam to the world; _system is the real world behind it
# output         the one writer of a task's output
# work           what a task does, and where it says how that goes
# envelope       the text of an end, and notifier, the actor that writes it
# agent shell    the two kinds of task
# transcript     the one writer of what agents say, and its reader
# models         loops of agents; optional: each of its files has an import of its own
# house hosting  what `supervisor` needs of all these and users do not
# testing        a world in memory
#
# Nothing here knows of restarts, task tables or hosts: that is `supervisor`.

from __future__ import annotations

from ._kernel.actor import Context
from ._kernel.errors import (
    ActorEnded,
    ActorError,
    ActorRestarting,
    ActorStopping,
    ActorUnavailable,
    AskUnanswered,
    ForeignThread,
    Ignore,
    MailboxClosed,
    MailboxFull,
    NotInTrio,
)
from ._kernel.exit import Completed, Exit, Failed, Stopped
from ._kernel.mailbox import Mailbox
from ._kernel.public import publish as _publish
from ._kernel.ref import ActorRef, Reply
from ._kernel.status import Ended, Progress, Progressed, TaskStatus

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "ActorEnded",
    "ActorError",
    "ActorRef",
    "ActorRestarting",
    "ActorStopping",
    "ActorUnavailable",
    "AskUnanswered",
    "Completed",
    "Context",
    "Ended",
    "Exit",
    "Failed",
    "ForeignThread",
    "Ignore",
    "Mailbox",
    "MailboxClosed",
    "MailboxFull",
    "NotInTrio",
    "Progress",
    "Progressed",
    "Reply",
    "Stopped",
    "TaskStatus",
]

_publish(globals())
