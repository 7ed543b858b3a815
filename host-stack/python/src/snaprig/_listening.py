"""Waits for programs that listen: most programs of verbs find their peers by TCP."""

from __future__ import annotations

import time
from pathlib import Path

from snaprig._program import Error, is_hidden

__tracebackhide__ = is_hidden

_LISTEN = "0A"
"""State of a socket that listens (proc_pid_net(5); TCP_LISTEN of the kernel's net/tcp_states.h)."""
_LOOK_INTERVAL_S = 0.01


def wait_for_listener(port: int, timeout: float = 60.0) -> None:
    """Waits until a program of this machine listens at a TCP port; Error if none does in time.

    Nobody connects, so that the program's first peer is its peer.

    Args:
        port: The port.
        timeout: How long, in seconds.
    """
    deadline = time.monotonic() + timeout
    while not _listens(port):
        if time.monotonic() >= deadline:
            raise Error(f"nobody listens at TCP port {port} after {timeout:g} s")
        time.sleep(_LOOK_INTERVAL_S)


def _listens(port: int) -> bool:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue  # a kernel without IPv6.
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
