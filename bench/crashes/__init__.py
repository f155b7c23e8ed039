"""Programs that are killed at random moments, and what the next one finds.

`python -m bench.crashes` is the command. ``_plan`` says what happens in a moment,
``_host`` is the program that is killed, ``_blow`` kills it at a write of its journal,
``_moment`` runs one moment, and ``_judge`` says what was wrong: pure.
"""
