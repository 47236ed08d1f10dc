"""Finds the EC2 accounts that this host has credentials for: profiles, environment, the instance's
role.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError
from msgspec import structs

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config.found import Found, SearchPlace, unanswered, unusable
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.known_types import known_types
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.skeleton import FOR_BATCH

MAX_PROFILES = 4
"""At most so many profiles are examined."""
TIMEOUT_S = 10.0


def found(place: SearchPlace) -> Iterator[Found]:
    """One entry for each profile with a region; none if there are no credentials at all."""
    try:
        profiles = [None, *boto3.session.Session().available_profiles]
    except BotoCoreError as error:
        yield unusable(_found("aws", "AWS profiles"), f"correct the file: {error}")
        return
    examined = 0
    for profile in profiles:
        if profile == "default" or examined >= MAX_PROFILES:
            continue  # "default" is the profile None, which comes first
        # Each profile costs several calls to EC2, so only the first few are examined.
        cloud = _examine_profile(profile, place)
        if cloud is not None:
            examined += 1
            yield cloud


def _examine_profile(profile: str | None, place: SearchPlace) -> Found | None:
    session: Any = boto3.session.Session(profile_name=profile)
    try:
        if session.get_credentials() is None:
            return None
    except BotoCoreError:
        return None
    suffix = re.sub(r"[^a-z0-9]+", "-", (profile or "").lower()).strip("-")
    cloud = _found(f"aws-{suffix}" if suffix else "aws", f"AWS profile {profile or 'default'}")
    region = session.region_name
    if region is None:
        step = "name its region: aws configure set region REGION"
        return unusable(structs.replace(cloud, keys=_login(profile)), step)
    try:
        return _complete(cloud, profile, region, place.environment.get("AWS_ENDPOINT_URL"))
    except ProviderError as error:
        silent = structs.replace(cloud, keys={"region": region, **_login(profile)})
        return unanswered(silent, f"the credentials and the region of {cloud.what}", error)


def _found(name: str, description: str) -> Found:
    return Found(
        name=name, provider="aws", location=Location.PUBLIC, what=description, usable=True,
        spot=True, narrowed=FOR_BATCH, joins=True,
    )  # fmt: skip


def _complete(cloud: Found, profile: str | None, region: str, endpoint: str | None) -> Found:
    base: dict[str, Any] = {"region": region, **_login(profile)}
    base |= {"endpoint": endpoint} if endpoint else {}
    settings = AwsCloud(
        name=cloud.name, location=cloud.location, image="ami-0", api_timeout=TIMEOUT_S, **base
    )
    api = AwsApi(settings, None)
    image = _image(api.send("describe_images", {"Owners": ["self"]}))
    if image is None:
        bare = structs.replace(cloud, keys=base)
        return unusable(bare, f"make an image in this account ({page('images')})")
    keys = {**base, "image": image["ImageId"], "catalogue": True, "subnets": _subnets(api)}
    groups = _groups(api)
    keys |= {"security_groups": groups} if groups else {}
    description = f"{cloud.what}, image {image.get('Name') or image['ImageId']}"
    return structs.replace(cloud, what=description, keys=keys, types=known_types(settings))


def _login(profile: str | None) -> dict[str, object]:
    return {"profile": profile} if profile else {}


def _image(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The account's newest image with Slurm in its name, or else its newest image."""
    images: list[Mapping[str, Any]] = sorted(
        answer.get("Images", ()), key=lambda i: str(i.get("CreationDate", ""))
    )
    slurm = [i for i in images if "slurm" in str(i.get("Name", "")).lower()]
    return (slurm or images)[-1] if images else None


def _subnets(api: AwsApi) -> dict[str, str]:
    """The subnets of the default network by zone."""
    request = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    records = api.send("describe_subnets", request).get("Subnets", ())
    return {str(r["AvailabilityZone"]): str(r["SubnetId"]) for r in records}


def _groups(api: AwsApi) -> list[str]:
    """Security groups with Slurm in their names. EC2 uses the default group if there is none."""
    request = {"Filters": [{"Name": "group-name", "Values": ["*slurm*"]}]}
    records = api.send("describe_security_groups", request).get("SecurityGroups", ())
    return [str(r["GroupId"]) for r in records]
