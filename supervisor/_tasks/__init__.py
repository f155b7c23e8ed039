"""Tasks and the rules about them: kinds, orders, the record and the table, places."""

# General layout:
# kinds          a row for each kind of task
# record         what is known of a task, and the table of all; agent_task: of an agent
# snapshot       a task at one moment, as callers see it
# orders         what a caller wants started, checked before anything is
# places         the caps, who has a place, and who lends one
# reading        the output of a task
# revival        a new run of an agent, until it has proved to run
# task_events json errors
#                what is told, as data and as JSON, and what is raised
