from __future__ import annotations

import subprocess

import pytest
from conftest import DEADLINE_S

from snaprig import Error, Rig


def test_a_card_has_the_processors_that_it_was_given() -> None:
    with Rig(cards=1, memory=["256M"], cores=2, threads_per_core=4) as rig:
        assert rig.card(0).run(["nproc", "--all"]).stdout == "8\n"


def test_a_card_runs_programs_and_comes_back() -> None:
    with Rig(cards=1, memory=["256M"]) as rig:
        card = rig.card(0)
        assert card.state() == "online"
        assert card.run(["echo", "from the card"]).stdout == "from the card\n"
        with pytest.raises(Error, match="exit status 1"):
            card.run(["false"])
        with pytest.raises(Error, match="plug 1: card 1 is online"):
            card.plug()
        program = card.popen(["sleep", "1000"], stderr=subprocess.PIPE)
        card.kill()
        assert program.wait(DEADLINE_S) != 0
        assert rig.states() == {1: "crashed"}
        card.reset()
        assert card.run(["echo", "again"]).stdout == "again\n"
        card.unplug()
        assert card.state() == "offline"
        host = rig.run(["sh", "-c", "echo $SNAPRIG_RIG"]).stdout.strip()
        assert host == rig.environment()["SNAPRIG_RIG"]
        with pytest.raises(ValueError, match="card 1: there are 0 to 0"):
            rig.card(1)
