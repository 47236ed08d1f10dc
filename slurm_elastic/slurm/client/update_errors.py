"""Errors of updates that tell of something else than a failure."""

from __future__ import annotations

import errno
import os

from slurm_elastic.base.errors import SlurmError

_ERRNO_TEXTS = tuple(os.strerror(number) for number in errno.errorcode)


def only_started(error: SlurmError) -> bool:
    """Whether an update was refused for what started meanwhile, and for nothing else."""
    lines = _lines(error)
    over = ("Job is no longer pending execution", "Job/step already completing or completed")
    fine = (*over, "No error")
    return bool(lines) and all(any(words in line for words in fine) for line in lines)


def is_left_over(error: SlurmError) -> bool:
    """Whether all that scontrol says of the jobs is what the system said of something else."""
    fine = (*_ERRNO_TEXTS, "No error")
    said = _lines(error)
    return error.code == 1 and bool(said) and all(any(t in line for t in fine) for line in said)


def _lines(error: SlurmError) -> list[str]:
    return [line.strip() for line in error.stderr.splitlines() if line.strip()]
