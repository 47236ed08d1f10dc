"""Moves of jobs, as slurm-elastic-ckptman remembers them."""

from __future__ import annotations

from ledger_cases import T0

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep


def migration_of(job: int, uid: int) -> Migration:
    run = JobRun(
        job=job, label=str(job), attempt=0, user=f"u{uid}", uid=uid, gid=100, nodes=("pub1",),
        partition="burst", started=T0,
    )  # fmt: skip
    return Migration(
        run=run, method="fake", threatened=("pub1",), reason=Quoted(text="reclaimed"), step=MigrationStep.SAVED,
        began=T0, changed=T0,
    )  # fmt: skip
