"""Campaigns of faults in simulation."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from snaprig._program import Error, program

_REPORTED = (0, 1, 3, 4)
"""Exit statuses of campaigns that were carried out: nothing, a wrong answer, a hang, a crash."""


def campaign(
    scenario: str | None = None,
    seeds: range = range(1000),
    *,
    jobs: int | None = None,
    time_s: float | None = None,
) -> dict[str, Any]:
    """Breaks the stack in simulation, seed by seed, and checks what must be true.

    Returns the report of `snaprig campaign --json`: `runs`, `failures` (how many), `found` (each,
    with the line that replays it). A failure is no exception: assert that there are none.

    Args:
        scenario: Draw plans of this scenario only: "verbs", "scif", "migration", ...
        seeds: Seeds, one after another.
        jobs: Threads; as many as there are processors, if it is not said.
        time_s: Begin nothing new after so many seconds.
    """
    if seeds.step != 1:
        raise ValueError(f"{seeds}: seeds are one after another")
    command = ["snaprig", "campaign", "--json", "--seeds", f"{seeds.start}..{seeds.stop}"]
    if scenario is not None:
        command += ["--scenario", scenario]
    if jobs is not None:
        command += ["--jobs", str(jobs)]
    if time_s is not None:
        command += ["--time", f"{time_s:g}"]
    done = subprocess.run(
        [program(), *command[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in _REPORTED or not done.stdout.startswith("{"):
        raise Error.of(command, done.returncode, stderr=done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
