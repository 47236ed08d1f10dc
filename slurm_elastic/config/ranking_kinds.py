"""The ranking keys that a configuration may name: ours, and keys of other packages. Packages
offer keys by an entry point of the group ``slurm_elastic.ranking``.
"""

from __future__ import annotations

import logging
import math
import re
from functools import cache, partial

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import ConfigError, describe_foreign
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.model.cluster import NodeRequest, Offer
from slurm_elastic.model.protocols import RankingKey
from slurm_elastic.policies.launch.pool_order import AVAILABLE
from slurm_elastic.policies.launch.ranking import KEYS

log = logging.getLogger(__name__)

GROUP = "slurm_elastic.ranking"
API = 1
"""The version of the interface for keys. It grows when a change of RankingKind, NodeRequest or
Offer breaks keys of other packages.
"""
NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The form of a name, which the submit filter reads in a file of words (``slurm/hooks``)."""
_OWN = tuple(KEYS)
_reported = ReportOnce[str]()


class RankingKind(Struct, frozen=True, kw_only=True):
    """A ranking key of another package. ``name``: the word in ``ranking``. ``key`` returns a number
    for an offer; smaller ranks first. The number depends on the pool of the request and on the
    offer alone, because it also orders the clouds of jobs not submitted yet.
    """

    name: str
    key: RankingKey
    api: int = API


@cache
def table() -> outside.Kinds[RankingKind]:
    """The ranking keys of this installation."""
    own_places = {name: f"slurm_elastic.policies.launch.ranking:{name}" for name in _OWN}
    return outside.Kinds(RankingKind, API, "ranking keys", own_places, outside.installed(GROUP))


def checked_key(name: str) -> RankingKey:
    """The key of that name, which must exist. ValueError with a sentence if it cannot be used."""
    if name not in table().other_names:
        return KEYS[name]
    if name == AVAILABLE or not NAME.fullmatch(name):
        raise ValueError("a key's name has lower-case letters, digits and _, and is not available")
    try:
        return table().kind(name).key
    except ConfigError as error:
        raise ValueError(f"{name!r}, {error}") from None


class _Installed:
    """The source of other packages' keys for ``ranking.KEYS``."""

    def names(self) -> tuple[str, ...]:
        return table().names()

    def function(self, name: str) -> RankingKey:
        if name not in table().other_names:
            raise KeyError(name)
        return partial(_number, name)


def _number(name: str, request: NodeRequest, offer: Offer) -> float:
    """The number of the key. If the key cannot be used, every offer gets the same number, so that
    the next key decides and the service continues.
    """
    try:
        number = checked_key(name)(request, offer)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code may raise anything
        trouble = describe_foreign(error)
    else:
        if isinstance(number, int | float) and math.isfinite(number):
            return float(number)
        trouble = f"found {describe_foreign(number)}, expected a finite number"
    if _reported.is_news(name, trouble):
        log.warning("ranking key %s ranks an offer last: %s", name, trouble)
    return math.inf


# Each process that ranks has read a configuration, and so has imported this module. Policies cannot
# do this themselves, because they import nothing that imports packages.
KEYS.others = _Installed()
