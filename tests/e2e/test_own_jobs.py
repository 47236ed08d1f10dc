"""A plain user's own jobs on a real cluster with PrivateData: seen, explained and saved."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from tests.e2e.ckpt import SITE, UNTIL_ENOUGH, counter
from tests.e2e.world import ELASTIC, PATIENCE, ledger, running_nodes

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**SITE, slurm_conf=("PrivateData=jobs,usage",))


def as_user(site: Sandbox, *words: str, user: str = "nobody") -> subprocess.CompletedProcess[str]:
    return site.run([*ELASTIC, *words], user=user, check=False)


def jobs_of(site: Sandbox, *words: str, user: str = "nobody") -> dict[int, dict[str, Any]]:
    done = as_user(site, "mine", "--json", *words, user=user)
    assert done.returncode == 0, done.stderr
    return {row["id"]: row for row in json.loads(done.stdout)["jobs"]}


@pytest.mark.release
def test_a_user_sees_what_the_own_jobs_cost_and_saves_one(site: Sandbox) -> None:
    own = counter(site, "--time=60", steps=UNTIL_ENOUGH)
    other = site.submit("sleep 600", "--partition=aws", "--time=60", user="root")
    nodes = running_nodes(site, [own, other])
    waits = site.submit("sleep 1", "--partition=aws", "--nodes=99", "--time=60")

    row = site.wait_for(
        lambda: next(
            (row for row in jobs_of(site).values() if row["id"] == own and row["micro_dollars"]), None
        ),
        PATIENCE, "the run of the job is in the books",
    )  # fmt: skip
    rows = jobs_of(site)
    assert set(rows) == {own, waits}
    assert (row["state"], row["clouds"]) == ("running", ["aws"])
    assert row["nodes"] == nodes[own][0]
    assert row["at_most_micro_dollars"] > row["micro_dollars"] > 0
    assert rows[waits]["stuck"]
    assert set(jobs_of(site, "--everyone", user="root")) == {own, other, waits}
    assert as_user(site, "mine", "--user", "root").returncode == 1
    table = as_user(site, "mine").stdout
    assert table.startswith("Jobs of nobody: 1 runs, 1 waits")

    refused = as_user(site, "ckpt", "now", str(other))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"job {other} is not your job" in refused.stderr
    ordered = as_user(site, "ckpt", "now", str(own))
    assert ordered.returncode == 0, ordered.stderr
    assert ordered.stdout.startswith(f"slurm-elastic-ckptman is asked to save job {own}")
    again = as_user(site, "ckpt", "now", str(own))
    assert f"job {own} was just ordered to be saved" in again.stderr
    site.wait_for(lambda: images(site, own), PATIENCE, "the job is saved")
    with closing(ledger(site)) as book:
        decisions = book.decisions.about(f"job:{own}")
    assert [str(d.reason) for d in decisions if d.kind == "ckpt-ordered"] == [
        "nobody asks to save the job now"
    ]
    save = site.wait_for(
        lambda: (jobs_of(site)[own]["save"] or {}).get("at") and jobs_of(site)[own]["save"],
        PATIENCE, "mine shows the save",
    )  # fmt: skip
    assert save["method"] == "signal"
    told = as_user(site, "explain", str(own)).stdout
    assert "nobody asks to save the job now" in told
    assert told.splitlines()[-1].startswith("Cost: $")
    (site.work / f"enough-{own}").touch()


def images(site: Sandbox, job: int) -> bool:
    with closing(CheckpointState(site.layout.dir / "state" / FILE, read_only=True)) as state:
        return bool(state.images(job))
