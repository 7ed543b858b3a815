"""Rigs: coprocessor cards for programs of COI and SCIF, and what breaks them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from subprocess import Popen
from typing import Any

from snaprig._held import Held
from snaprig._program import ask, is_hidden, program
from snaprig._programs import Context, Programs, on_path

__tracebackhide__ = is_hidden


class Rig(Context):
    """A rig of its own; programs of the host that run in it find its cards.

    Their libscif.so.0 and libcoi_host.so.0 are snaprig's. The cards boot when the context is
    entered, and end with it; so do its programs.

    Args:
        cards: How many cards, 1 to 8.
        memory: Memory of each card, as in ["1G", "512M"]; the last one holds for all further cards.
        cores: Cores of each card.
        threads_per_core: Hardware threads of each core; 1, if it is not said.
        platform: "kvm" or "ptrace"; the best that works here, if it is not said.
        files: Directories, tar images and files to put onto every card: HOST[:PATH_ON_CARD].
    """

    def __init__(
        self,
        cards: int = 1,
        memory: Sequence[str] = (),
        *,
        cores: int | None = None,
        threads_per_core: int | None = None,
        platform: str | None = None,
        files: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.cards = cards
        self._words = ["--cards", str(cards)]
        if memory:
            sizes = [memory] if isinstance(memory, str) else memory
            self._words += ["--memory", ",".join(sizes)]
        if cores is not None:
            self._words += ["--cores", str(cores)]
        if threads_per_core is not None:
            self._words += ["--threads-per-core", str(threads_per_core)]
        if platform is not None:
            self._words += ["--platform", platform]
        for file in files:
            self._words += ["--files", file]

    def card(self, index: int) -> Card:
        """A card, counted from 0."""
        if not 0 <= index < self.cards:
            raise ValueError(f"card {index}: there are 0 to {self.cards - 1}")
        return Card(self, index)

    def states(self) -> dict[int, str]:
        """The state of each card, by its SCIF node: "online", "crashed", "offline", ..."""
        states = json.loads(ask("card", "list", "--json", environment=self.environment()))
        return {int(node): state for node, state in states.items()}

    def _hold(self) -> Held:
        return Held("rig", *self._words)


class Card(Programs):
    """A card of a rig. Programs that run on it come along with their libraries."""

    def __init__(self, rig: Rig, index: int) -> None:
        self.rig = rig
        self.index = index
        self.node = index + 1
        """Its SCIF node."""

    def environment(self) -> dict[str, str]:
        """What `snaprig card exec` has in its environment to find the rig."""
        return self.rig.environment()

    def state(self) -> str:
        """Its state, as the host sees it, in the words of the mic driver's sysfs."""
        return self.rig.states()[self.node]

    def kill(self) -> None:
        """Kills its process (SIGKILL), a card failure; returns when the host has noticed."""
        self._order("kill")

    def kill_daemon(self) -> None:
        """Kills its COI daemon, on the card; the card stops without it, and crashes."""
        self._order("kill-daemon")

    def reset(self) -> None:
        """Resets it, whatever state it is in; returns when it is online again, and empty."""
        self._order("reset")

    def unplug(self) -> None:
        """Removes it by surprise; it is offline then."""
        self._order("unplug")

    def plug(self) -> None:
        """Plugs it in again, under the same SCIF node; returns when it is online."""
        self._order("plug")

    def shut_down(self) -> None:
        """Shuts it down in order; it is offline then."""
        self._order("shut-down")

    def _order(self, what: str) -> None:
        self.rig._held.order(f"{what} {self.node}")

    def _command(self, words: list[str]) -> list[str]:
        # It takes the program's file along, and looks for it nowhere.
        words = [on_path(words[0]), *words[1:]]
        return [program(), "card", "exec", "--node", str(self.node), "--", *words]

    def _started(self, process: Popen[Any]) -> None:
        self.rig._started(process)
