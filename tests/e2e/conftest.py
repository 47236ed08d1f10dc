"""Sandboxes for end-to-end tests: real slurmctld and slurmd's, users that submit, logs on failure."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from needs import missing
from patience import patience

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec

T = TypeVar("T")

CALM = {"SlurmdTimeout": "300", "MessageTimeout": "60", "BatchStartTimeout": "60"}
"""Settings of slurm.conf, in s, where a test sets nothing else: a machine that stands still for
half a minute loses no node, no job and no answer by itself. The sandbox's own are for people who
watch.
"""
CALM_RESUME = 180.0
"""Likewise ``resume_timeout``."""
SOON = 5.0
"""``suspend_timeout``: an emulated machine is gone at once."""
CLIENT = os.environ.get("SLURM_ELASTIC_TEST_CLIENT")
"""``slurm.client`` of every sandbox; None: it is not set."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_up: list[Sandbox] = []


class PatientSandbox(Sandbox):
    """Waits longer the busier this machine is."""

    def run(
        self,
        command: Sequence[str],
        *,
        user: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return super().run(command, user=user, check=check, timeout=patience(timeout), stdin=stdin)

    def wait_for(
        self, condition: Callable[[], T], timeout: float, what: str, period: float = 0.2
    ) -> T:
        return super().wait_for(condition, patience(timeout), what, period)


def why_not() -> str | None:
    """Why this machine cannot run a sandbox; None if it can."""
    if os.getuid() != 0:
        return "real slurmd's and munged are started, which needs root"
    return missing(*PROGRAMS) or None


def calm(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A sandbox's description, with what it does not say itself so that no standstill changes it."""
    given = {line.partition("=")[0].strip() for line in overrides.get("slurm_conf", ())}
    lines = tuple(f"{key}={value}" for key, value in CALM.items() if key not in given)
    elastic, resume = (
        dict(overrides.get("elastic", {})),
        overrides.get("resume_timeout", CALM_RESUME),
    )
    if CLIENT:
        elastic["slurm"] = {"client": CLIENT, **elastic.get("slurm", {})}
    return {"suspend_timeout": SOON, **overrides, "resume_timeout": resume} | {
        "slurm_conf": (*overrides.get("slurm_conf", ()), *lines),
        "elastic": elastic,
    }


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
        made = PatientSandbox(SandboxSpec(dir=directory, **calm(overrides)))
        mine.append(made)
        made.up()
        _up.append(made)
        assert "pyslurm is not used" not in made.log_tails(40)
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
