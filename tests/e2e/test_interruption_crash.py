"""slurm-elastic-ckptman killed between two steps of a move, or overtaken there by what spoils a
save, on real Slurm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.base.faults import POINTS
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import CKPTMAN
from slurm_elastic.state.ckptstate.facts import MigrationStep
from tests.e2e.ckpt import (
    SITE,
    UNTIL_ENOUGH,
    announce,
    begun_at,
    counter,
    enough,
    kinds,
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
    [
        pytest.param("migration.planned", marks=pytest.mark.release),
        pytest.param("migration.after-save", marks=pytest.mark.release),
        "migration.saved",
        pytest.param("migration.after-requeue", marks=pytest.mark.release),
    ],
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
    assert [r.step for r in mine] == [MigrationStep.BACK]
    assert mine[0].image is not None


def state_of(pid: int) -> str:
    """One letter, proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.release
@pytest.mark.parametrize("spoil", [Path.unlink, lambda save: os.truncate(save, 0)])
def test_a_save_that_is_spoilt_before_it_was_looked_at_is_made_anew(
    site: Sandbox, spoil: Callable[[Path], None]
) -> None:
    """The job, which is stopped after the save already, goes on, is saved once more, and moves then."""
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 6)
    once = str(site.layout.dir / "state" / f"stands-{job}")
    site.ckptman_stop()
    site.ckptman_start(
        {
            "SLURM_ELASTIC_FAULT": "migration.after-save",
            "SLURM_ELASTIC_FAULT_ONCE": once,
            "SLURM_ELASTIC_FAULT_SIGNAL": "STOP",
        }
    )
    announce(site, node_of(site, job), notice=120.0)
    ckptman = site.processes.get(CKPTMAN)
    assert ckptman is not None
    site.wait_for(lambda: state_of(ckptman.pid) == "T", 90, "it stands still")
    spoil(site.work / f"state-{job}")
    os.kill(ckptman.pid, signal.SIGCONT)
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    assert begun_at(site, job)[1] >= 6, "it goes on from a save"
    settled(site)
    told = [k for k in kinds(site, f"job:{job}") if k.startswith("ckpt-")]
    assert told[:5] == [
        "ckpt-planned", "ckpt-bad-image", "ckpt-failed", "ckpt-saved", "ckpt-requeued",
    ]  # fmt: skip
