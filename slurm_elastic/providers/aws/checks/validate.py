"""Checks that the settings of an EC2 cloud make sense by themselves: endpoint, zones, launches.
Pure.
"""

from __future__ import annotations

import re

from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.decode import describe, nearest
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.aws.checks.validate_machine import check_machine
from slurm_elastic.providers.aws.settings import Allocation, AwsCloud, Strategy


def check(draft: Draft, i: int, cloud: AwsCloud) -> None:
    """Report all problems of a cloud of provider aws."""
    # A service with its own endpoint may stand in the next room and speak EC2's protocol. Amazon's
    # own endpoint is always public.
    if cloud.foreign_endpoint is None and cloud.location is not Location.PUBLIC:
        expected = f"{Location.PUBLIC}: provider aws costs money unless it has an own endpoint"
        draft.problems.add(("clouds", i, "location"), shown(cloud.location), expected)
    _places(draft, i, cloud)
    _launches(draft, i, cloud)
    _rates(draft, i, cloud)
    for n, pool in draft.pools.items():
        if draft.cloud_of(pool) is cloud:
            check_machine(draft, n, pool, cloud)


def _places(draft: Draft, i: int, cloud: AwsCloud) -> None:
    cloud_path = ("clouds", i)
    is_http = (cloud.endpoint or "").startswith(("http://", "https://"))
    if cloud.endpoint is not None and not (is_http and is_readable_url(cloud.endpoint)):
        start = "a URL that starts with http:// or https://"
        expected = "a URL such as https://ec2.site:8773 or https://[fd00::1]" if is_http else start
        draft.problems.add((*cloud_path, "endpoint"), shown(cloud.endpoint), expected)
    for key, zones in (("zones", cloud.zones), ("subnets", cloud.subnets)):
        for n, zone in enumerate(zones):
            place = (*cloud_path, key, n if key == "zones" else zone)
            if cloud.foreign_endpoint is None and not zone.startswith(cloud.region):
                expected = f"a zone of region {cloud.region}, such as {cloud.region}a"
                draft.problems.add(place, shown(zone), expected)
    for n, zone in enumerate(cloud.zones if cloud.subnets else ()):
        if zone not in cloud.subnets:
            expected = f"a zone with a subnet: one of {', '.join(cloud.subnets)}"
            draft.problems.add((*cloud_path, "zones", n), shown(zone), expected)


def _launches(draft: Draft, i: int, cloud: AwsCloud) -> None:
    cloud_path = ("clouds", i)
    if cloud.allocation is Allocation.RANK and cloud.strategy is not Strategy.FLEET:
        expected = "strategy fleet, too: there is nothing to choose among"
        draft.problems.add((*cloud_path, "allocation"), shown(str(cloud.allocation)), expected)
    template = cloud.launch_template
    if template is not None and not re.fullmatch(r"[A-Za-z0-9().\-/_]{3,128}", template):
        expected = "the id (lt-...) or the name of a launch template"
        draft.problems.add((*cloud_path, "launch_template"), shown(template), expected)
    for name in cloud.interruption_rates:
        if name not in cloud.types and not cloud.catalogue:
            expected = f"a type of the cloud: one of {', '.join(cloud.types)}"
            hint = nearest(name, cloud.types)
            place = (*cloud_path, "interruption_rates", name)
            draft.problems.add(place, shown(name), expected, hint)


def _rates(draft: Draft, i: int, cloud: AwsCloud) -> None:
    """Report rates that differ between clouds of one account and region, because these share EC2's
    limits.
    """
    first_cloud = next(
        (n, c) for n, c in draft.clouds.items()
        if isinstance(c, AwsCloud) and _account(c) == _account(cloud)
    )  # fmt: skip
    number, other = first_cloud
    for key in ("launch_burst", "launch_rate"):
        value, other_value = getattr(cloud, key), getattr(other, key)
        if value != other_value:
            expected_value = "no such key" if other_value is None else describe(other_value)
            expected = f"{expected_value}, as in clouds[{number}] of the same account and region"
            draft.problems.add(("clouds", i, key), describe(value), expected)


def _account(cloud: AwsCloud) -> tuple[str | None, ...]:
    return cloud.region, cloud.foreign_endpoint, cloud.profile
