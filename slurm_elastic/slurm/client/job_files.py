"""A job's directory, output and user, by ``scontrol show job``."""

from __future__ import annotations

import re

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import controller

_RECORD = re.compile(r"^(?=JobId=)", re.MULTILINE)


class JobFiles(Struct, frozen=True, kw_only=True):
    """``outputs``: the files of standard output and error. ``states``: upper case."""

    job: int
    label: str
    uid: int
    restarts: int
    states: frozenset[str]
    nodes: tuple[str, ...]
    directory: str
    outputs: tuple[str, ...]


def read_job_files(settings: SlurmSettings, job: int) -> JobFiles | None:
    """The files of a job; None if Slurm no longer has it. SlurmError if Slurm does not answer."""
    command = (f"{settings.bin_dir}/scontrol", "show", "job", str(job))
    try:
        text = controller.run(command, settings)
    except SlurmError as error:
        if not error.is_of_unknown_job:
            raise
        return None
    return parse(text, job)


def parse(text: str, job: int) -> JobFiles | None:
    """Find the job among the records: for the first task of an array Slurm shows all tasks."""
    for record in _RECORD.split(text):
        if re.match(rf"JobId={job}\s", record):
            return _job(record, job)
    return None


def _job(record: str, job: int) -> JobFiles:
    uid = re.search(r"UserId=\S*\((\d+)\)", record)
    nodes = _word(record, "NodeList")
    try:
        names = tuple(expand(nodes)) if nodes not in ("", "(null)") else ()
    except HostlistError:
        names = ()
    task = _word(record, "ArrayTaskId")
    array = _word(record, "ArrayJobId")
    outputs = (_line(record, "StdOut"), _line(record, "StdErr"))
    return JobFiles(
        job=job,
        label=f"{array}_{task}" if array and task.isdigit() else str(job),
        uid=int(uid[1]) if uid else -1,
        restarts=int(_word(record, "Restarts") or 0),
        states=frozenset(_word(record, "JobState").split("+")),
        nodes=names,
        directory=_line(record, "WorkDir"),
        outputs=tuple(dict.fromkeys(path for path in outputs if _is_file(path))),
    )


def _word(record: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S*)", record)
    return match[1] if match else ""


def _line(record: str, name: str) -> str:
    """Return the value of a field that has a line of its own, because it may contain spaces. "" if
    the record lacks the field.
    """
    match = re.search(rf"^\s*{name}=(.*)$", record, re.MULTILINE)
    return match[1] if match else ""


def _is_file(path: str) -> bool:
    # Slurm leaves patterns of steps (%N, %t) as they are: such a file is one of the machine's.
    return path.startswith("/") and not path.startswith("/dev/") and "%" not in path
