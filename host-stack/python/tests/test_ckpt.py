from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_S

from snaprig import Ckpt, Error

PROGRAM = """
import hashlib, random
chance, digest = random.Random(7), hashlib.sha256()
for half in ("first", "second"):
    for _ in range(10000):
        digest.update(chance.randbytes(32))
    print(digest.hexdigest(), flush=True)
    assert input() == f"{half} half is read"
"""
"""Two halves of a computation whose state is in memory alone."""


def golden() -> list[str]:
    """What it prints undisturbed."""
    said = "first half is read\nsecond half is read\n"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=said, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def line(program: Ckpt) -> str:
    assert program.process.stdout is not None
    return str(program.process.stdout.readline()).strip()


def say(program: Ckpt, text: str) -> None:
    assert program.process.stdin is not None
    program.process.stdin.write(f"{text}\n")
    program.process.stdin.flush()


PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_restarted_program_computes_the_same(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with Ckpt(command, tmp_path / "ckpt", mode=mode, **PIPES) as program:
        first = line(program)
        dumped = program.dump(leave_running=True)
        assert dumped["round"] == 1
        assert [process["name"][:6] for process in program.status()["processes"]] == ["python"]
        for _ in range(2):
            program.kill()
            program.restart()
        say(program, "first half is read")
        second = line(program)
        say(program, "second half is read")
        assert program.wait(DEADLINE_S) == 0
    assert [first, second] == golden()


def test_a_migrated_program_computes_the_same() -> None:
    with Ckpt([sys.executable, "-c", PROGRAM], **PIPES) as program:
        first = line(program)
        assert program.migrate()["bytes"] > 0
        say(program, "first half is read")
        second = line(program)
        assert program.dump()["round"] == 2
        say(program, "second half is read")
        assert program.wait(DEADLINE_S) == 0
    assert [first, second] == golden()


def test_what_fails_says_why(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stderr": subprocess.PIPE}
    with Ckpt(["sh", "-c", "exit 7"], tmp_path / "ckpt", **options) as program:
        assert program.wait(DEADLINE_S) == 7
        with pytest.raises(Error, match=r"(?s)no supervisor .* has ended with exit status 7"):
            program.dump()
        program.restart()
        assert program.process.communicate(timeout=DEADLINE_S)[1].startswith("error: ")
        assert program.wait() == 1
    with Ckpt([tmp_path / "missing"], **options) as program:
        assert "/missing\n  caused by: No such file" in str(
            program.process.communicate(timeout=DEADLINE_S)[1]
        )
        assert program.wait() == 1


def test_the_exit_status_is_the_programs() -> None:
    with Ckpt(["sh", "-c", "kill -TERM $$"]) as program:
        assert program.wait(DEADLINE_S) == 128 + 15
