"""The guardian: a small process that starts process trees and outlives its parent.

It is run as a script (`__main__`), alone: it imports the standard library only,
so that it starts fast and depends on no path. A runtime starts one, hands it one
socket per tree, and may then be killed at any moment; the guardian ends whatever
is left, until it has no child any more, and then itself.

It rests on two properties of Linux. As a *subreaper* it becomes the parent of every
descendant whose own parent ended, so no double fork escapes, and the death of
every orphan is an event. A pidfd of its parent reports the parent's death, even if
the parent forked and its sockets live on in a child.

A member is known by its parents, by its session, by a variable in its
environment, and by a mark (`proc.set_mark`) that none of its descendants loses
by accident.

The guardian itself may be killed, too. So it is two processes: an outer one that
only waits, and the inner one, its child, that works. If the inner one dies, what
it had started becomes the outer one's, which ends it; if the outer one dies, the
inner one ends everything. A stopped inner one is continued by the outer one, and
one that a tracer holds is killed. The outer one waits for the runtime's end, too;
at SIGCHLD it looks whether the inner one is held, because no event reports that.

The list of the guardian's own children says whether anything is left of a tree whose
leader has ended. Every living process of a tree has an ancestor among them. A child
that has ended stays in the list until the guardian, which has one thread, reaps it. A
new child is added at the end. So what the list does not show is gone, and what it
shows ends with an event. Other users' processes do not matter, whether ``/proc``
shows them or not. All of ``/proc`` is read only to find processes that carry a tree's variable
and do not descend from it: at each stop, and once more when nothing else is left.

Where there is no ``/proc`` of our own processes (macOS; a PID namespace that still
shows another one's), a tree is the process group of its leader, the guardian is one
process, and only the end of the control socket reports the parent's death.

The protocol. On the control socket each byte carries the descriptor of one
tree's socket. On that socket the runtime first writes a request (see
`requests`), then one letter per wish: ``t`` terminate, ``k`` kill, ``m``
members. The end of the stream means: kill the tree and forget it. The guardian
writes lines: ``started PID SESSION GUARDIAN``, with the descriptors of the output, of
an input to write to, and of a separate stderr; or ``failed ERRNO WHAT``, where WHAT is
``cwd``, ``program``, ``terminal``, ``nice`` or ``rlimit NAME``;
``exit CODE SIGNAL AFTER_STOP CPU_SECONDS``; ``used CPU_SECONDS``, the sum so far
of what orphans used that have ended; ``members PID...``; ``lost``: the guardian
is about to die; ``gone``, the last one, after which it closes the socket.
"""
