"""The site's own launch template, as far as it and our requests overlap. A parameter in a request
replaces the whole parameter of the template ("RunInstances", LaunchTemplate), but tags are merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.requests import site_template
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import SITE_TAGS
from slurm_elastic.providers.base.preflight import CheckRunner

log = logging.getLogger(__name__)

Data = Mapping[str, Any]

TEMPLATE_TTL_S = 300.0
"""For so long an answer is reused. The site may make another version the default."""


class SiteTemplate:
    """The default version of the template that the settings name. Thread-safe."""

    def __init__(self, api: AwsApi, settings: AwsCloud, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._settings = settings
        self._cache = TtlCache[str | None, Data](monotonic)

    def data(self) -> Data:
        """The template's content; empty if the site has none. ProviderError if it cannot be
        read.
        """
        template = self._settings.launch_template
        return self._cache.get(template, lambda: self._read(template), ttl_s=TEMPLATE_TTL_S)

    def forget(self) -> None:
        """Read the template again at the next use."""
        self._cache.forget()

    def if_readable(self) -> Data:
        """The template's content. If it cannot be read now, the last content, or an empty one if it
        never could: a launch does not fail for it.
        """
        try:
            return self.data()
        except ProviderError as error:
            last_data = self._cache.last(self._settings.launch_template)
            kept = "not kept" if last_data is None else "the last known ones"
            log.warning("launch template's metadata options and placement are %s "
                        "cloud=%s error=%s", kept, self._settings.name, error)  # fmt: skip
            # Deliberate: a launch without the site's metadata options is better than none.
            return last_data or {}

    def _read(self, template: str | None) -> Data:
        if template is None:
            return {}
        reference = site_template(template)
        request: dict[str, object] = {**reference, "Versions": [reference["Version"]]}
        del request["Version"]
        answer = self._api.send("describe_launch_template_versions", request)
        data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        # Our requests repeat it. botocore refuses a request with a field that only answers have.
        accepted: Data = self._api.accepted("CreateLaunchTemplate", "LaunchTemplateData", data)
        return accepted


def merged_tags(
    site: Sequence[Data], our_specifications: Sequence[Mapping[str, Any]]
) -> list[dict[str, object]]:
    """The tags of both, each kind of resource once. Our tags win."""
    tags_by_kind: dict[str, dict[str, str]] = {}
    for specification in (*site, *our_specifications):
        tags = {tag["Key"]: tag["Value"] for tag in specification.get("Tags", ())}
        tags_by_kind.setdefault(specification["ResourceType"], {}).update(tags)
    return [
        {"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        for kind, tags in tags_by_kind.items()
    ]


def examine(template: SiteTemplate, settings: AwsCloud) -> Iterator[Finding]:
    """Whether the template's tags leave room for ours."""
    if settings.launch_template is None:
        return
    subject = f"launch template {settings.launch_template}"

    def tags() -> Iterator[Finding]:
        tagged = template.data().get("TagSpecifications", ())
        max_count = max((len(specification.get("Tags", ())) for specification in tagged), default=0)
        if max_count <= SITE_TAGS:
            yield Finding.ok(subject, f"there, with {max_count} tags of its own")
            return
        expected = f"{SITE_TAGS} at most: EC2 allows 50 on a machine, and the others are ours"
        advice = "take tags out of the template, or EC2 refuses launches"
        yield Finding.wrong(subject, f"{max_count} tags of its own", expected, advice)

    checks = CheckRunner(rights="", otherwise="correct clouds[].launch_template")
    yield from checks.at(
        subject, "a launch template of this region", tags,
        "allow ec2:DescribeLaunchTemplateVersions: a launch then keeps its metadata options and "
        "placement",
    )  # fmt: skip
