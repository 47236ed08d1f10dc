"""The AMI of a pool, looked up by name pattern or tags, and as what EC2 sells its machines; kept
for some minutes.

Only images of ``image_owners`` count: anybody may publish an AMI with any name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.images import Candidate, newest, none_fits, software_of
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.settings import AwsCloud

log = logging.getLogger(__name__)

FRESH = 300.0
"""Seconds for which an answer serves."""
LINUX = "Linux/UNIX"
_LICENSED = ("Red Hat Enterprise Linux", "SUSE Linux")
"""Platforms of images that have spot prices of their own ("Understand AMI billing information" and
DescribeSpotPriceHistory's ``product-description``); what is brought along is sold as Linux.
"""
OS, VERSION, SOFTWARE = (f"slurm-elastic:{word}" for word in ("os", "version", "software"))
"""Tags of an AMI, set by whoever made it."""


class Images:
    """Thread-safe."""

    def __init__(self, api: Api, settings: AwsCloud, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._settings = settings
        self._cache = TtlCache[Hashable, Any](monotonic)
        self._reports = ReportOnce[ImageChoice]()

    def of(self, pool: Pool) -> str:
        """The image's id; ProviderError where none fits."""
        choice = pool.image
        if choice is None:
            return self._settings.image
        if choice.id is not None:
            return choice.id
        image: Candidate = self._cache.get(choice, lambda: self._look(choice), ttl_s=FRESH)
        if self._reports.is_news(choice, image.id):
            log.info("image cloud=%s pool=%s id=%s name=%s",
                     self._settings.name, pool.name, image.id, image.name)  # fmt: skip
        return image.id

    def product(self, pool: Pool) -> str:
        """As what EC2 prices spot machines of the pool's image; Linux where that cannot be read."""
        try:
            image = self.of(pool)
        except ProviderError:
            return LINUX  # nothing starts from it, which the launch will say
        # It never changes of an image: asked once, and anew only where it was not told.
        fresh = math.inf if self._cache.last(image) else FRESH
        sold: str | None = self._cache.get(image, lambda: self._sold_as(image), ttl_s=fresh)
        return sold or LINUX

    def _sold_as(self, image: str) -> str | None:
        try:
            answer = self._api.send("describe_images", {"ImageIds": [image]})
        except ProviderError as error:
            log.info("what an image is sold as cannot be read cloud=%s error=%s",
                     self._settings.name, error)  # fmt: skip
            return None
        details = next((i.get("PlatformDetails", "") for i in answer.get("Images", ())), "")
        return next((name for name in _LICENSED if details.startswith(name)), LINUX)

    def _look(self, choice: ImageChoice) -> Candidate:
        filters = [{"Name": "state", "Values": ["available"]}]
        if choice.name is not None:
            filters.append({"Name": "name", "Values": [_ec2_pattern(choice.name)]})
        request = {"Owners": list(self._settings.image_owners), "Filters": filters}
        answer = self._api.send("describe_images", request)
        candidates = [candidate(record) for record in answer["Images"]]
        found = newest(choice, candidates)
        if found is None:
            text = f"{none_fits(choice, candidates)} of {', '.join(self._settings.image_owners)}"
            raise ProviderError(self._settings.name, "NoImage", text)
        return found


def _ec2_pattern(name: str) -> str:
    """EC2 knows ``*`` and ``?``; a bracket is any one character there, and looked at again here."""
    inside, text = False, ""
    for letter in name:
        if letter == "[" and not inside:
            inside, text = True, f"{text}?"
        elif inside:
            inside = letter != "]"
        else:
            text += letter
    return text


def candidate(record: Mapping[str, Any]) -> Candidate:
    """One image of EC2's answer."""
    tagged = tags(record)
    return Candidate(
        id=record["ImageId"],
        name=record.get("Name", ""),
        created=_unix(record.get("CreationDate", "")),
        os=tagged.get(OS, ""),
        version=tagged.get(VERSION, ""),
        software=software_of(tagged.get(SOFTWARE, "")),
    )


def _unix(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
