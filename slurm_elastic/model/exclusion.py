"""What is not to be used now, and why: offers, markets, clouds, pools, nodes, jobs."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.cluster import Market, Offer, Pool


class ExclusionKind(StrEnum):
    """What an exclusion is about, by the words of the ledger's column ``kind``."""

    COOL_DOWN = "cool-down"
    BREAKER = "breaker"
    DOUBT = "doubt"
    NO_SPOT = "no-spot"
    CAPACITY = "capacity"
    POLICY = "policy"
    OPERATOR = "by-operator"


COOL_DOWN, BREAKER = ExclusionKind.COOL_DOWN, ExclusionKind.BREAKER
DOUBT, NO_SPOT = ExclusionKind.DOUBT, ExclusionKind.NO_SPOT
CAPACITY, POLICY = ExclusionKind.CAPACITY, ExclusionKind.POLICY
OPERATOR = ExclusionKind.OPERATOR
"""Why a node is held: no offer is left for it; the site's policies start none now; an operator
wants nothing new there.
"""
HOLDS = frozenset({CAPACITY, POLICY, OPERATOR})
"""The kinds that keep nodes from Slurm."""
TIMED = frozenset({COOL_DOWN, BREAKER, CAPACITY})
"""The kinds that are set for a time, and over after it."""


_UNKNOWN = Quoted(text="")


class Exclusion(Struct, frozen=True, kw_only=True):
    """Something that is not to be used now: ``scope``, until ``until`` (Unix time), for ``cause``.

    ``kind`` says what the scope is: of COOL_DOWN the text of an OfferScope; of BREAKER a pool, of
    which so many machines in a row (``count``) did not come up (``until`` 0: it is not paused yet;
    over: one machine is tried); of CAPACITY a node for which no offer has room; of
    POLICY and OPERATOR a node, for other reasons (``until`` says nothing then); of DOUBT a cloud
    whose list of machines was wrong for long (endless: a person or the list ends it), ``about`` has
    what that lacked: ids, and nodes as ``node:NAME``; of NO_SPOT a job (``job:NUMBER``) that gets
    no spot machine, as it cannot be saved.

    ``count`` refusals in a row have the next cool-down grow. ``code`` is the cause in a word of the
    cloud's, ``since`` when it began, ``pool`` the node's.
    """

    kind: ExclusionKind
    scope: str
    until: float = 0.0
    cause: AnyCause = _UNKNOWN
    code: str = ""
    count: int = 0
    since: float = 0.0
    pool: str = ""
    about: tuple[str, ...] = ()


ANY = "*"
"""Stands for every name in a part of an OfferScope."""
_SEPARATOR = "/"


class OfferScope(Struct, frozen=True):
    """The offers that a cool-down is about: those of one cloud, type, zone and market, for the jobs
    of one pool. Each part is a name, or ANY. Its text ``cloud/type/zone/market`` is the
    ``Offer.key`` of a single offer; ``/pool`` follows where it is for one pool only.
    """

    cloud: str
    instance_type: str = ANY
    zone: str = ANY
    market: str = ANY
    pool: str = ANY

    def __str__(self) -> str:
        parts = [self.cloud, self.instance_type, self.zone, self.market]
        return _SEPARATOR.join(parts if self.pool == ANY else [*parts, self.pool])

    @property
    def is_single_offer(self) -> bool:
        """Whether it is one offer, for all pools."""
        return self.pool == ANY and ANY not in (
            self.cloud, self.instance_type, self.zone, self.market
        )  # fmt: skip

    def covers(self, offer: Offer, pool: Pool) -> bool:
        """Whether it names the offer, for jobs of that pool."""
        return (
            self.cloud in (ANY, offer.cloud)
            and self.instance_type in (ANY, offer.instance_type)
            and self.zone in (ANY, offer.zone)
            and self.market in (ANY, offer.market)
            and self.pool in (ANY, pool.name)
        )

    def touches(self, pool: Pool) -> bool:
        """Whether it may name offers of the pool."""
        return (
            self.cloud in (ANY, pool.cloud)
            and self.pool in (ANY, pool.name)
            and (not pool.instance_types or self.instance_type in (ANY, *pool.instance_types))
            and (not pool.zones or self.zone in (ANY, *pool.zones))
            and self.market in (ANY, *pool.markets)
        )


@lru_cache(maxsize=4096)
def offer_scope(text: str) -> OfferScope:
    """The scope that is written like that. Parts that are missing at the end are ANY."""
    return OfferScope(*text.split(_SEPARATOR, 4))


def scope_of_offers(cloud: str, market: Market | None = None, pool: str = ANY) -> str:
    """The text for all offers of a cloud, or of one market there, or for one pool."""
    return str(OfferScope(cloud, market=market or ANY, pool=pool))
