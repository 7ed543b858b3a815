"""What the tests share: programs that talk to each other, and waiting for what can be seen."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

DEADLINE_S = 60.0
"""What takes longer never comes."""


def needs(program: str, package: str) -> None:
    """Fails where a program of a Debian package is missing."""
    if shutil.which(program) is None:
        pytest.fail(f"there is no {program} here: apt-get install {package}")


def free_port() -> int:
    """A TCP port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Waits until it is so, and fails if it is never."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:.0f} s"
        time.sleep(0.01)
