"""The daemon killed at each step of a launch and of a suspend, on real Slurm: a restart repairs everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.crash import die_and_repair, steps

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(static_nodes=1, suspend_time=5.0, suspend_timeout=5.0)


@pytest.mark.parametrize(
    ("point", "partition"),
    steps("launch", ("launch.after-call", "aws"))
    + steps("suspend", ("suspend.after-call", "onprem")),
)
def test_a_daemon_killed_at_any_step_repairs_it_on_restart(
    site: Sandbox, point: str, partition: str
) -> None:
    die_and_repair(site, point, partition)
