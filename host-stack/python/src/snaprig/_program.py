"""Finds the program `snaprig`, and asks it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXE_ENV = "SNAPRIG_EXE"
"""Names the program, before all others."""


class Error(Exception):
    """A program failed, or there is none.

    Attributes:
        command: The program and its arguments.
        status: Its exit status, as `subprocess` has it; None if it did not end, or did not start.
        stdout: What it printed, as far as that was captured.
        stderr: What it said of errors, as far as that was captured.
    """

    # Where people find it, also in what pytest prints.
    __module__ = "snaprig"

    def __init__(
        self,
        what: str,
        *,
        command: Sequence[str] = (),
        status: int | None = None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        self.command = list(command)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        # Some programs say on standard output what went wrong.
        said = stderr.strip() or stdout.strip()
        super().__init__(f"{what}: {said}" if said else what)

    @classmethod
    def of(
        cls, command: Sequence[str], status: int | None, stdout: str = "", stderr: str = ""
    ) -> Error:
        """A command that ended like this."""
        ended = f"ended by signal {-status}" if status and status < 0 else f"exit status {status}"
        what = f"{shlex.join(command)}: {ended}"
        return cls(what, command=command, status=status, stdout=stdout, stderr=stderr)


def is_hidden(excinfo: Any) -> bool:  # noqa: ANN401 -- pytest's, which this module does not need
    """Whether pytest leaves our modules out: of a program that fails it shows the test alone."""
    return isinstance(excinfo.value, Error)


__tracebackhide__ = is_hidden


def program() -> str:
    """The program `snaprig`: $SNAPRIG_EXE, that of this package, or that of $PATH."""
    named = os.environ.get(EXE_ENV)
    if named:
        if not os.access(named, os.X_OK):
            raise Error(f"{EXE_ENV}={named}: no program is there; unset it, or name one")
        return str(Path(named).absolute())
    carried = [
        Path(__file__).with_name("_bin"),
        Path(sys.executable).parent,
        Path(sysconfig.get_path("scripts")),
    ]
    for directory in carried:
        if os.access(directory / "snaprig", os.X_OK):
            return str(directory / "snaprig")
    found = shutil.which("snaprig")
    if found:
        return found
    raise Error(
        "there is no program `snaprig`: this package came without it, and none is on PATH. "
        f"`cargo build` makes it in a copy of its source; name it with {EXE_ENV}=/path/to/snaprig"
    )


def ask(*words: str, environment: Mapping[str, str] | None = None) -> str:
    """What `snaprig` prints when it is told this; Error if it fails."""
    command = [program(), *words]
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Error.of(["snaprig", *words], done.returncode, stderr=done.stderr)
    return done.stdout
