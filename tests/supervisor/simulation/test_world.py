"""The simulated processes, files, clock and ids of a run, and what goes wrong there."""

from __future__ import annotations

from supervisor.simulation import Sim, fault_everywhere, simulate


async def spawns(sim: Sim) -> None:
    """Starts one command twice."""
    env = sim.env({"true": 0})
    for _ in range(2):
        tree = await env.processes.spawn(["true"], cwd=None, env={}, marker="M")
        assert (await tree.wait_exit()).code in {0, None}
        await tree.aclose()


def test_each_start_of_a_process_may_fail_with_each_error_that_it_may_raise() -> None:
    report = fault_everywhere(spawns, seams="processes.spawn", schedules=1)
    assert report.points == 2 * 5
    assert set(report.arrivals) == {"ENOENT", "EACCES", "EAGAIN", "ENOMEM", "EMFILE"}


def test_a_fault_names_the_line_of_the_program_that_has_called() -> None:
    run = simulate(spawns, tape="fault processes.spawn EMFILE 2")
    assert isinstance(run.error, OSError)
    (fault,) = run.faults
    assert fault.site.startswith("test_world.py:")
    assert fault.site.endswith(" spawns")
