"""Fabrics: InfiniBand HCAs for programs that link libibverbs, and what breaks them."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, Union

from snaprig._held import Held
from snaprig._program import ask, is_hidden
from snaprig._programs import Context, Programs

__tracebackhide__ = is_hidden

Plan = Union[str, "os.PathLike[str]", Mapping[str, Any]]
"""A fault plan: its file, or what is in it."""


class Fabric(Context):
    """A fabric of its own; programs that run in it see its HCAs.

    It is there while the context is open, used or not, and ends with it; so do its programs.

    Args:
        hcas: How many HCAs, 1 to 64.
        model: Their model, A or B, or a letter for each.
        nodes: How many nodes share the HCAs, all as many; if it is not said, each HCA is a node.
        pkeys: The P_Key table of every port: 0x8xxx is a full member, 0x0xxx a limited one.
        loss: Share of packets that are lost on every path: 0.05 is 5 percent.
        duplicate: Share of packets that come twice.
        reorder: Share of packets that others overtake.
        corrupt: Share of packets that are damaged.
        delay_us: How much later packets arrive, in microseconds.
        plan: A fault plan whose faults of packets are carried out.
        capture: A file for every packet (pcapng).
    """

    def __init__(
        self,
        hcas: int = 1,
        model: str = "A",
        *,
        nodes: int | None = None,
        pkeys: Sequence[int] = (),
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        delay_us: int = 0,
        plan: Plan | None = None,
        capture: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        nodes = hcas if nodes is None else nodes
        if nodes < 1 or hcas % nodes != 0:
            raise ValueError(f"{hcas} HCAs on {nodes} nodes: each has as many")
        self.hcas = hcas
        self.nodes = nodes
        self._plan = plan
        self._words = ["--hcas", str(hcas), "--model", model]
        self._words += _faults(loss, duplicate, reorder, corrupt, delay_us)
        if pkeys:
            self._words += ["--pkeys", ",".join(f"{pkey:04x}" for pkey in pkeys)]
        if capture is not None:
            self._words += ["--capture", os.fspath(capture)]

    def node(self, number: int) -> Node:
        """A node, counted from 1: programs on it see its HCAs alone."""
        if not 1 <= number <= self.nodes:
            raise ValueError(f"node {number}: there are 1 to {self.nodes}")
        return Node(self, number)

    def lid(self, hca: int, port: int = 1) -> int:
        """The LID of a port: HCAs are counted from 0, ports from 1."""
        ports = self.describe()["hcas"][hca]["ports"] if 0 <= hca < self.hcas else []
        for row in ports:
            if row["number"] == port:
                return int(row["lid"])
        raise ValueError(f"there is no port {port} of HCA {hca}")

    def fault(
        self,
        *,
        from_lid: int | None = None,
        to_lid: int | None = None,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        delay_us: int = 0,
    ) -> None:
        """Has a path do this to packets from now on, and nothing else.

        Args:
            from_lid: From which port; from all, if it is not said.
            to_lid: To which.
            loss: Share of packets that are lost: 0.05 is 5 percent.
            duplicate: Share of packets that come twice.
            reorder: Share of packets that others overtake.
            corrupt: Share of packets that are damaged.
            delay_us: How much later packets arrive, in microseconds.
        """
        words = _faults(loss, duplicate, reorder, corrupt, delay_us)
        for option, lid in (("--from", from_lid), ("--to", to_lid)):
            words += [] if lid is None else [option, str(lid)]
        self._tell("fault", *words)

    def link_down(self, lid: int) -> None:
        """Takes a port's link down."""
        self._tell("down", str(lid))

    def link_up(self, lid: int) -> None:
        """Brings a port's link up."""
        self._tell("up", str(lid))

    def heal(self) -> None:
        """Makes everything as new."""
        self._tell("heal")

    def plan(self, plan: Plan) -> None:
        """Has it carry out a plan's faults of packets from now on, in place of an earlier plan."""
        with _file(plan) as path:
            self._tell("fault", "--plan", path)

    def capture(self, file: str | os.PathLike[str] | None) -> None:
        """Has every packet written to a file (pcapng) from now on; with None, no more."""
        self._tell("capture", "--stop" if file is None else os.fspath(file))

    def describe(self) -> dict[str, Any]:
        """Ports, links, what is wrong with the paths, queue pairs: `snaprig fabric list --json`."""
        description: dict[str, Any] = json.loads(self._tell("list", "--json"))
        return description

    def listing(self) -> str:
        """The same, for people."""
        return self._tell("list")

    def log(self) -> str:
        """What its control daemon has said; with SNAPRIG_LOG=debug, all that it does."""
        environment = self.environment()
        directory = Path(environment["SNAPRIG_FABRICS"], environment["SNAPRIG_FABRIC"])
        return (directory / "log").read_text(errors="replace")

    def _tell(self, *words: str) -> str:
        name = self.environment()["SNAPRIG_FABRIC"]
        return ask("fabric", *words, "--fabric", name, environment=self.environment())

    def _hold(self) -> Held:
        if self._plan is None:
            return Held("fabric", *self._words)
        with _file(self._plan) as path:
            return Held("fabric", *self._words, "--plan", path)


class Node(Programs):
    """A node of a fabric: a machine of a cluster, as programs on it see one."""

    def __init__(self, fabric: Fabric, number: int) -> None:
        self.fabric = fabric
        self.number = number

    def environment(self) -> dict[str, str]:
        """What a program has in its environment to be on it."""
        environment = self.fabric.environment()
        node_hcas = str(self.fabric.hcas // self.fabric.nodes)
        words = ["verbs", "--fabric", environment["SNAPRIG_FABRIC"], "--env"]
        words += ["--node", str(self.number), "--node-hcas", node_hcas]
        lines = shlex.split(ask(*words, environment=environment))
        exported = dict(line.split("=", 1) for line in lines if "=" in line)
        # All but what says how a fabric starts: it runs.
        return {**exported, **environment}

    def _started(self, process: Popen[Any]) -> None:
        self.fabric._started(process)


def _faults(
    loss: float, duplicate: float, reorder: float, corrupt: float, delay_us: int
) -> list[str]:
    shares = {"loss": loss, "duplicate": duplicate, "reorder": reorder, "corrupt": corrupt}
    words = []
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name}={share}: a share is 0 to 1; 0.05 are 5 percent")
        words += [f"--{name}", f"{share * 100:g}"]
    return [*words, "--delay-us", str(delay_us)]


@contextmanager
def _file(plan: Plan) -> Iterator[str]:
    """A plan's file."""
    if not isinstance(plan, Mapping):
        yield os.fspath(plan)
        return
    with tempfile.NamedTemporaryFile("w", prefix="snaprig-plan-", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        yield file.name
