"""What a user of the wheel writes."""

import pytest
from snaprig import wait_for_listener


@pytest.mark.snaprig(hcas=2, model="AB", seeds=range(2))
def test_a_pingpong_survives_loss(snaprig_fabric, snaprig_seed):
    fabric, port = snaprig_fabric(loss=0.01), 18515 + snaprig_seed
    server = fabric.popen(["ibv_rc_pingpong", "-d", "snaprig_0", "-n", "100", "-p", str(port)])
    wait_for_listener(port)
    fabric.run(["ibv_rc_pingpong", "-d", "snaprig_1", "-n", "100", "-p", str(port), "127.0.0.1"], timeout=60)
    assert server.wait(timeout=60) == 0


def test_a_killed_program_goes_on(snaprig_ckpt, tmp_path):
    begun = tmp_path / "begun"
    program = snaprig_ckpt(["sh", "-c", f"touch {begun}; sleep 0.5; exit 7"])
    while not begun.exists():
        assert program.process.poll() is None
    program.dump()
    program.restart()
    assert program.wait(timeout=60) == 7
