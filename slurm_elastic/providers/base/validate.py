"""Checks of the configuration that several kinds of clouds share. Pure."""

from __future__ import annotations

from typing import Protocol

from slurm_elastic.base.units import format_duration
from slurm_elastic.config.clouds import CloudSettings, default_listing_lag
from slurm_elastic.config.partial import Draft
from slurm_elastic.policies.launch.boots import given_up_after


class ListedLate(Protocol):
    """Settings of a cloud that may list machines some time after their order."""

    @property
    def listing_lag(self) -> float | None:
        """Seconds for which a listing may lack a new machine."""

    @property
    def resume_timeout(self) -> float | None:
        """Seconds that a node has to boot."""


def check_listing_lag(draft: Draft, i: int, cloud: ListedLate) -> None:
    """Report a listing lag so long that a launch is repeated only after its node was given up.

    A value up to the default is always accepted, as every site that sets nothing gets the default.
    """
    lag, round_ = cloud.listing_lag, draft.timing("reconcile_interval")
    resume_timeout = cloud.resume_timeout or draft.timing("resume_timeout")
    if lag is None or round_ is None or resume_timeout is None:
        return
    given_up_s, default = given_up_after(resume_timeout), default_listing_lag(resume_timeout)
    if lag <= default or lag + round_ < given_up_s:
        return
    if given_up_s - round_ > default:
        longest = format_duration(round(given_up_s - round_, 2))
        bound = f"less than {longest}, timings.reconcile_interval before"
    else:
        bound = f"at most {format_duration(round(default, 2))}, so that an order is repeated before"
    expected = f"{bound} a node is given up ({format_duration(round(given_up_s, 2))})"
    shown_lag = str(format_duration(lag))
    draft.problems.add(("clouds", i, "listing_lag"), shown_lag, expected)


def check_wait(draft: Draft, i: int, cloud: CloudSettings, key: str) -> None:
    """Report the wait ``key`` if it is as long as the boot time-out of a node."""
    wait, resume_timeout = (
        getattr(cloud, key),
        cloud.resume_timeout or draft.timing("resume_timeout"),
    )
    if resume_timeout is not None and wait >= resume_timeout:
        expected = f"less than {format_duration(resume_timeout)}, the resume_timeout of the cloud"
        draft.problems.add(("clouds", i, key), str(format_duration(wait)), expected)
