"""Programs of a context: they start with its environment, and end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Union

from snaprig._held import Held
from snaprig._program import Error, is_hidden

__tracebackhide__ = is_hidden

Word = Union[str, "os.PathLike[str]"]
"""A program, or an argument of one."""

Self = TypeVar("Self", bound="Context")


class Programs(ABC):
    """A place where programs run."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What a program has in its environment to be here."""

    def popen(
        self,
        args: Sequence[Word],
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 -- those of Popen
    ) -> subprocess.Popen[Any]:
        """Starts a program here, as `subprocess.Popen` does; its pipes are of text.

        Args:
            args: The program and its arguments.
            env: Its environment in place of this process's; what `environment` has comes on top.
            **options: As for `subprocess.Popen`.
        """
        process = subprocess.Popen(**self._options(args, env, options))
        self._started(process)
        return process

    def run(
        self,
        args: Sequence[Word],
        *,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        **options: Any,  # noqa: ANN401 -- those of run
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a program here to its end, as `subprocess.run` does.

        Unlike there, what it prints is captured, as text, and a program that fails is an `Error`,
        unless something else is said.

        Args:
            args: The program and its arguments.
            env: Its environment in place of this process's; what `environment` has comes on top.
            check: Whether failure is an `Error`.
            **options: As for `subprocess.run`: `timeout`, `input`, `cwd`, ...
        """
        if not options.pop("capture_output", True):
            options.setdefault("stdout", None)
            options.setdefault("stderr", None)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        done = subprocess.run(**self._options(args, env, options), check=False)
        if check and done.returncode != 0:
            said = [text if isinstance(text, str) else "" for text in (done.stdout, done.stderr)]
            raise Error.of([os.fspath(word) for word in args], done.returncode, *said)
        return done

    def _options(
        self, args: Sequence[Word], env: Mapping[str, str] | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        environment = {**(os.environ if env is None else env), **self.environment()}
        words = self._command([os.fspath(word) for word in args])
        return {"text": True, **options, "args": words, "env": environment}

    def _command(self, words: list[str]) -> list[str]:
        """What is run to have a program run here."""
        return words

    @abstractmethod
    def _started(self, process: subprocess.Popen[Any]) -> None:
        """A program was started here, which ends with the context."""


class Context(Programs):
    """What is held while a context is open."""

    def __init__(self) -> None:
        self._held_now: Held | None = None
        self._running: list[subprocess.Popen[Any]] = []

    def __enter__(self: Self) -> Self:
        if self._held_now is not None:
            raise RuntimeError(f"{self!r} is open already")
        self._held_now = self._hold()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, with all programs that run in it; what the end of a `with` does."""
        held, self._held_now = self._held_now, None
        running, self._running = self._running, []
        for process in running:
            process.kill()
        try:
            if held is not None:
                held.end()
        finally:
            for process in running:
                process.wait()

    def environment(self) -> dict[str, str]:
        """What a program has in its environment to be in it."""
        return dict(self._held.environment)

    @abstractmethod
    def _hold(self) -> Held:
        """Has it held."""

    @property
    def _held(self) -> Held:
        if self._held_now is None:
            name = type(self).__name__
            raise RuntimeError(f"it is there in its context alone: `with {name}(...) as it:`")
        return self._held_now

    def _started(self, process: subprocess.Popen[Any]) -> None:
        self._running = [other for other in self._running if other.poll() is None]
        self._running.append(process)


def on_path(word: str) -> str:
    """A program's path, for who does not look on $PATH."""
    return word if "/" in word else shutil.which(word) or word
