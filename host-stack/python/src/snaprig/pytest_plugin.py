"""Fixtures for pytest: fabrics, rigs, checkpointed programs, seeds, and failures seen again.

    @pytest.mark.snaprig(hcas=2, model="AB", seeds=range(3))
    def test_it(snaprig_fabric, snaprig_random):
        fabric = snaprig_fabric()

The marker has arguments of `Fabric`, `Rig` and `Ckpt`, which hold for what the fixtures make unless
they are told something else, and `seeds`: the test runs once for each. SNAPRIG_SEED, if it is set,
is the only one.
"""

from __future__ import annotations

import inspect
import os
import random
import shlex
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from snaprig._doctor import lacks
from snaprig._program import Error
from snaprig._programs import Context
from snaprig.ckpt import Ckpt
from snaprig.fabric import Fabric
from snaprig.rig import Rig

SEED_ENV = "SNAPRIG_SEED"
"""The seed of all tests, in place of those of their markers."""
_SEED = "snaprig_seed"
_LOG_LINES_MAX = 200
"""How much of a fabric's log a report has: its end."""
_FABRICS = pytest.StashKey[list[Fabric]]()

ContextT = TypeVar("ContextT", bound=Context)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker."""
    line = "snaprig(seeds=..., **arguments): what fabrics, rigs and checkpoints of this test are"
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Has a test run once for each of its seeds."""
    seeds = _marked(metafunc.definition).get("seeds")
    if seeds is None:
        return
    if _SEED not in metafunc.fixturenames:
        why = "its marker has seeds, but it has no fixture of snaprig"
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {why}")
    named = _named_seed()
    seeds = list(seeds) if named is None else [named]
    metafunc.parametrize(_SEED, seeds, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def snaprig_seed() -> int:
    """The seed of this run of the test: $SNAPRIG_SEED, or one of those of its marker, or 0."""
    return _named_seed() or 0


@pytest.fixture
def snaprig_random(snaprig_seed: int) -> random.Random:
    """A source of chance that draws the same for the same seed."""
    return random.Random(snaprig_seed)


@pytest.fixture
def snaprig_fabric(
    request: pytest.FixtureRequest,
    snaprig_seed: int,  # noqa: ARG001 -- so that a marker's seeds hold
) -> Generator[Callable[..., Fabric]]:
    """Makes fabrics that end with the test, as `Fabric` does: `snaprig_fabric(hcas=2)`."""
    _skip_without("libibverbs")
    _skip_without("fabric")
    fabrics = request.node.stash.setdefault(_FABRICS, [])
    with ExitStack() as open_ones:
        make = _factory(Fabric, request.node, open_ones)

        def make_known(*args: Any, **arguments: Any) -> Fabric:  # noqa: ANN401
            fabric = make(*args, **arguments)
            fabrics.append(fabric)
            return fabric

        yield make_known


@pytest.fixture
def snaprig_rig(
    request: pytest.FixtureRequest,
    snaprig_seed: int,  # noqa: ARG001 -- so that a marker's seeds hold
) -> Generator[Callable[..., Rig]]:
    """Makes rigs that end with the test, as `Rig` does: `snaprig_rig(cards=2)`."""
    _skip_without("kvm", "ptrace")
    with ExitStack() as open_ones:
        make = _factory(Rig, request.node, open_ones)

        def make_here(*args: Any, **arguments: Any) -> Rig:  # noqa: ANN401
            platform = arguments.get("platform", _marked(request.node).get("platform"))
            if platform is not None:
                _skip_without(platform)
            return make(*args, **arguments)

        yield make_here


@pytest.fixture
def snaprig_ckpt(
    request: pytest.FixtureRequest,
    snaprig_seed: int,  # noqa: ARG001 -- so that a marker's seeds hold
) -> Generator[Callable[..., Ckpt]]:
    """Starts programs that end with the test, as `Ckpt` does: `snaprig_ckpt(["./program"])`."""
    _skip_without("ptrace")
    with ExitStack() as open_ones:
        yield _factory(Ckpt, request.node, open_ones)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],  # noqa: ARG001 -- the hook has it
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Has the report of a failure say how to see it again, and what its fabrics looked like."""
    report = yield
    if not report.failed or _SEED not in getattr(item, "fixturenames", ()):
        return report
    report.sections.append(("snaprig replay", _replay_line(item)))
    for fabric in item.stash.get(_FABRICS, []):
        report.sections.append(("snaprig fabric", _describe(fabric)))
    return report


def _factory(
    kind: type[ContextT], item: pytest.Item, open_ones: ExitStack
) -> Callable[..., ContextT]:
    """Makes contexts with the arguments of the test's marker, and opens them."""

    def make(*args: Any, **arguments: Any) -> ContextT:  # noqa: ANN401
        taken = inspect.signature(kind).parameters
        names = list(taken)[len(args) :]
        marked = _marked(item)
        given = {name: marked[name] for name in names if name in marked}
        context = kind(*args, **{**given, **arguments})
        open_ones.enter_context(context)
        return context

    return make


def _marked(item: Any) -> dict[str, Any]:  # noqa: ANN401 -- an item, or a definition of some
    """What the test's markers say; the nearest holds. What nobody knows is an error."""
    known = {"seeds"}.union(*(inspect.signature(kind).parameters for kind in (Fabric, Rig, Ckpt)))
    marked: dict[str, Any] = {}
    for marker in item.iter_markers("snaprig"):
        unknown = sorted(set(marker.kwargs) - known)
        if unknown or marker.args:
            what = f"{', '.join(unknown)}: no such argument" if unknown else "arguments have names"
            raise pytest.UsageError(f"{item.nodeid}: marker snaprig: {what}")
        marked = {**marker.kwargs, **marked}
    return marked


def _named_seed() -> int | None:
    text = os.environ.get(SEED_ENV)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise pytest.UsageError(f"{SEED_ENV}={text}: a seed is a number") from None


def _skip_without(*any_of: str) -> None:
    why = lacks(*any_of)
    if why is not None:
        pytest.skip(f"snaprig: this host has no {' and no '.join(any_of)}: {why}")


def _replay_line(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    seed = params.get(_SEED, _named_seed() or 0)
    file = os.path.relpath(item.path, item.config.invocation_params.dir)
    name = str(item.nodeid).partition("::")[2]
    if list(params) == [_SEED]:
        name = name[: name.rindex("[")]
    return f"{SEED_ENV}={seed} pytest {shlex.quote(f'{file}::{name}')}"


def _describe(fabric: Fabric) -> str:
    """What a fabric looks like, as long as it is there."""
    try:
        log = fabric.log().splitlines()[-_LOG_LINES_MAX:]
        return "\n".join([fabric.listing().rstrip(), *log])
    except (Error, OSError, RuntimeError) as error:
        return str(error)
