"""What `actors` and `supervisor` share and programs do not need.

It is for these two packages alone, so it has no ``__all__`` and no name of it is
promised: how arguments are checked, how public names say where they are from, what a
stranger's class is called, how values are compared and shown, and when the garbage
collector looks less often.
"""

from __future__ import annotations

from ._kernel.checks import by as by
from ._kernel.checks import check_all as check_all
from ._kernel.checks import check_number as check_number
from ._kernel.checks import check_one_of as check_one_of
from ._kernel.checks import check_text as check_text
from ._kernel.checks import check_type as check_type
from ._kernel.checks import check_whole as check_whole
from ._kernel.checks import is_number as is_number
from ._kernel.checks import of as of
from ._kernel.class_name import class_name as class_name
from ._kernel.collector import fewer_collections as fewer_collections
from ._kernel.errors import require_trio as require_trio
from ._kernel.public import publish as publish
from ._kernel.values import define as define
from ._kernel.values import frozen as frozen
from ._kernel.values import plain as plain
