"""The names of a job's output files, as slurmstepd makes them of patterns (sbatch(1)). Pure.

squeue (22.05) shows a pattern as its user wrote it, and only adds the directory. ``scontrol show
job`` replaces the pattern, but its output does not show what else the user wrote.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from slurm_elastic.model.slurm import SlurmJob

_PATTERN = re.compile(r"%(?:%|(\d*)([Aabjux]))", re.ASCII)
_OF_STEP = re.compile(r"%\d*[JNnst]", re.ASCII)
"""What only slurmstepd knows on each node."""
_MAX_WIDTH = 10
_NO_TASK = 0xFFFFFFFE
"""slurmstepd writes this number for %a of a job without an array."""


def with_output_names(job: SlurmJob) -> SlurmJob:
    """The job with the names of its files. ``error_output`` is empty if it is the same file."""
    output, error_output = _named(job.output, job), _named(job.error_output, job)
    error_output = "" if error_output == output else error_output
    if (output, error_output) == (job.output, job.error_output):
        return job
    return replace(job, output=output, error_output=error_output)


def with_default_name(job: SlurmJob) -> SlurmJob:
    """The job, as the text of 22.05's squeue shows it, with the pattern of an array task's output.

    This text has "slurm-JOB.out" for each job without --output, but slurmstepd names only the files
    of jobs without an array so. In the JSON of later releases this name is what the user wrote.
    """
    if job.task is None or job.output != f"{job.directory}/slurm-{job.id}.out":
        return job
    output = f"{job.directory}/slurm-%A_%a.out"
    error_output = output if job.error_output == job.output else job.error_output
    return replace(job, output=output, error_output=error_output)


def _named(path: str, job: SlurmJob) -> str:
    if "%" not in path and "\\" not in path:
        return path
    task = _NO_TASK if job.task is None else job.task
    numbers = {"A": job.array or job.id, "j": job.id, "a": task, "b": task % 10}
    texts = {"u": job.user, "x": job.name}

    def value(match: re.Match[str]) -> str:
        width, kind = match.groups()
        if kind is None:
            return "%"
        if kind in texts:
            return texts[kind]
        return f"{numbers[kind]:0{min(int(width or 0), _MAX_WIDTH)}d}"

    # The directory is no pattern.
    begin = len(job.directory) if path.startswith(f"{job.directory}/") else 0
    if "\\" in path[begin:]:  # it says that the name is no pattern
        return path[:begin] + path[begin:].replace("\\", "")
    return path[:begin] + _PATTERN.sub(value, path[begin:])


def is_of_step(path: str) -> bool:
    """Whether the name of a file still has a pattern, which each step or node replaces."""
    return _OF_STEP.search(path) is not None
