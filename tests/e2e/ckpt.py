"""A user's program that saves itself, and what must be true of its work in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.control import interrupt
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ckptstate.schema import FILE
from tests.e2e.world import PATIENCE, ledger, machines

SITE: Mapping[str, Any] = {
    "static_nodes": 1,
    "suspend_time": 8.0,
    "suspend_timeout": 5.0,
    "elastic": {
        "checkpoint": {
            "policy": "on_notice",
            "expected_duration": "5s",
            "deadline_margin": "1s",
            "notices": {"poll_interval": 1},
        }
    },
}


def early(expected: str) -> dict[str, Any]:
    """``SITE`` that takes a first save for so long, and begins it as much before an end: the
    machine may stand still meanwhile.
    """
    checkpoint = {**SITE["elastic"]["checkpoint"], "expected_duration": expected}
    return {**SITE, "elastic": {"checkpoint": checkpoint}}


STEPS = 60
UNTIL_ENOUGH = 10_000
"""Steps of a counter that goes on, however slow the machine, until ``enough`` is said."""
FILE_SIGN = "ckpt=signal,saved=file:state-%j,stop_signal=USR2"
COUNTER = r"""#!/bin/bash
#SBATCH --job-name=counter --cpus-per-task=2 --partition=aws
cd "$SLURM_SUBMIT_DIR"
state=state-$SLURM_JOB_ID
n=$(cat "$state" 2>/dev/null || echo 0)
save() { echo "$n" > "$state.new"; mv "$state.new" "$state"; }
trap 'save' USR1
trap 'save; held=1; while [ "$held" ]; do sleep 1; done' USR2
trap 'sleep 10 && held=' CONT
trap 'save; exit 0' HUP
echo "$n" >> "runs-$SLURM_JOB_ID"
while [ "$n" -lt STEPS ] && [ ! -e "enough-$SLURM_JOB_ID" ]; do
  echo "$((++n))" >> "steps-$SLURM_JOB_ID"; sleep 0.25  # counted and written without a trap between
done
"""


def counter(site: Sandbox, *options: str, comment: str = FILE_SIGN, steps: int = STEPS) -> int:
    script = COUNTER.replace("STEPS", str(steps))
    return site.submit(script, f"--comment={comment}", *options)


def steps(site: Sandbox, job: int) -> list[str]:
    path = site.work / f"steps-{job}"
    return path.read_text().split() if path.exists() else []


def begun_at(site: Sandbox, job: int) -> list[int]:
    """Where each run of the job began to count."""
    return [int(word) for word in (site.work / f"runs-{job}").read_text().split()]


def wait_steps(site: Sandbox, job: int, count: int) -> None:
    site.wait_for(lambda: len(steps(site, job)) >= count, PATIENCE, f"job {job}: {count} steps")


def enough(site: Sandbox, job: int, runs: int) -> None:
    """Once its last one of so many runs has done some steps: wait until the job has ended well.

    None of its steps was done twice, none was left out.
    """
    site.wait_for(lambda: len(begun_at(site, job)) == runs, PATIENCE, f"job {job}: run {runs}")
    wait_steps(site, job, begun_at(site, job)[-1] + 4)
    (site.work / f"enough-{job}").touch()
    site.wait_job(job)
    each_once(site, job, len(steps(site, job)))


def node_of(site: Sandbox, job: int) -> str:
    return site.job(job)["NodeList"]


def machine_of(site: Sandbox, job: int) -> str:
    """The machine on which the job's run of now, or its last one, began."""
    fields = site.job(job)
    start = datetime.fromisoformat(fields["StartTime"]).timestamp()
    mine = [m.instance for m in machines(site, ended=True) if m.instance.node == fields["NodeList"]]
    before = [i for i in mine if i.launched <= start + 1.0]  # Slurm's are whole seconds
    return max(before, key=lambda i: i.launched).id


def announce(site: Sandbox, node: str, notice: float = 60.0) -> None:
    interrupt(site.ec2, node, notice)


def each_once(site: Sandbox, job: int, count: int = STEPS) -> None:
    assert steps(site, job) == [str(n) for n in range(1, count + 1)]


def migrations(site: Sandbox) -> Sequence[Migration]:
    path = Path(site.layout.dir) / "state" / FILE
    state = CheckpointState(path, read_only=True)
    try:
        return state.migrations(since=0.0)
    finally:
        state.close()


def kinds(site: Sandbox, subject: str) -> list[str]:
    book = ledger(site)
    try:
        return [d.kind for d in book.decisions.about(subject)]
    finally:
        book.close()


def is_recorded(site: Sandbox, move: Migration) -> bool:
    back = move.step is MigrationStep.BACK
    return not back or f"ckpt-{move.step}" in kinds(site, f"job:{move.run.job}")


def settled(site: Sandbox) -> None:
    """Wait until no job is on its way any more, and the ledger says so: it is written later."""
    site.wait_for(
        lambda: all(r.is_over and is_recorded(site, r) for r in migrations(site)),
        PATIENCE,
        "every migration has come to its end",
    )
