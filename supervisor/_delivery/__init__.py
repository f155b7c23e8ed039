"""From the record of an end to whoever acknowledges it. It knows no tasks."""
