"""From the record of an end to whoever acknowledges it. It knows no tasks."""

# General layout:
# outbox         every notification that is not acknowledged
# readers        a reader's view of it
# turns          when a parent is busy, and with what
# wakes          what wakes one that is idle, and in which words
# display        what people are shown, folded
