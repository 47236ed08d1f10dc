"""Errors of updates that mean no failure."""

from __future__ import annotations

import errno
import os

from slurm_elastic.base.errors import SlurmError

_ERRNO_TEXTS = tuple(os.strerror(number) for number in errno.errorcode)


def only_started(error: SlurmError) -> bool:
    """Whether the update was refused only because jobs had started or ended before it."""
    lines = _lines(error)
    ended_texts = ("Job is no longer pending execution", "Job/step already completing or completed")
    harmless_texts = (*ended_texts, "No error")
    return bool(lines) and all(any(text in line for text in harmless_texts) for line in lines)


def is_left_over(error: SlurmError) -> bool:
    """Whether all messages about the jobs are texts of an errno that an earlier call left over."""
    harmless_texts = (*_ERRNO_TEXTS, "No error")
    messages = _lines(error)
    return (
        error.code == 1
        and bool(messages)
        and all(any(t in line for t in harmless_texts) for line in messages)
    )


def _lines(error: SlurmError) -> list[str]:
    return [line.strip() for line in error.stderr.splitlines() if line.strip()]
