"""Mistakes that several kinds of clouds tell in the same words. Pure."""

from __future__ import annotations

from typing import Protocol

from slurm_elastic.base.units import format_duration
from slurm_elastic.config.clouds import CloudSettings, default_listing_lag
from slurm_elastic.config.partial import Draft
from slurm_elastic.policies.launch.boots import given_up_after


class ListedLate(Protocol):
    """Settings of a cloud whose machines may show in its lists a while after their order."""

    @property
    def listing_lag(self) -> float | None:
        """Seconds."""

    @property
    def resume_timeout(self) -> float | None:
        """Seconds."""


def check_listing_lag(draft: Draft, i: int, cloud: ListedLate) -> None:
    """A launch that is repeated a round after it comes too late for a node that is given up.

    The default, which any site gets that says nothing, may be said as well.
    """
    lag, round_ = cloud.listing_lag, draft.timing("reconcile")
    longest = cloud.resume_timeout or draft.timing("resume_timeout")
    if lag is None or round_ is None or longest is None:
        return
    end, default = given_up_after(longest), default_listing_lag(longest)
    if lag <= default or lag + round_ < end:
        return
    if end - round_ > default:
        most = f"less than {format_duration(round(end - round_, 2))}, timings.reconcile before"
    else:
        most = f"at most {format_duration(round(default, 2))}, so that an order is repeated before"
    expected = f"{most} a node is given up ({format_duration(round(end, 2))})"
    found = str(format_duration(lag))
    draft.problems.add(("clouds", i, "listing_lag"), found, expected)


def check_wait(draft: Draft, i: int, cloud: CloudSettings, key: str) -> None:
    """A launch that waits for as long as its node has comes too late."""
    wait, longest = getattr(cloud, key), cloud.resume_timeout or draft.timing("resume_timeout")
    if longest is not None and wait >= longest:
        expected = f"less than {format_duration(longest)}, the resume_timeout of the cloud"
        draft.problems.add(("clouds", i, key), str(format_duration(wait)), expected)
