"""Programs of this machine that are checkpointed, killed, restarted, migrated."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snaprig._held import Held
from snaprig._program import Error, ask, is_hidden, program
from snaprig._programs import Context, Word

__tracebackhide__ = is_hidden

_LOOK_INTERVAL_S = 0.01
"""How often it is looked whether a supervisor answers."""


class Ckpt(Context):
    """A program that can be checkpointed, with all processes that it starts.

    It starts when the context is entered, and ends with it. What it prints goes where `options`
    say, also after a restart. A program that cannot be started, or restarted, is one that has ended
    with status 1 (`wait`), and standard error says why.

    Args:
        args: The program and its arguments.
        dir: Directory of its checkpoints; one that ends with it, if it is not said.
        mode: "full", "incremental" or "background".
        interval_s: Checkpoint every so many seconds.
        compress: Compress images with zstd, at this level.
        keep: Keep so many checkpoints, and those that they build on.
        env: Its environment in place of this process's.
        **options: As for `subprocess.Popen`: `cwd`, `stdin`, `stdout`, `stderr`, ...
    """

    process: subprocess.Popen[Any]
    """The supervisor of the program: its pipes are the program's, and so is its exit status."""
    dir: Path
    """Directory of its checkpoints."""

    def __init__(
        self,
        args: Sequence[Word],
        dir: str | os.PathLike[str] | None = None,
        *,
        mode: str | None = None,
        interval_s: float | None = None,
        compress: int | None = None,
        keep: int | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 -- those of Popen
    ) -> None:
        super().__init__()
        self._args = [os.fspath(word) for word in args]
        self._env = env
        self._popen_options = options
        self._dir = dir
        self._how: list[str] = []
        how = {"mode": mode, "interval": interval_s, "compress": compress, "keep": keep}
        for name, value in how.items():
            self._how += [] if value is None else [f"--{name}", str(value)]

    def __enter__(self) -> Ckpt:
        super().__enter__()
        own = Path(self.environment()["SNAPRIG_HELD"], "ckpt")
        self.dir = own if self._dir is None else Path(self._dir).absolute()
        try:
            self._supervise("launch", "--dir", str(self.dir), *self._how, "--", *self._args)
            self._wait_until_there()
        except BaseException:
            self.close()
            raise
        return self

    def dump(self, *, leave_running: bool = True, full: bool = False) -> dict[str, Any]:
        """Takes a checkpoint; what it says of it: `round`, `bytes`, `stood_still_ms`, ...

        Args:
            leave_running: Whether the program goes on; else it ends with the checkpoint.
            full: A full one, whatever the mode.
        """
        words = ["--leave-running" if leave_running else "--kill"]
        return self._ask("dump", *words, *(["--full"] if full else []))

    def status(self) -> dict[str, Any]:
        """Its processes (`pid`, `threads`, `name`), and its `last` checkpoint."""
        return self._ask("status")

    def kill(self) -> None:
        """Kills all of it (SIGKILL), its supervisor too, as when the machine fails."""
        self._held.order("kill")
        self.process.wait()

    def restart(self, round: int | None = None) -> None:
        """Restarts it from its newest complete checkpoint, or from this one and no other.

        A program that runs is killed first.
        """
        self.kill()
        words = [] if round is None else ["--round", str(round)]
        self._supervise("restart", str(self.dir), *words, *self._how)
        self._wait_until_there()

    def migrate(self) -> dict[str, Any]:
        """Moves it, as it runs, to another supervisor on this machine; what it says of that.

        Its checkpoints are in another directory from then on (`dir`). If it fails, the program runs
        on where it was. The supervisor of a program that is restarted from there answers for up to
        a minute after the program's end, and ends then.
        """
        there = self.dir.with_name(f"{self.dir.name}-migrated")
        address = there / "migration"
        there.mkdir()
        source = self.process
        self._supervise("receive", "--dir", str(there), str(address), *self._how)
        try:
            while not address.exists() and self.process.poll() is None:
                time.sleep(_LOOK_INTERVAL_S)
            migrated = self._ask("migrate", str(address))
        except BaseException:
            self.process.kill()
            self.process.wait()
            self.process = source
            raise
        source.wait()
        self.dir = there
        return migrated

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end: its exit status, 128 + N for signal N."""
        return self.process.wait(timeout)

    def _ask(self, what: str, *words: str) -> dict[str, Any]:
        try:
            said = ask("ckpt", what, "--dir", str(self.dir), *words, "--json")
        except Error as error:
            status = self.process.poll()
            if status is None:
                raise
            why = f"the program has ended with exit status {status}"
            raise Error(f"{error}; {why}", command=error.command, status=error.status) from error
        reply: dict[str, Any] = json.loads(said)
        return reply

    def _supervise(self, *words: str) -> None:
        command = [program(), "ckpt", *words]
        self.process = self.popen(command, env=self._env, **self._popen_options)

    def _wait_until_there(self) -> None:
        """Until its supervisor answers, or has ended."""
        while self.process.poll() is None:
            try:
                self.status()
            except Error:
                time.sleep(_LOOK_INTERVAL_S)
            else:
                return

    def _hold(self) -> Held:
        return Held("programs")
