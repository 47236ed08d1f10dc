"""What a real slurmctld keeps of a job over its requeue, and what it sets anew. The identity of a
job (``model/job_key.py``, ``machine/ckptroot/identity.py``) stands on this.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import unless

from slurm_elastic.machine.ckptroot import job_state
from slurm_elastic.machine.ckptroot.identity import script_digest
from slurm_elastic.machine.ckptroot.site import HelperSite
from tests.slurm.live_site import LiveSite, wait_for

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="real daemons need root"),
    unless("slurmctld", "munged"),
]


@pytest.fixture
def live() -> Iterator[LiveSite]:
    with tempfile.TemporaryDirectory(prefix="se-identity-", dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        made = LiveSite("small", root)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_a_requeue_keeps_the_script_and_changes_the_submit_time(live: LiveSite) -> None:
    site = HelperSite(
        cluster="t", directory=live.root, key=b"", reader=(0, 0), slurm_conf=str(live.conf)
    )

    def seen(job: int) -> tuple[str, int, float]:
        script = live.root / "script"
        script.unlink(missing_ok=True)
        live.run("scontrol", "write", "batch_script", str(job), str(script))
        state = job_state.ask(site, job)
        assert state is not None
        return script_digest(script.read_bytes()), state.restarts, state.submitted

    def is_at_work(restarts: str) -> bool:
        record = live.job(job)
        return (record.get("JobState"), record.get("Restarts")) == ("RUNNING", restarts)

    job = live.sbatch("-w", live.node)
    wait_for("the job to run", lambda: is_at_work("0"))
    digest, restarts, submitted = seen(job)
    assert restarts == 0
    assert submitted > 0
    began = live.job(job)["SubmitTime"]
    wait_for("another second", lambda: live.run("date", "+%Y-%m-%dT%H:%M:%S").strip() > began)
    live.run("scontrol", "requeue", str(job))
    wait_for("the requeue", lambda: live.job(job).get("JobState") == "PENDING")
    assert seen(job)[:2] == (digest, 1)
    assert seen(job)[2] > submitted
    forged = "x\nJobId=1 JobName=y UserId=root(0) JobState=CANCELLED Restarts=9 BatchFlag=1"
    live.run("scontrol", "update", f"jobid={job}", f"jobname={forged}")
    state = job_state.ask(site, job)
    assert state is not None
    assert (state.state, state.uid, state.restarts) == ("PENDING", os.getuid(), 1)
    unknown = job_state.ask(site, job + 1000)
    assert unknown is not None
    assert unknown.state == "GONE"
    live.restart()
    assert seen(job)[:2] == (digest, 1), "slurmctld keeps the script in its state"
