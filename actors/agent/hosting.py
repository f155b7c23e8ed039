"""What the host of an agent needs of it, and those who write one do not.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised.
"""

from __future__ import annotations

from ._breaker import Breaker as Breaker
from ._conversation import settled as settled
from ._errors import InboxClosed as InboxClosed
from ._errors import InboxFull as InboxFull
from ._inbox import INBOX_LIMIT as INBOX_LIMIT
from ._inbox import INBOX_SIZE as INBOX_SIZE
from ._inbox import Inbox as Inbox
from ._json import from_data as from_data
from ._json import to_data as to_data
from ._report import AgentReport as AgentReport
from ._running import CONTINUE as CONTINUE
