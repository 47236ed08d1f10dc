"""Checks with EC2 that the things which a launch needs exist, before a launch fails without
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from slurm_elastic.base.units import brief
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.images import AwsImages
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.preflight import CheckRunner

MAX_SKEW_S = 60.0
"""EC2 refuses requests whose signature is five minutes off (API reference, RequestExpired)."""
CHECKS = CheckRunner(
    "`slurm-elastic iam render aws` has the rights that are needed",
    "correct it in the configuration",
)


_SPARED = "launches do not need it; allow ec2:{} to see them here"


def examine(
    api: AwsApi,
    settings: AwsCloud,
    pools: Sequence[Pool],
    images: AwsImages,
    clock: Callable[[], float],
) -> Iterator[Finding]:
    """All findings. A call that EC2 refuses is a finding, too."""
    yield from CHECKS.at(
        f"image {settings.image}", "an image of this region that the account may use",
        lambda: _image(api, settings, clock),
    )  # fmt: skip
    for subnets, their_pools in _by_subnets(settings, pools):
        yield from CHECKS.at(
            "subnets", "subnets of this region",
            lambda: _subnets(api, subnets, their_pools),  # noqa: B023 - it is called at once
            _SPARED.format("DescribeSubnets"),
        )  # fmt: skip
    if groups := settings.security_groups:
        names, request = ", ".join(groups), {"GroupIds": list(groups)}
        yield from CHECKS.at(
            "security groups", f"{names} in the machines' network",
            lambda: api.send("describe_security_groups", request) and f"there: {names}",
            _SPARED.format("DescribeSecurityGroups"),
        )  # fmt: skip
    for pool in pools:
        if pool.image is not None and pool.image.id is None:
            tags, look = wanted(pool.image), partial(images.of, pool)
            yield from CHECKS.at(
                f"image of pool {pool.name}",
                f"an image with {tags}",
                lambda: f"{look()} has {tags}",  # noqa: B023 - it is called at once
            )


def _image(api: AwsApi, settings: AwsCloud, clock: Callable[[], float]) -> Iterator[Finding]:
    subject = f"image {settings.image}"
    answer = api.send("describe_images", {"ImageIds": [settings.image]})
    records = answer.get("Images", [])
    state = records[0].get("State", "?") if records else "not there"
    if state == "available":
        yield Finding.ok(subject, f"available, {records[0].get('Name', '?')}")
    else:
        advice = f"set clouds[].image to an image of region {settings.region}"
        yield Finding.wrong(subject, state, "available", advice)
    yield from _clock_skew(answer, clock())


def _clock_skew(answer: Mapping[str, Any], now: float) -> Iterator[Finding]:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        # Any answer has this header; no call of its own is needed.
        their_time = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return
    skew = now - their_time
    finding = f"{brief(abs(skew))} {'ahead of' if skew > 0 else 'behind'} EC2's"
    if abs(skew) <= MAX_SKEW_S:
        yield Finding.ok("clock", finding)
    else:
        expected = f"within {brief(MAX_SKEW_S)}: EC2 refuses what is signed at another time"
        yield Finding.wrong("clock", finding, expected, "set the head's clock by NTP")


def _by_subnets(
    settings: AwsCloud, pools: Sequence[Pool]
) -> Iterator[tuple[Mapping[str, str], Sequence[Pool]]]:
    """The subnets of the cloud with their pools, then each pool that has subnets of its own."""
    if settings.subnets:
        yield settings.subnets, [pool for pool in pools if not pool.machine.subnets]
    for pool in pools:
        if pool.machine.subnets:
            yield pool.machine.subnets, [pool]


def _subnets(api: AwsApi, subnets: Mapping[str, str], pools: Sequence[Pool]) -> Iterator[Finding]:
    answer = api.send("describe_subnets", {"SubnetIds": list(subnets.values())})
    subnet_by_id = {subnet["SubnetId"]: subnet for subnet in answer.get("Subnets", ())}
    for zone, id_ in subnets.items():
        yield _subnet(zone, id_, subnet_by_id.get(id_), sum(len(pool.nodes) for pool in pools))


def _subnet(zone: str, id_: str, subnet: Mapping[str, Any] | None, needed: int) -> Finding:
    subject = f"subnet {id_}"
    if subnet is None:
        advice = "set clouds[].subnets to subnets that there are"
        return Finding.wrong(subject, "not there", advice=advice)
    if subnet.get("AvailabilityZone") != zone:
        advice = "put it under its own zone in clouds[].subnets"
        finding = f"in zone {subnet.get('AvailabilityZone')}"
        return Finding.wrong(subject, finding, f"in zone {zone}", advice)
    if subnet.get("Ipv6Native"):
        # EC2 counts free IPv4 addresses only.
        return Finding.ok(subject, f"in zone {zone}, of IPv6 alone")
    free = int(subnet.get("AvailableIpAddressCount", 0))
    finding = f"in zone {zone}, {free} addresses free"
    if free >= needed:
        return Finding.ok(subject, finding)
    expected = f"{needed}, one for each node of the cloud's pools"
    return Finding.note(subject, finding, expected, "a larger subnet, or fewer nodes")
