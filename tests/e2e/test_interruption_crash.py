"""slurm-elastic-ckptman killed between two steps of a move, on real Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from slurm_elastic.ckptstate import Step
from slurm_elastic.faults import POINTS
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import (
    SITE,
    UNTIL_ENOUGH,
    announce,
    counter,
    enough,
    migrations,
    node_of,
    settled,
    wait_steps,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**SITE)


@pytest.mark.parametrize(
    "point",
    ["rescue.planned", "rescue.after-save", "rescue.saved", "rescue.after-requeue"],
)
def test_killed_at_any_step_it_goes_on_where_it_was(site: Sandbox, point: str) -> None:
    assert point in POINTS
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 6)
    once = str(site.layout.dir / "state" / f"died-{point}")
    site.ckptman_stop()
    site.ckptman_start({"SLURM_ELASTIC_FAULT": point, "SLURM_ELASTIC_FAULT_ONCE": once})
    announce(site, node_of(site, job))
    site.wait_for(lambda: os.path.exists(once), 90, f"ckptman dies at {point}")
    site.wait_for(lambda: not site.status()["slurm-elastic-ckptman"], 10, "it is dead")
    site.ckptman_start()
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    settled(site)
    mine = [r for r in migrations(site) if r.run.job == job]
    assert [r.step for r in mine] == [Step.BACK]
    assert mine[0].image is not None
