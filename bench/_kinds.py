"""The kinds of animals in `bench.zoo`."""

from __future__ import annotations

import shlex
import sys

from ._animals import LIFE, Animal

_DOUBLE_FORK = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvpe("sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""

# From /proc/self/stat: where the environment is that others read.
_OVERWRITE = f"""
import ctypes, signal
signal.alarm({LIFE})
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(") ")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
signal.pause()
"""

_FORK_CHAIN = f"""
import os, time
os.setsid()
end = time.monotonic() + {LIFE}
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.004)
"""

_STOPPED = """
import os, signal, sys, time
if sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(float(sys.argv[1]))
"""


def _python(program: str) -> str:
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(program)} {{word}}"


PLAIN = [
    Animal(name="a plain command", setup="", others=0),
    Animal(name="env -i setsid", setup="env -i setsid sleep {word} &", others=1),
    Animal(name="a double fork", setup=_python(_DOUBLE_FORK), others=1),
    Animal(name="nohup", setup="nohup sleep {word} >/dev/null 2>&1 &", others=1),
    Animal(
        name="ignored TERM, HUP, INT",
        setup="trap '' TERM HUP INT; setsid sleep {word} &",
        others=1,
        deaf=True,
    ),
    Animal(
        name="a grandchild on the pipe",
        setup="(setsid sleep {word} &); (sleep {word} &)",
        others=2,
    ),
    Animal(
        name="an overwritten environment",
        setup=f"(setsid {_python(_OVERWRITE)} &)",
        others=1,
    ),
    # Two generations, as the observer looks for longer than one lives.
    Animal(name="a fork chain", setup=f"env -i {_python(_FORK_CHAIN)} &", others=2),
    Animal(
        name="a stopped child",
        setup=f"{_python(_STOPPED)} & (setsid {_python(_STOPPED)} deaf &)",
        others=2,
    ),
    Animal(
        name="a sub-shell in the background",
        setup="(trap '' TERM; sleep {word}; sleep {word}) &",
        others=1,
    ),
]


def _beast(kind: str, *arguments: str) -> str:
    return " ".join(["{beast}", kind, "{word}", *arguments])


WILD = [
    Animal(name="a vfork chain", setup=f"{_beast('vfork-chain')} &", others=1),
    Animal(name="a fork chain in C", setup=f"env -i {_beast('chain')} &", others=1),
    Animal(
        name="a daemon each ms", setup=f"(env -i {_beast('cron', '1')} &)", others=2
    ),
    Animal(name="a cron", setup=f"(setsid {_beast('cron', '10')} &)", others=2),
    Animal(
        name="another user",
        setup="(env -i setpriv --reuid 65533 --clear-groups setsid sleep {word} &)",
        others=1,
        needs=("root", "setpriv", "setsid"),
    ),
    Animal(
        name="a pid namespace",
        setup="(env -i unshare -f -p setsid sleep {word} &)",
        others=2,
        needs=("root", "unshare"),
    ),
    Animal(
        name="a user and a mount namespace",
        setup="(unshare -U -r sleep {word} &); (unshare -m setsid sleep {word} &)",
        others=2,
        needs=("root", "unshare"),
    ),
    Animal(
        name="a pid namespace, a double fork away",
        setup="((env -i setsid unshare -f -p --mount-proc --kill-child"
        " bash -c 'setsid sleep {word} & sleep {word} & wait' {word} &) &)",
        others=3,
        needs=("root", "unshare"),
    ),
    Animal(
        name="strace of a daemon",
        setup="(strace -f -o /dev/null env -i setsid sleep {word} &)",
        others=2,
        needs=("strace",),
    ),
    Animal(name="a tracer of a sibling", setup=f"{_beast('traced')} &", others=2),
    Animal(name="a parent in D", setup=f"(env -i {_beast('vfork')} &)", others=2),
    Animal(
        name="stopped, deaf, apart",
        setup=f"(env -i setsid {_python(_STOPPED)} deaf </dev/null >/dev/null 2>&1 &)",
        others=1,
    ),
    Animal(
        name="without its first thread",
        setup=f"(env -i {_beast('threads')} &)",
        others=1,
    ),
    Animal(name="a name like a line of stat", setup=f"{_beast('name')} &", others=1),
    Animal(
        name="nohup setsid disown",
        setup="nohup setsid sleep {word} </dev/null >/dev/null 2>&1 & disown",
        others=1,
    ),
    Animal(
        name="1,024 closed descriptors", setup=f"env -i {_beast('closed')} &", others=1
    ),
    Animal(
        name="a tmux server",
        setup="cd {directory} && env -u TMUX tmux -S t{word} -f /dev/null new-session -d"
        " sleep {word}",
        others=1,
        needs=("tmux",),
    ),
    Animal(
        name="two that restart each other",
        setup=f"(env -i {_beast('pair')} &)",
        others=2,
    ),
    Animal(
        name="ulimit -u filled",
        # A user of its own: the limit counts all that a user has.
        setup="(setpriv --reuid $((60000 + RANDOM % 5000)) --clear-groups"
        f" {_beast('fill')} &)",
        others=20,
        needs=("root", "setpriv"),
    ),
    Animal(
        name="a holder of the output",
        setup="(env -i setsid sleep {word} 3>&1 </dev/null >/dev/null 2>&1 &)",
        others=1,
    ),
    Animal(name="forks on SIGTERM", setup=f"(env -i {_beast('begets')} &)", others=1),
    Animal(
        name="a writer into its leader's output",
        setup="(setsid bash -c 'for i in {1..3000}; do echo $0 >/proc/$1/fd/1;"
        " sleep 0.02; done' {word} $$ >/dev/null 2>&1 &)",
        others=0,
    ),
    Animal(name="a changing group", setup=f"{_beast('group')} &", others=1),
    Animal(
        name="clone without a signal",
        setup=f"(env -i {_beast('no-signal')} &)",
        others=3,
    ),
    Animal(
        name="CLONE_PARENT",
        setup=f"exec {_beast('sibling')} bash -c {{rest}}",
        others=1,
    ),
    Animal(
        name="a subreaper in between",
        setup=f"(env -i {_beast('subreaper')} &)",
        others=4,
    ),
    Animal(name="pids far apart", setup=f"(env -i {_beast('far-apart')} &)", others=1),
]

ATTACKERS = [
    Animal(
        name="kill -9 of its guardian",
        setup="(env -i setsid sleep {word} &); (sleep 0.1; kill -9 $PPID) &",
        others=0,
        attacks=True,
    ),
    Animal(
        name="SIGSTOP to its guardian",
        setup="setsid sleep {word} & kill -STOP $PPID",
        others=1,
        attacks=True,
    ),
    Animal(
        name="SIGSTOP to both guardians",
        setup="setsid sleep {word} & outer=$(ps -o ppid= -p $PPID);"
        " kill -STOP $outer; kill -STOP $PPID",
        others=1,
        attacks=True,
        needs=("ps",),
    ),
    Animal(
        name="a tracer of its guardian",
        setup=f"{_beast('trace', '$PPID')} &",
        others=1,
        attacks=True,
    ),
]

ANIMALS = [*PLAIN, *WILD, *ATTACKERS]
