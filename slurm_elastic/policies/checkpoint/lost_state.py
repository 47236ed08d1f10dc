"""Whether slurmctld may have lost its state, so that jobs that it does not list may come back."""

from __future__ import annotations

from collections.abc import Collection

LOST_STATE_TIMEOUT_S = 7 * 86400.0
"""Seconds for which a job must be missing before its images are removed, if slurmctld may have lost
its state. A person has a week to restore that state; quotas bound the room that images take.
"""


def may_be_lost(number: int, listed_numbers: Collection[int]) -> bool:
    """Whether Slurm has forgotten the job ``number`` without having given a higher number. A
    slurmctld without its state gives the first numbers again.
    """
    return number not in listed_numbers and all(other < number for other in listed_numbers)
