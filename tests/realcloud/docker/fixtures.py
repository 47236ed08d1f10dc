"""Fixtures of tests on a real Docker engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .engine import Engine, NoEngine, running_engine
from .world import ContainerWorld


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """On failure the report has what every daemon of the test's containers said last."""
    report = yield
    worlds = getattr(item, "funcargs", {}).values() if report.failed else ()
    for world in worlds:
        if isinstance(world, ContainerWorld):
            report.sections.append((f"state of {world.id}", world.state()))
            report.sections.append((f"logs of {world.id}", world.logs()))
    return report


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[Engine]:
    """A real engine (see engine.py); the test is skipped where this machine can run none."""
    try:
        with running_engine() as engine:
            yield engine
    except NoEngine as reason:
        pytest.skip(f"no Docker engine: {reason}")


@pytest.fixture(scope="session")
def trixie(docker_engine: Engine) -> str:
    """The image of a host with Slurm 24.11."""
    return _image(docker_engine, "trixie")


@pytest.fixture(scope="session")
def forky(docker_engine: Engine) -> str:
    """The image of a host with Slurm 26.05."""
    return _image(docker_engine, "forky")


@pytest.fixture(scope="session")
def cloud_image(docker_engine: Engine, trixie: str) -> str:
    """That of a cloud's machine: the same with Debian's cloud-init, which boots it."""
    try:
        return docker_engine.machine(trixie)
    except NoEngine as reason:
        pytest.skip(f"no image with cloud-init: {reason}")


def _image(engine: Engine, release: str) -> str:
    try:
        return engine.image(release)
    except NoEngine as reason:
        pytest.skip(f"no image of {release}: {reason}")
