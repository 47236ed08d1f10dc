"""Errors of updates that mean no failure."""

from __future__ import annotations

import errno
import os

from slurm_elastic.base.errors import SlurmError

_NO_ERROR = "No error"
_STARTED = (
    "Job is no longer pending execution",
    "Job/step already completing or completed",
    "Job has already finished",
)
_ERRNO_TEXTS = tuple(os.strerror(number) for number in errno.errorcode)


def only_started(error: SlurmError) -> bool:
    """Whether the update was refused only because jobs had started or ended before it."""
    return _all_say(error, (*_STARTED, _NO_ERROR))


def is_made_for_the_rest(error: SlurmError) -> bool:
    """Whether an update of an array was made for all its tasks but those that had started or ended.

    slurmctld answers for each task that it still knows: ``17_0: Job has already finished``,
    ``17_1: Job is no longer pending execution``, ``17_2-9: No error`` (measured on 22.05).
    """
    return only_started(error) and any(_NO_ERROR in line for line in _lines(error))


def is_left_over(error: SlurmError) -> bool:
    """Whether all messages about the jobs are texts of an errno that an earlier call left over."""
    return error.code == 1 and _all_say(error, (*_ERRNO_TEXTS, _NO_ERROR))


def _all_say(error: SlurmError, texts: tuple[str, ...]) -> bool:
    """Whether there are messages, and each one has one of these texts."""
    lines = _lines(error)
    return bool(lines) and all(any(text in line for text in texts) for line in lines)


def _lines(error: SlurmError) -> list[str]:
    return [line.strip() for line in error.stderr.splitlines() if line.strip()]
