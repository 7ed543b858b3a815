from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_S, free_port, needs, wait_until

from snaprig import Error, Fabric, wait_for_listener
from snaprig._programs import Programs


def pair(
    server: Programs, client: Programs, program: str, *options: str
) -> list[subprocess.Popen[Any]]:
    """Both sides of a program, which talk to each other."""
    port = str(free_port())
    needs(program, "ibverbs-utils perftest")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    words = [program, "-p", port, *options]
    first = server.popen([*words, "-d", "snaprig_0"], **pipes)
    wait_for_listener(int(port))
    return [first, client.popen([*words, "-d", "snaprig_1", "localhost"], **pipes)]


def finish(programs: Sequence[subprocess.Popen[Any]]) -> list[str]:
    """What they print to their ends, which are good."""
    said = [program.communicate(timeout=DEADLINE_S)[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * len(programs), said
    return said


def test_programs_see_its_hcas() -> None:
    needs("ibv_devinfo", "ibverbs-utils")
    with Fabric(hcas=2, model="AB") as fabric:
        devices = fabric.run(["ibv_devinfo", "--list"]).stdout
        ports = fabric.run(["ibv_devinfo", "-d", "snaprig_1"]).stdout
    assert "2 HCAs found" in devices
    assert "snaprig_0" in devices
    assert ports.count("PORT_ACTIVE") == 2, "model B has two ports"


def test_a_node_sees_its_own_hcas() -> None:
    with Fabric(hcas=4, nodes=2) as fabric:
        seen = fabric.node(2).run(["ibv_devinfo", "--list"]).stdout.split()
        assert [word for word in seen if word.startswith("snaprig_")] == ["snaprig_2", "snaprig_3"]
        first = fabric.node(1).run(["ibv_devinfo", "-v"]).stdout
        second = fabric.node(2).run(["ibv_devinfo", "-v"]).stdout
        lids = [line.split()[1] for line in (first + second).splitlines() if "port_lid:" in line]
        assert lids == ["1", "2", "3", "4"]
        with pytest.raises(ValueError, match="node 3: there are 1 to 2"):
            fabric.node(3)


def test_messages_arrive_although_packets_are_lost() -> None:
    with Fabric(hcas=2, loss=0.05) as fabric:
        assert "lid 1 -> lid 2: loss=5.0%" in fabric.listing()
        # Neither side ends before the other is done: of ibv_rc_pingpong one may have left when the
        # last acknowledgement is lost, and the other is right to complain.
        for said in finish(pair(fabric, fabric, "ib_send_bw", "-n", "100")):
            assert "BW average" in said


def test_messages_arrive_once_although_packets_come_twice() -> None:
    with Fabric(hcas=2, duplicate=0.5) as fabric:
        for said in finish(pair(fabric, fabric, "ibv_rc_pingpong", "-n", "100", "-c")):
            assert "100 iters" in said


def test_a_lost_link_ends_a_connection() -> None:
    with Fabric(hcas=2) as fabric:
        programs = pair(fabric, fabric, "ibv_rc_pingpong", "-n", "100000000")
        wait_until("queue pairs", lambda: fabric.listing().upper().count(" RTS ") == 2)
        fabric.link_down(2)
        said = [program.communicate(timeout=DEADLINE_S)[0] for program in programs]
        assert any("transport retry counter exceeded" in text for text in said), said
        assert "down" in fabric.listing()
        fabric.link_up(2)
        finish(pair(fabric, fabric, "ibv_rc_pingpong", "-n", "20"))


def test_a_path_is_broken_and_healed() -> None:
    with Fabric(hcas=2) as fabric:
        fabric.fault(from_lid=1, to_lid=2, corrupt=0.5, delay_us=7)
        assert "lid 1 -> lid 2: loss=0.0%,duplicate=0.0%,reorder=0.0%,corrupt=50.0%,delay=7us" in (
            fabric.listing()
        )
        assert "lid 2 -> lid 1" not in fabric.listing()
        fabric.heal()
        assert "corrupt" not in fabric.listing()
        with pytest.raises(ValueError, match="a share is 0 to 1"):
            fabric.fault(loss=5)


def test_a_plan_is_carried_out(tmp_path: Path) -> None:
    plan = {
        "version": 1,
        "seed": 1,
        "cards": 2,
        "scenario": "verbs",
        "workload": {"processes": 2, "pipelines": 3, "runs": 10},
        "faults": [{"point": "hca.packet", "per_mille": 1000, "kind": "drop"}],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    with Fabric(hcas=2, plan=plan) as fabric:
        programs = pair(fabric, fabric, "ibv_rc_pingpong", "-n", "1")
        said = [program.communicate(timeout=DEADLINE_S)[0] for program in programs]
        assert any("transport retry counter exceeded" in text for text in said), said
        fabric.heal()
        fabric.plan(file)
        with pytest.raises(Error, match="no such file|No such file"):
            fabric.plan(tmp_path / "missing.json")


def test_packets_are_captured(tmp_path: Path) -> None:
    capture = tmp_path / "packets.pcapng"
    with Fabric(hcas=2, capture=capture) as fabric:
        finish(pair(fabric, fabric, "ibv_rc_pingpong", "-n", "10"))
        fabric.capture(None)
        bytes_before = capture.stat().st_size
        finish(pair(fabric, fabric, "ibv_rc_pingpong", "-n", "10"))
        assert capture.stat().st_size == bytes_before
    section_header_block = bytes.fromhex("0a0d0d0a")
    assert capture.read_bytes()[:4] == section_header_block


def test_two_are_side_by_side() -> None:
    with Fabric(hcas=1) as one, Fabric(hcas=2) as two:
        one.link_down(1)
        assert "PORT_DOWN" in one.run(["ibv_devinfo"]).stdout
        assert "PORT_DOWN" not in two.run(["ibv_devinfo"]).stdout
        finish(pair(two, two, "ibv_rc_pingpong", "-n", "10"))


def test_programs_end_with_it() -> None:
    with Fabric() as fabric:
        environment = fabric.environment()
        left = fabric.popen(["sleep", "infinity"])
        directory = Path(environment["SNAPRIG_FABRICS"], environment["SNAPRIG_FABRIC"])
        assert directory.is_dir()
    assert left.returncode == -9
    assert not directory.exists()
    with pytest.raises(RuntimeError, match="in its context alone"):
        fabric.heal()


def test_an_error_says_what_the_program_said() -> None:
    with Fabric() as fabric:
        with pytest.raises(
            Error, match="snaprig fabric down 99 .*: exit status 1: error: "
        ) as caught:
            fabric.link_down(99)
        assert caught.value.command[:4] == ["snaprig", "fabric", "down", "99"]
        assert caught.value.status == 1
        assert caught.value.stderr.startswith("error: ")
        with pytest.raises(Error, match="false: exit status 1"):
            fabric.run(["false"])
        assert fabric.run(["false"], check=False).returncode == 1
    with pytest.raises(Error, match="snaprig hold fabric --hcas 65 .*65 is not in 1..=64"):
        Fabric(hcas=65).__enter__()


def test_it_is_described() -> None:
    with Fabric(hcas=2, model="BA", loss=0.055) as fabric:
        assert [fabric.lid(0), fabric.lid(0, port=2), fabric.lid(1)] == [1, 2, 3]
        for no_port in ((1, 2), (2, 1), (-1, 1)):
            with pytest.raises(ValueError, match="there is no port"):
                fabric.lid(*no_port)
        fabric.link_down(fabric.lid(1))
        description = fabric.describe()
        assert description["hcas"][1]["ports"][0]["state"] == "DOWN"
        assert {path["faults"]["loss_per_mille"] for path in description["paths"]} == {55}
        assert description["queue_pairs"] == []
