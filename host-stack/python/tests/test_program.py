from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import snaprig


def test_it_is_the_named_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SNAPRIG_EXE", str(tmp_path / "missing"))
    with pytest.raises(snaprig.Error, match=r"SNAPRIG_EXE=.*missing: no program is there"):
        snaprig.program()
    monkeypatch.setenv("SNAPRIG_EXE", "/bin/true")
    assert snaprig.program() == "/bin/true"


def test_it_is_looked_for_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SNAPRIG_EXE")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(snaprig.Error, match="none is on PATH.*SNAPRIG_EXE=/path/to/snaprig"):
        snaprig.program()
    (tmp_path / "snaprig").symlink_to("/bin/true")
    assert snaprig.program() == os.fspath(tmp_path / "snaprig")


def test_a_campaign_is_reported() -> None:
    report = snaprig.campaign(scenario="verbs", seeds=range(5))
    assert report["runs"] == 5
    assert report["failures"] == 0
    assert report["found"] == []
    with pytest.raises(snaprig.Error, match="no such scenario|invalid value"):
        snaprig.campaign(scenario="none such")
    with pytest.raises(ValueError, match="one after another"):
        snaprig.campaign(seeds=range(0, 10, 2))


def test_a_listener_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        snaprig.wait_for_listener(port)
    with pytest.raises(snaprig.Error, match=f"nobody listens at TCP port {port} after 0.1 s"):
        snaprig.wait_for_listener(port, timeout=0.1)


def test_the_doctor_is_asked() -> None:
    assert {"kvm", "ptrace", "fabric"} <= {row["what"] for row in snaprig.doctor()}
