"""The text by which a resource in neutron says that ``init --make`` created it.

neutron sets tags by a call of its own, so a broken run would leave resources without a mark. The
description is set by the call that creates the resource. A key pair has only the comment of its
public key.
"""

from __future__ import annotations

import re

from msgspec import Struct

from slurm_elastic.model.site_resources import MADE_BY, SiteResource

_MARK = re.compile(
    re.escape(MADE_BY) + r"; cluster (?P<cluster>\S+); cloud (?P<cloud>\S+); part (?P<part>\S+); "
    r"as (?P<digest>\S+)"
)


class OwnerMark(Struct, frozen=True):
    """The owner of a resource, its key, and its digest when we created it."""

    cluster: str
    cloud: str
    part: str = ""
    digest: str = ""

    def text_of(self, resource: SiteResource) -> str:
        """The text for a new resource."""
        return (
            f"{MADE_BY}; cluster {self.cluster}; cloud {self.cloud}; part {resource.key}; "
            f"as {resource.digest}"
        )

    def read(self, text: str | None) -> OwnerMark | None:
        """The mark in a description; None if it is not of the same cluster and cloud."""
        match = _MARK.fullmatch(text or "")
        if match is None:
            return None
        mark = OwnerMark(match["cluster"], match["cloud"], match["part"], match["digest"])
        return mark if (mark.cluster, mark.cloud) == (self.cluster, self.cloud) else None
