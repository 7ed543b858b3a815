"""A process of `snaprig hold`: what it holds is there for as long as this process wants it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading

from snaprig._program import Error, is_hidden, program

__tracebackhide__ = is_hidden


class Held:
    """What `snaprig hold` holds.

    The other process ends what it holds, and all programs that have its environment, when its
    input ends, or this process does, however that happens.
    """

    def __init__(self, *words: str) -> None:
        self._command = ["snaprig", "hold", *words]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        self._turn = threading.Lock()
        # A session of its own: what a terminal sends (^C) is for this process, which ends it.
        self._process = subprocess.Popen(
            [program(), *self._command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            text=True,
        )
        try:
            self.environment: dict[str, str] = json.loads(self._answer())["environment"]
        except BaseException:
            self._process.kill()
            self._close()
            raise

    def order(self, order: str) -> None:
        """Has it do something with what it holds."""
        assert self._process.stdin is not None
        with self._turn:
            try:
                self._process.stdin.write(f"{order}\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # It has ended: then there is no answer, and that says why.
            error = json.loads(self._answer()).get("error")
        if error is not None:
            raise Error(f"{order}: {error}", command=self._command)

    def end(self) -> None:
        """Ends what it holds, and returns when nothing of it is left."""
        with self._turn:
            if self._process.stdin is None or self._process.stdin.closed:
                return
            self._close()
            if self._process.returncode != 0:
                raise Error.of(self._command, self._process.returncode, stderr=self._said())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Error.of(self._command, self._process.wait(), stderr=self._said())
        return line

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()
