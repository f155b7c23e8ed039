"""A guardian some of whose system calls fail.

It is run in the place of the real one. What it does is the real one's code; but a
call NAME fails while there is a symbolic link NAME in the directory ``FAULTS``. It
leads to ``ERRNO SKIPPED``: so many calls succeed, one fails, and the link is gone;
or to ``ERRNO always``. And what a tree is told fits into a few packets.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FAULTS = Path(os.environ.get("FAULTS", os.devnull))
_skipped: Counter[str] = Counter()


def order(name: str, number: int, skipped: int | str = 0) -> Path:
    """Let a call of the guardians fail; return what is gone when it has."""
    link = Path(os.environ["FAULTS"], name)
    link.symlink_to(f"{number} {skipped}")
    return link


def _faulty(place: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(place, name)

    def call(*args: Any, **options: Any) -> Any:
        try:
            number, skipped = os.readlink(_FAULTS / name).split()
        except OSError:
            return real(*args, **options)
        if skipped != "always":
            _skipped[name] += 1
            if _skipped[name] <= int(skipped):
                return real(*args, **options)
            del _skipped[name]
            os.unlink(_FAULTS / name)
        raise OSError(int(number), os.strerror(int(number)))

    setattr(place, name, call)


def _main() -> None:
    sys.path.append(str(Path(__file__).absolute().parents[3] / "actors" / "_system"))
    from guardian import serving, starting  # type: ignore[import-not-found]
    from guardian.__main__ import main  # type: ignore[import-not-found]

    for name in ("open", "pread", "listdir", "waitid", "wait4", "chdir"):
        _faulty(os, name)
    for name in ("prctl", "set_mark", "_use_few_descriptors"):
        _faulty(starting, name)
    for name in ("recv", "recvmsg", "send", "sendmsg"):
        _faulty(socket.socket, name)
    _faulty(serving.Poll, "wait")
    tree = serving.Tree

    def narrow(channel: socket.socket) -> Any:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return tree(channel)

    serving.Tree = narrow
    main()


if __name__ == "__main__":
    _main()
