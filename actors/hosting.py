"""What the host of tasks needs of shells, output and processes, and programs do not.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised.
"""

from __future__ import annotations

from ._kernel.ref import ActorState as ActorState
from .env import FileEntry as FileEntry
from .env import LogFile as LogFile
from .env import Process as Process
from .env import ProcessExit as ProcessExit
from .env import ProcessUsage as ProcessUsage
from .env import Share as Share
from .output import older_file as older_file
from .output._ledger import Ledger as Ledger
from .output._quota import DiskQuota as DiskQuota
from .shell._command import exit_words as exit_words
from .shell._command import spawn_shell as spawn_shell
from .work import Input as Input
