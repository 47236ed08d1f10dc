"""Whether each cloud makes sense by itself: where it is, its endpoint, zones, launches. Pure.

Clouds of provider docker have ``docker_fit``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slurm_elastic.config.clouds import (
    NETWORK_WORDS,
    Allocation,
    AwsCloud,
    LocalCloud,
    OpenNebulaCloud,
    OpenStackCloud,
    Strategy,
    default_listing_lag,
)
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model import Location
from slurm_elastic.policies.boot_breaker import given_up_after
from slurm_elastic.units import format_duration


def _locations(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        at = ("clouds", i, "location")
        if isinstance(cloud, LocalCloud) and cloud.location is not Location.ON_PREMISES:
            expected = f"{Location.ON_PREMISES}: provider local is this very host"
            draft.problems.add(at, shown(cloud.location), expected)
        # An endpoint of one's own may be EC2's protocol in the next room; amazon's never is.
        amazon = isinstance(cloud, AwsCloud) and cloud.endpoint is None
        if amazon and cloud.location is not Location.PUBLIC:
            expected = f"{Location.PUBLIC}: provider aws costs money unless it has an own endpoint"
            draft.problems.add(at, shown(cloud.location), expected)


def _aws(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        at = ("clouds", i)
        if cloud.endpoint is not None and not cloud.endpoint.startswith(("http://", "https://")):
            expected = "a URL that starts with http:// or https://"
            draft.problems.add((*at, "endpoint"), shown(cloud.endpoint), expected)
        for key, zones in (("zones", cloud.zones), ("subnets", cloud.subnets)):
            for n, zone in enumerate(zones):
                place = (*at, key, n if key == "zones" else zone)
                if cloud.endpoint is None and not zone.startswith(cloud.region):
                    expected = f"a zone of region {cloud.region}, such as {cloud.region}a"
                    draft.problems.add(place, shown(zone), expected)
        for n, zone in enumerate(cloud.zones if cloud.subnets else ()):
            if zone not in cloud.subnets:
                expected = f"a zone with a subnet: one of {', '.join(cloud.subnets)}"
                draft.problems.add((*at, "zones", n), shown(zone), expected)


def _aws_launches(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        at = ("clouds", i)
        if cloud.allocation is Allocation.RANK and cloud.strategy is not Strategy.FLEET:
            expected = "strategy fleet, too: there is nothing to choose among"
            draft.problems.add((*at, "allocation"), shown(str(cloud.allocation)), expected)
        template = cloud.launch_template
        if template is not None and not re.fullmatch(r"[A-Za-z0-9().\-/_]{3,128}", template):
            expected = "the id (lt-...) or the name of a launch template"
            draft.problems.add((*at, "launch_template"), shown(template), expected)
        for name in cloud.interruption_rates:
            if name not in cloud.types:
                expected = f"a type of the cloud: one of {', '.join(cloud.types)}"
                hint = nearest(name, cloud.types)
                place = (*at, "interruption_rates", name)
                draft.problems.add(place, shown(name), expected, hint)


def _aws_rates(draft: Draft) -> None:
    """EC2's limits are an account's in a region, whose clouds share them."""
    first: dict[tuple[str | None, ...], tuple[int, AwsCloud]] = {}
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        place = (cloud.region, cloud.endpoint, cloud.profile)
        number, other = first.setdefault(place, (i, cloud))
        for key in ("launch_burst", "launch_rate"):
            mine, theirs = getattr(cloud, key), getattr(other, key)
            if mine != theirs:
                words = "no such key" if theirs is None else describe(theirs)
                expected = f"{words}, as in clouds[{number}] of the same account and region"
                draft.problems.add(("clouds", i, key), describe(mine), expected)


def _opennebula(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, OpenNebulaCloud):
            continue
        at = ("clouds", i)
        if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", cloud.endpoint):
            expected = "the URL of oned, such as http://front-end:2633/RPC2, without a password"
            # What stands before an @ may be a password, which nobody wants to see again.
            found = "a user or password in it" if "@" in cloud.endpoint else shown(cloud.endpoint)
            draft.problems.add((*at, "endpoint"), found, expected)
        elif cloud.ca_file is not None and not cloud.endpoint.startswith("https://"):
            expected = "no ca_file: the endpoint is not https"
            draft.problems.add((*at, "ca_file"), shown(cloud.ca_file), expected)
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if longest is not None and cloud.pending_limit >= longest:
            expected = f"less than {format_duration(longest)}, the resume_timeout of the cloud"
            draft.problems.add(
                (*at, "pending_limit"), str(format_duration(cloud.pending_limit)), expected
            )
        _listing_lag(draft, i, cloud)


def _openstack(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, OpenStackCloud):
            continue
        at = ("clouds", i)
        for key, text in (("cloud", cloud.cloud), ("image", cloud.image)):
            if not text.strip():
                draft.problems.add((*at, key), shown(text), "a name")
        for n, word in enumerate(cloud.networks):
            if word in NETWORK_WORDS and len(cloud.networks) > 1:
                draft.problems.add((*at, "networks", n), shown(word), "that word alone")
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if longest is not None and cloud.schedule_wait >= longest:
            expected = f"less than {format_duration(longest)}, the resume_timeout of the cloud"
            draft.problems.add(
                (*at, "schedule_wait"), str(format_duration(cloud.schedule_wait)), expected
            )
        _listing_lag(draft, i, cloud)


def _listing_lag(draft: Draft, i: int, cloud: OpenNebulaCloud | OpenStackCloud) -> None:
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


CLOUD_FITS: tuple[Callable[[Draft], None], ...] = (
    _locations,
    _aws,
    _aws_launches,
    _aws_rates,
    _opennebula,
    _openstack,
)
"""Every check of this module."""
