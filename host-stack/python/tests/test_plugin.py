"""The fixtures, as tests of others see them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNAPRIG_SEED", raising=False)


def test_a_failure_says_how_to_see_it_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.snaprig(hcas=2, model="AB", seeds=range(3))
        def test_draws(snaprig_fabric, snaprig_random, snaprig_seed):
            fabric = snaprig_fabric()
            assert fabric.hcas == 2
            fabric.link_down(lid=3)
            drawn = snaprig_random.random()
            print("drawn", drawn)
            fabric.run(["test", str(snaprig_seed), "!=", "2"])
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*fabric.run(*",
            "E *snaprig.Error: test 2 '!=' 2: exit status 1",
            "",
            "test_it.py:*: Error",
            "*- snaprig replay -*",
            "SNAPRIG_SEED=2 pytest test_it.py::test_draws",
            "*- snaprig fabric -*",
            "snaprig_1     2    3  down",
        ]
    )
    monkeypatch.setenv("SNAPRIG_SEED", "2")
    again = pytester.runpytest_subprocess("test_it.py::test_draws")
    again.assert_outcomes(failed=1)
    drawn = [line for line in result.outlines if line.startswith("drawn")]
    assert [line for line in again.outlines if line.startswith("drawn")] == drawn


def test_other_parameters_stay(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize("size", [1, 4096])
        @pytest.mark.snaprig(seeds=[5])
        def test_sizes(size, snaprig_random):
            assert size == 1
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["SNAPRIG_SEED=5 pytest 'test_it.py::test_sizes[[]seed5-4096[]]'"])


def test_programs_and_cards_are_the_markers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.snaprig(cards=1, memory=["256M"], mode="incremental")
        def test_both(snaprig_rig, snaprig_ckpt):
            assert snaprig_rig().states() == {1: "online"}
            program = snaprig_ckpt(["sleep", "infinity"])
            assert program.dump()["parent"] is None
            assert program.dump()["parent"] == 1
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_what_the_host_has_not_is_skipped_by_name(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import snaprig._doctor

        def rows():
            row = {"ok": False, "state": "refused", "fallback": None, "remedy": "allow it"}
            return [{"what": what, **row} for what in ("kvm", "ptrace", "libibverbs", "fabric")]

        snaprig._doctor._rows = rows
        """
    )
    pytester.makepyfile(
        """
        def test_cards(snaprig_rig): assert False
        def test_verbs(snaprig_fabric): assert False
        def test_programs(snaprig_ckpt): assert False
        """
    )
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        ["*this host has no kvm and no ptrace: kvm: refused (allow it); ptrace: refused (allow it)"]
    )


def test_a_wrong_marker_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.snaprig(hca=2)
        def test_it(snaprig_fabric): pass
        """
    )
    result = pytester.runpytest_subprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*marker snaprig: hca: no such argument*"])
