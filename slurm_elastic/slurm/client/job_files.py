"""A job's directory, output and user."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.output_names import is_of_step


class JobFiles(Struct, frozen=True, kw_only=True):
    """``outputs``: the files of standard output and error. ``states``: upper case. ``requeue``:
    whether Slurm may requeue the job.
    """

    job: int
    label: str
    uid: int
    restarts: int
    states: frozenset[str]
    nodes: tuple[str, ...]
    directory: str
    outputs: tuple[str, ...]
    requeue: bool = True


def read_job_files(slurm: Slurm, job: int) -> JobFiles | None:
    """The files of a job; None if Slurm no longer has it. SlurmError if Slurm does not answer."""
    # Root acts as the user of this record, so no text of a user may stand for a field of it.
    record = slurm.job(job)
    return None if record is None else files_of(record)


def files_of(job: SlurmJob) -> JobFiles:
    """The files in the record of a job."""
    outputs = (job.output, job.error_output)
    return JobFiles(
        job=job.id, label=job.label, uid=job.uid, restarts=job.restarts, states=job.states,
        nodes=job.nodes, directory=job.directory, requeue=job.requeue,
        outputs=tuple(dict.fromkeys(path for path in outputs if _is_file(path))),
    )  # fmt: skip


def _is_file(path: str) -> bool:
    # A file of a step or node has a name that only the machine knows.
    return path.startswith("/") and not path.startswith("/dev/") and not is_of_step(path)
