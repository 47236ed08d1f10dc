"""Sandboxes for end-to-end tests: real slurmctld and slurmd's, users that submit, logs on failure."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from patience import patience

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec

T = TypeVar("T")

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_up: list[Sandbox] = []


class PatientSandbox(Sandbox):
    """Waits longer the busier this machine is."""

    def wait_for(
        self, condition: Callable[[], T], timeout: float, what: str, period: float = 0.2
    ) -> T:
        return super().wait_for(condition, patience(timeout), what, period)


def why_not() -> str | None:
    """Why this machine cannot run a sandbox; None if it can."""
    if os.getuid() != 0:
        return "real slurmd's and munged are started, which needs root"
    missing = [p for p in PROGRAMS if not shutil.which(p, path=_SYSTEM_PATH)]
    return f"not installed: {', '.join(missing)}" if missing else None


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Callable[..., Sandbox]]:
    """A factory: ``sandbox(static_nodes=2, elastic={...}, ...)`` brings one up for this module.

    Arguments are those of SandboxSpec. ``s.submit(script_or_command, *options, user="nobody")``
    submits, ``s.wait_job(id)`` waits for it, ``s.ec2`` steers the emulated cloud.
    """
    if reason := why_not():
        pytest.skip(reason)
    mine: list[Sandbox] = []

    def make(**overrides: Any) -> Sandbox:
        directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
        directory.chmod(0o755)
        made = PatientSandbox(SandboxSpec(dir=directory, **overrides))
        mine.append(made)
        made.up()
        _up.append(made)
        return made

    yield make
    for made in mine:
        made.down()
        if made in _up:
            _up.remove(made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """On failure the report has what every daemon of every sandbox said last."""
    report = yield
    if report.failed:
        for made in _up:
            report.sections.append((f"logs of {made.layout.dir}", made.log_tails(40)))
            report.sections.append((f"state of {made.layout.dir}", _state(made)))
    return report


def _state(made: Sandbox) -> str:
    commands = (
        ["sinfo", "-N", "-o", "%N %P %T %E"],
        ["squeue", "--all", "-o", "%i %P %T %N %r %S"],
    )
    return "\n".join(made.run(command, check=False).stdout for command in commands)
