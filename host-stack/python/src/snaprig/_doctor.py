"""What this host offers."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from snaprig._program import ask


def doctor() -> list[dict[str, Any]]:
    """What `snaprig doctor --json` says: rows of `what`, `ok`, `state`, `fallback`, `remedy`."""
    rows: list[dict[str, Any]] = json.loads(ask("doctor", "--json"))
    return rows


@cache
def lacks(*any_of: str) -> str | None:
    """Why this host has none of these, with what would help; None if it has one.

    Asked once: a host does not change while tests run.
    """
    rows = [row for row in _rows() if row["what"] in any_of]
    if any(row["ok"] for row in rows):
        return None
    return "; ".join(f"{row['what']}: {row['state']} ({row['remedy']})" for row in rows)


@cache
def _rows() -> list[dict[str, Any]]:
    return doctor()
