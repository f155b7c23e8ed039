"""What the host of agents needs of their conversations, and those who read them do not.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised.
"""

from __future__ import annotations

from ._log import STORE_LIMIT as STORE_LIMIT
from ._log import TranscriptLog as TranscriptLog
from ._meta import META_LIMIT as META_LIMIT
from ._meta import MOST_RESUMES as MOST_RESUMES
from ._meta import decode_meta as decode_meta
from ._meta import encode_meta as encode_meta
from ._meta import keeps as keeps
from ._reading import READ_LIMIT as READ_LIMIT
from ._reading import Transcript as Transcript
from .writer import transcript_writer as transcript_writer
