"""Finds the image of a pool by a name or by its maker's attributes. Answers are cached for some
minutes.

Every account may create an image under any name and let others use it, so only images of
``image_owners`` count. In oned a name is unique only for each owner. If two owners have an image of
the exact name, it is refused, not guessed. States and types: "Image States" of the OpenNebula
documentation, include/Image.h.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.images import Candidate, lacks, newest, none_fits, software_of
from slurm_elastic.providers.opennebula.requests import PREFIX
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

log = logging.getLogger(__name__)

LOOKUP_TTL_S = 300.0
"""For so long an answer is reused."""
ALL = -2
"""The filter for everything that an account may use."""
SELF = "self"
OS, VERSION, SOFTWARE = (f"{PREFIX}{word}" for word in ("OS", "VERSION", "SOFTWARE"))
"""Attributes of an image that its maker sets."""
_OS_IMAGE = 0
READY = frozenset({1, 2})  # READY USED
LOCKED = 4
_STATES = {
    0: "INIT", 3: "DISABLED", 4: "LOCKED", 5: "ERROR", 6: "CLONE", 7: "DELETE", 8: "USED_PERS",
    9: "LOCKED_USED", 10: "LOCKED_USED_PERS",
}  # fmt: skip
_WILD = frozenset("*?[")


class OneImage(Struct, frozen=True, kw_only=True):
    """The fields that we read of an image. ``unsuited``: why a pool's machines cannot boot from it.
    ``broken``: why no machine can start with it.
    """

    candidate: Candidate
    uid: int
    owner: str
    unsuited: str
    broken: str

    @property
    def unusable(self) -> str:
        """Why the image does not count; empty if it counts."""
        return self.unsuited or self.broken

    @property
    def shown(self) -> str:
        """The image for people."""
        return f"{self.candidate.id} ({self.candidate.name} of {self.owner})"


class OneImageList:
    """Finds the images of one cloud. ``call`` asks oned. Thread-safe."""

    def __init__(
        self,
        call: Callable[..., Any],
        settings: OpenNebulaCloud,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call = call
        self._settings = settings
        self._cache = TtlCache[ImageChoice, Candidate](monotonic)
        self._reports = ReportOnce[ImageChoice]()

    def of(self, pool: Pool) -> int | None:
        """The image's id; None if the pool uses the image of its template. ProviderError if no
        image fits, or if several have the exact name.
        """
        choice = pool.image
        if choice is None:
            return None
        if choice.id is not None:
            return int(choice.id)
        image = self._cache.get(choice, lambda: self._look(choice), ttl_s=LOOKUP_TTL_S)
        if self._reports.is_news(choice, image.id):
            log.info("image cloud=%s pool=%s id=%s name=%s",
                     self._settings.name, pool.name, image.id, image.name)  # fmt: skip
        return int(image.id)

    def forget(self) -> None:
        """Forget all answers, because the cloud has refused an id that we kept."""
        self._cache.forget()

    def _look(self, choice: ImageChoice) -> Candidate:
        records = self._call("imagepool.info", ALL, -1, -1).IMAGE
        # The filter ``ALL`` also returns images of other accounts, so we need our own number.
        # -1 means the account of the session.
        uid = int(self._call("user.info", -1).ID)
        images = [image(record) for record in records]
        return chosen(self._settings, choice, images, uid)


def chosen(
    settings: OpenNebulaCloud, choice: ImageChoice, images: Sequence[OneImage], uid: int
) -> Candidate:
    """The image for a choice. ``uid``: the account's own number. ProviderError if there is none, or
    several with the exact name.
    """
    owners = settings.image_owners
    trusted = [i for i in images if i.owner in owners or (SELF in owners and i.uid == uid)]
    usable = [i for i in trusted if not i.unusable]
    fitting = [i for i in usable if not lacks(choice, i.candidate)]
    if choice.name is not None and not _WILD & set(choice.name) and len(fitting) > 1:
        listed = ", ".join(i.shown for i in sorted(fitting, key=lambda i: int(i.candidate.id)))
        text = f"{len(fitting)} images are called {choice.name}: {listed}; name one by its id"
        raise ProviderError(settings.name, "AmbiguousImage", text)
    best = newest(choice, (i.candidate for i in usable))
    if best is None:
        text = none_fits(choice, [i.candidate for i in usable])
        ignored = _left_out(choice, images, trusted)
        raise ProviderError(settings.name, "NoImage", f"{text}{ignored}")
    return best


def _left_out(
    choice: ImageChoice, images: Iterable[OneImage], trusted: Collection[OneImage]
) -> str:
    """Text about the images that would have fitted but do not count."""
    reasons = [
        f"{i.shown} {i.unusable if i in trusted else 'is of an owner not in image_owners'}"
        for i in images
        if (i.unusable or i not in trusted) and not lacks(choice, i.candidate)
    ]
    return f"; {', '.join(reasons)}" if reasons else ""


def image(record: Any) -> OneImage:  # noqa: ANN401 - a pyone object
    """One image of oned's pool."""
    tags: Mapping[str, Any] = record.TEMPLATE or {}
    attributes = {key: str(tags.get(key) or "") for key in (OS, VERSION, SOFTWARE, "LABELS")}
    return OneImage(
        candidate=Candidate(
            id=str(record.ID),
            name=str(record.NAME),
            created=float(record.REGTIME or 0),
            os=attributes[OS],
            version=attributes[VERSION],
            software=software_of(attributes[SOFTWARE]) | software_of(attributes["LABELS"]),
        ),
        uid=int(record.UID),
        owner=str(record.UNAME),
        unsuited="" if int(record.TYPE) == _OS_IMAGE else "is not of type OS",
        broken=_broken(record),
    )


def _broken(record: Any) -> str:  # noqa: ANN401
    state = int(record.STATE)
    if int(record.PERSISTENT or 0):
        return "is persistent: one machine alone could use it"
    return "" if state in READY else f"is in state {_STATES.get(state, state)}"
