"""What becomes of a task, from an order to the record of its end."""

# General layout:
# life           every task of a runtime: entry, start, end; nothing else changes a status
# runs           the runs of one task, which may have several or tasks of its own
# telling        what an end means, and its way to the outbox and the notifier
# progress_notes what a task has done since the last note
# stops          stopping tasks, each with everything below it
# handles        what callers hold of a task; waiting and foreground wait for several or one
# agent_side     what all this asks of whoever knows of agents
# opening        the tree of a runtime
