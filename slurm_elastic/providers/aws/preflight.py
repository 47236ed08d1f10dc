"""EC2's word on the things that a launch needs, before one fails for the lack of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.model.cluster import Finding, Level, Pool
from slurm_elastic.policies.launch.images import wanted
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.images import Images
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.preflight import refused

SKEW = 60.0
"""Seconds; EC2 refuses requests signed five minutes off (API reference, RequestExpired)."""


def examine(
    api: Api, settings: AwsCloud, pools: Sequence[Pool], clock: Callable[[], float]
) -> tuple[Finding, ...]:
    """All findings; a call that is refused is one."""
    return (
        *_image(api, settings, clock),
        *_subnets(api, settings, pools),
        *_groups(api, settings),
    )


def _image(api: Api, settings: AwsCloud, clock: Callable[[], float]) -> Iterator[Finding]:
    what = f"image {settings.image}"
    try:
        answer = api.send("describe_images", {"ImageIds": [settings.image]})
    except ProviderError as error:
        yield _refused(what, error, "an image of this region that the account may use")
        return
    found = answer.get("Images", [])
    state = found[0].get("State", "?") if found else "not there"
    if state == "available":
        yield Finding(what=what, level=Level.OK, found=f"available, {found[0].get('Name', '?')}")
    else:
        yield Finding(
            what=what,
            level=Level.WRONG,
            found=state,
            expected="available",
            advice=f"set clouds[].image to an image of region {settings.region}",
        )
    yield from _clock_skew(answer, clock())


def chosen_images(images: Images, pools: Sequence[Pool]) -> Iterator[Finding]:
    """The images that pools look for by name or tags."""
    for pool in pools:
        if pool.image is None or pool.image.id is not None:
            continue
        what = f"image of pool {pool.name}"
        try:
            found = images.of(pool)
        except ProviderError as error:
            yield _refused(what, error, f"an image with {wanted(pool.image)}")
        else:
            yield Finding(what=what, level=Level.OK, found=f"{found} has {wanted(pool.image)}")


def _clock_skew(answer: Mapping[str, Any], now: float) -> Iterator[Finding]:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        theirs = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return
    skew = now - theirs
    good = abs(skew) <= SKEW
    yield Finding(
        what="clock",
        level=Level.OK if good else Level.WRONG,
        found=f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} EC2's",
        expected="" if good else f"within {SKEW:.0f} s: EC2 refuses what is signed at another time",
        advice="" if good else "set the head's clock by NTP",
    )


def _subnets(api: Api, settings: AwsCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    if not settings.subnets:
        return
    wanted = sum(len(pool.nodes) for pool in pools)
    try:
        ids = list(settings.subnets.values())
        answer = api.send("describe_subnets", {"SubnetIds": ids})
    except ProviderError as error:
        yield _refused("subnets", error, "subnets of this region", "DescribeSubnets")
        return
    there = {subnet["SubnetId"]: subnet for subnet in answer.get("Subnets", ())}
    for zone, id_ in settings.subnets.items():
        yield _subnet(zone, id_, there.get(id_), wanted)


def _subnet(zone: str, id_: str, subnet: Mapping[str, Any] | None, wanted: int) -> Finding:
    what = f"subnet {id_}"
    if subnet is None:
        advice = "set clouds[].subnets to subnets that there are"
        return Finding(what=what, level=Level.WRONG, found="not there", advice=advice)
    if subnet.get("AvailabilityZone") != zone:
        return Finding(
            what=what,
            level=Level.WRONG,
            found=f"in zone {subnet.get('AvailabilityZone')}",
            expected=f"in zone {zone}",
            advice="put it under its own zone in clouds[].subnets",
        )
    if subnet.get("Ipv6Native"):
        # What EC2 counts are addresses of IPv4.
        return Finding(what=what, level=Level.OK, found=f"in zone {zone}, of IPv6 alone")
    free = int(subnet.get("AvailableIpAddressCount", 0))
    few = free < wanted
    return Finding(
        what=what,
        level=Level.NOTE if few else Level.OK,
        found=f"in zone {zone}, {free} addresses free",
        expected=f"{wanted}, one for each node of the cloud's pools" if few else "",
        advice="a larger subnet, or fewer nodes" if few else "",
    )


def _groups(api: Api, settings: AwsCloud) -> Iterator[Finding]:
    if not settings.security_groups:
        return
    names = ", ".join(settings.security_groups)
    try:
        api.send("describe_security_groups", {"GroupIds": list(settings.security_groups)})
    except ProviderError as error:
        expected = f"{names} in the machines' network"
        yield _refused("security groups", error, expected, "DescribeSecurityGroups")
        return
    yield Finding(what="security groups", level=Level.OK, found=f"there: {names}")


def _refused(what: str, error: ProviderError, expected: str, only_here: str = "") -> Finding:
    """``only_here``: the right that doctor alone needs, so that launches go well without it."""
    if isinstance(error, AuthError) and only_here:
        return Finding(
            what=what,
            level=Level.NOTE,
            found=f"cannot be looked at: {error.code}: {error.message}",
            advice=f"launches do not need it; allow ec2:{only_here} to see them here",
        )
    return refused(
        what,
        error,
        expected,
        rights="`slurm-elastic iam render aws` has the rights that are needed",
        otherwise="correct it in the configuration",
    )
