"""The kernel: an async function becomes an actor with a mailbox, a reference and
exactly one exit an incarnation.

Its faces are `actors`, `actors.lowlevel` and `actors.house`.
"""

# General layout:
# mailbox        a queue of messages
# ref            what one holds of an actor, and what answers a question
# actor          the loop of an actor, and the cell that its supervisor sees
# exit status    how an incarnation ended; how a task is, and the guard of that
# errors         what actors raise
# checks public rare
#                arguments, the module that a public name is from, fields that few have
