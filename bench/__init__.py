"""How fast and how small this is, as ratios: ``python -m bench``.

Every figure is taken inside a real supervisor or runtime, with its event stream
being read and with default options, and set against a base that is measured in
the same round, so that whatever else the machine does hits both.
"""

# General layout:
#
# _case is what a measurement is, and runs it; _report shows what came of it;
# _listened opens supervisors and runtimes whose events somebody reads.
# messages, tasks, idle, shells, stops, capture, transcripts, agents, starting are the
# cases, by theme; beam and pykka_peer measure other actor systems where they are installed.
# soak, load and zoo are commands of their own, long and with a verdict: a day of
# tasks, many loud shells, and what tries to outlive its task: its _animals, their
# _kinds, beast.c for what takes more than a script, the _observer that looks for
# them, and a _slow_guardian.
