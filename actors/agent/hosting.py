"""What the host of an agent needs of it, and those who write one do not.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised.
"""

from __future__ import annotations

from ._breaker import Breaker as Breaker
from ._conversation import opened as opened
from ._conversation import settled as settled
from ._conversation import since_compaction as since_compaction
from ._errors import InboxClosed as InboxClosed
from ._errors import InboxFull as InboxFull
from ._fork import fork as fork
from ._fork import handed_down as handed_down
from ._inbox import INBOX_LIMIT as INBOX_LIMIT
from ._inbox import INBOX_SIZE as INBOX_SIZE
from ._inbox import Inbox as Inbox
from ._json import from_data as from_data
from ._json import to_data as to_data
from ._plan import TODO_STATUSES as TODO_STATUSES
from ._plan import TODO_WRITE as TODO_WRITE
from ._plan import PlanReader as PlanReader
from ._plan import read_todos as read_todos
from ._report import AgentReport as AgentReport
from ._running import CONTINUE as CONTINUE
