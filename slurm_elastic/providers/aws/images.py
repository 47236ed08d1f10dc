"""Finds the AMI of a pool by a name pattern or by tags, and the product name under which EC2 prices
its machines. Answers are cached for some minutes.

Only images of ``image_owners`` count, because every account may publish an AMI under any name.
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
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.settings import AwsCloud

log = logging.getLogger(__name__)

LOOKUP_TTL_S = 300.0
"""For so long an answer is reused."""
LINUX = "Linux/UNIX"
_LICENSED = ("Red Hat Enterprise Linux", "SUSE Linux")
"""Platforms of images with spot prices of their own ("Understand AMI billing information" and
``product-description`` of DescribeSpotPriceHistory). Images with the customer's own licence are
sold as Linux.
"""
OS, VERSION, SOFTWARE = (f"slurm-elastic:{word}" for word in ("os", "version", "software"))
"""The tags of an AMI that its maker sets."""


class AwsImages:
    """Finds the images of one cloud. Thread-safe."""

    def __init__(self, api: AwsApi, settings: AwsCloud, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._settings = settings
        self._cache = TtlCache[Hashable, Any](monotonic)
        self._reports = ReportOnce[ImageChoice]()

    def of(self, pool: Pool) -> str:
        """The image's id. ProviderError if no image fits."""
        choice = pool.image
        if choice is None:
            return self._settings.image
        if choice.id is not None:
            return choice.id
        image: Candidate = self._cache.get(choice, lambda: self._look(choice), ttl_s=LOOKUP_TTL_S)
        if self._reports.is_news(choice, image.id):
            log.info("image cloud=%s pool=%s id=%s name=%s",
                     self._settings.name, pool.name, image.id, image.name)  # fmt: skip
        return image.id

    def root_device(self, pool: Pool) -> str:
        """The name of the system disk of the pool's image, if the pool changes that disk; else
        empty. ProviderError if it cannot be read.
        """
        if pool.machine.root_disk is None:
            return ""
        image = self.of(pool)
        # The name belongs to the image and never changes.
        name: str = self._cache.get((image, "root"), lambda: self._root(image), ttl_s=math.inf)
        return name

    def _root(self, image: str) -> str:
        answer = self._api.send("describe_images", {"ImageIds": [image]})
        name = next((i.get("RootDeviceName", "") for i in answer.get("Images", ())), "")
        if not name:
            text = f"EC2 names no system disk of image {image}, so it cannot be changed"
            raise ProviderError(self._settings.name, "NoRootDevice", text)
        return str(name)

    def product(self, pool: Pool) -> str:
        """The product name under which EC2 prices spot machines of the pool's image; Linux if that
        cannot be read.
        """
        try:
            image = self.of(pool)
        except ProviderError:
            return LINUX  # the launch will report that no image fits
        # The product name of an image never changes, so it is read once, and again only after a
        # failure.
        ttl_s = math.inf if self._cache.last(image) else LOOKUP_TTL_S
        product_name: str | None = self._cache.get(image, lambda: self._sold_as(image), ttl_s=ttl_s)
        return product_name or LINUX

    def _sold_as(self, image: str) -> str | None:
        try:
            answer = self._api.send("describe_images", {"ImageIds": [image]})
        except ProviderError as error:
            log.info("product name of an image cannot be read, Linux is assumed cloud=%s error=%s",
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
        best = newest(choice, candidates)
        if best is None:
            text = f"{none_fits(choice, candidates)} of {', '.join(self._settings.image_owners)}"
            raise ProviderError(self._settings.name, "NoImage", text)
        return best


def _ec2_pattern(name: str) -> str:
    """The pattern for EC2's filter, which knows only ``*`` and ``?``. A bracket becomes ``?``, and
    the results are matched again here.
    """
    in_bracket, text = False, ""
    for letter in name:
        if letter == "[" and not in_bracket:
            in_bracket, text = True, f"{text}?"
        elif in_bracket:
            in_bracket = letter != "]"
        else:
            text += letter
    return text


def candidate(record: Mapping[str, Any]) -> Candidate:
    """Convert an image record of EC2's answer."""
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
        # An image without a date counts as the oldest one.
        return 0.0
