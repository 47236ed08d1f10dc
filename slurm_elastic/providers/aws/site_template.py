"""The site's own launch template, as far as it and ours meet: what a request has of a parameter
replaces all of the template's ("RunInstances", LaunchTemplate), and tags add up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.requests import site_template
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import SITE_TAGS
from slurm_elastic.providers.base.preflight import Look

log = logging.getLogger(__name__)

Data = Mapping[str, Any]

FRESH = 300.0
"""Seconds for which an answer serves: a site may make another version the default one."""


class SiteTemplate:
    """The default version of the template that the settings name. Thread-safe."""

    def __init__(self, api: Api, settings: AwsCloud, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._settings = settings
        self._cache = TtlCache[str | None, Data](monotonic)

    def data(self) -> Data:
        """Its content, empty where the site has none; ProviderError where it cannot be read."""
        which = self._settings.launch_template
        return self._cache.get(which, lambda: self._read(which), ttl_s=FRESH)

    def forget(self) -> None:
        """Read it anew."""
        self._cache.forget()

    def if_readable(self) -> Data:
        """Its content; as it was where it cannot be read any more, and empty where it never could:
        a launch goes without.
        """
        try:
            return self.data()
        except ProviderError as error:
            last = self._cache.last(self._settings.launch_template)
            kept = "not kept" if last is None else "those of before"
            log.warning("launch template's metadata options and placement are %s "
                        "cloud=%s error=%s", kept, self._settings.name, error)  # fmt: skip
            return last or {}

    def _read(self, which: str | None) -> Data:
        if which is None:
            return {}
        named = site_template(which)
        request: dict[str, object] = {**named, "Versions": [named["Version"]]}
        del request["Version"]
        answer = self._api.send("describe_launch_template_versions", request)
        data: Data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        return data


def merged_tags(site: Sequence[Data], ours: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Both, each kind of resource once; ours win."""
    found: dict[str, dict[str, str]] = {}
    for one in (*site, *ours):
        tags = {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}
        found.setdefault(one["ResourceType"], {}).update(tags)
    return [
        {"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        for kind, tags in found.items()
    ]


def examine(template: SiteTemplate, settings: AwsCloud) -> Iterator[Finding]:
    """Whether its tags leave room for ours."""
    if settings.launch_template is None:
        return
    what = f"launch template {settings.launch_template}"

    def tags() -> Iterator[Finding]:
        tagged = template.data().get("TagSpecifications", ())
        most = max((len(one.get("Tags", ())) for one in tagged), default=0)
        if most <= SITE_TAGS:
            yield Finding.ok(what, f"there, with {most} tags of its own")
            return
        expected = f"{SITE_TAGS} at most: EC2 allows 50 on a machine, and the others are ours"
        advice = "take tags out of the template, or EC2 refuses launches"
        yield Finding.wrong(what, f"{most} tags of its own", expected, advice)

    look = Look(rights="", otherwise="correct clouds[].launch_template")
    yield from look.at(
        what, "a launch template of this region", tags,
        "allow ec2:DescribeLaunchTemplateVersions: a launch then keeps its metadata options and "
        "placement",
    )  # fmt: skip
