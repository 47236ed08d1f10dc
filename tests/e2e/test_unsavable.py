"""On real Slurm: a job that cannot be saved is told so, and begins anew where no machine is taken away."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.model.cluster import Market
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import kinds, node_of
from tests.e2e.world import PATIENCE, ledger

pytestmark = [pytest.mark.e2e, pytest.mark.release]
SCRIPT = "#!/bin/bash\n#SBATCH --partition=aws --cpus-per-task=2 --open-mode=append\nsleep 300\n"


@pytest.fixture(scope="module")
def images() -> Iterator[str]:
    """A directory that SlurmUser may read, with the cluster's part, which the root part of any node
    makes. pytest's own directories are root's alone.
    """
    with tempfile.TemporaryDirectory(prefix="se-images-") as directory:
        os.chmod(directory, 0o755)
        Path(directory, "sandbox").mkdir()
        yield directory


@pytest.fixture(scope="module")
def site(images: str, sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Its nodes have no root part: none of their jobs is under the launcher."""
    return sandbox(
        static_nodes=1,
        elastic={
            "checkpoint": {
                "directory": images,
                "policy": "on_notice",
                "probe_after": "3s",
                "unsavable": "on_demand",
            }
        },
    )


def market_of(site: Sandbox, node: str) -> Market:
    book = ledger(site)
    try:
        (found,) = (m.instance.market for m in book.machines.live() if m.instance.node == node)
        return found
    finally:
        book.close()


def test_it_begins_anew_on_an_on_demand_machine(site: Sandbox) -> None:
    job = site.submit(SCRIPT, "--comment=ckpt=criu")
    site.wait_job(job, "RUNNING")
    first = node_of(site, job)
    assert market_of(site, first) is Market.SPOT
    site.wait_for(lambda: "ckpt-back" in kinds(site, f"job:{job}"), PATIENCE, "it runs elsewhere")
    fields = site.wait_job(job, "RUNNING")
    assert fields["Restarts"] == "1"
    assert fields["NodeList"] != first
    assert market_of(site, fields["NodeList"]) is Market.ON_DEMAND
    assert "cannot be saved" in fields["AdminComment"]
    site.wait_for(
        lambda: "it starts over on" in (site.work / f"slurm-{job}.out").read_text(),
        PATIENCE,
        "its user reads why",
    )
    assert "this job cannot be saved" in (site.work / f"slurm-{job}.out").read_text()
    site.run(["scancel", str(job)])


def test_a_job_that_must_not_be_requeued_stays(site: Sandbox) -> None:
    job = site.submit(SCRIPT, "--comment=ckpt=criu", "--no-requeue")
    site.wait_job(job, "RUNNING")
    site.wait_for(lambda: "ckpt-unsavable" in kinds(site, f"job:{job}"), PATIENCE, "it is told")
    assert site.job(job)["Restarts"] == "0"
    assert "ckpt-on-demand" not in kinds(site, f"job:{job}")
    site.run(["scancel", str(job)])
