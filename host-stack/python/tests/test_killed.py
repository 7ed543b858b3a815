"""The end of what a killed Python process held."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEADLINE_S, wait_until

HOLDERS = {
    "fabric": "Fabric() as held",
    "rig": "Rig(memory=['256M']) as held",
    "ckpt": "Ckpt(['sleep', 'infinity']) as held",
}
SCRIPT = """
import json, os, sys, time
from snaprig import Ckpt, Fabric, Rig
with {holder}:
    # A program, a child of it, and a child of this process that has all of its descriptors.
    program = held.popen(["sh", "-c", "sleep infinity & exec sleep infinity"])
    fork = os.fork()
    if fork == 0:
        time.sleep(1000)
    print(json.dumps([fork, program.pid, held.environment()]), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("holder", HOLDERS)
def test_all_ends_with_a_killed_process(holder: str) -> None:
    script = SCRIPT.format(holder=HOLDERS[holder])
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as python:
        assert python.stdout is not None
        fork, program, environment = json.loads(python.stdout.readline())
        end = os.pidfd_open(program)
        try:
            name, value = mark(environment)
            # A process has no environment for a moment while it execs.
            wait_until("the environment", lambda: environment_of(program).get(name) == value)
            assert environment_of(program).items() >= environment.items()
            python.kill()
            assert select.select([end], [], [], DEADLINE_S)[0], "the program runs on"
            wait_until("the end of all programs", lambda: not marked(name, value))
            if "SNAPRIG_FABRIC" in environment:
                directory = Path(environment["SNAPRIG_FABRICS"], environment["SNAPRIG_FABRIC"])
                wait_until("the end of the fabric", lambda: not directory.exists())
            else:
                wait_until("the end of all files", lambda: not Path(value).exists())
        finally:
            python.kill()
            os.close(end)
            os.kill(fork, signal.SIGKILL)


def mark(environment: dict[str, str]) -> tuple[str, str]:
    """What of an environment no other has."""
    names = ("SNAPRIG_FABRIC", "SNAPRIG_RIG", "SNAPRIG_HELD")
    return next((name, environment[name]) for name in names if name in environment)


def marked(name: str, value: str) -> list[int]:
    """Processes with this in their environment."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if environment_of(pid).get(name) == value]


def environment_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    variables = (variable.partition("=") for variable in text.split("\0"))
    return {name: value for name, _, value in variables if name}
