"""Exclusions: offers, markets, clouds, pools, nodes and jobs that must not be used now, and why."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.cluster import Market, Offer, Pool


class ExclusionKind(StrEnum):
    """The kind of an exclusion. The values are those of the ledger's column ``kind``."""

    COOL_DOWN = "cool-down"
    BREAKER = "breaker"
    DOUBT = "doubt"
    OTHER_HEAD = "other-head"
    NO_SPOT = "no-spot"
    COMMITTED = "committed"
    CAPACITY = "capacity"
    POLICY = "policy"
    OPERATOR = "by-operator"


COOL_DOWN, BREAKER = ExclusionKind.COOL_DOWN, ExclusionKind.BREAKER
DOUBT, NO_SPOT = ExclusionKind.DOUBT, ExclusionKind.NO_SPOT
OTHER_HEAD = ExclusionKind.OTHER_HEAD
COMMITTED = ExclusionKind.COMMITTED
CAPACITY, POLICY = ExclusionKind.CAPACITY, ExclusionKind.POLICY
OPERATOR = ExclusionKind.OPERATOR
"""Why a node is held. CAPACITY: no offer is left for it. POLICY: the site's policies start no
machine now. OPERATOR: an operator lets nothing new start on it, or by a change of the configuration
its address in the tunnel is that of another node's machine.
"""
HOLDS = frozenset({CAPACITY, POLICY, OPERATOR})
"""The kinds that hold nodes back from Slurm."""
TIMED = frozenset({COOL_DOWN, BREAKER, CAPACITY})
"""The kinds that end by themselves after a time."""


_UNKNOWN = Quoted(text="")


class Exclusion(Struct, frozen=True, kw_only=True):
    """``scope`` must not be used until ``until`` (Unix time), because of ``cause``.

    The meaning of ``scope`` depends on ``kind``:

    - COOL_DOWN: the text of an OfferScope. ``count``: refusals in a row, which lengthen the next
      cool-down.
    - BREAKER: a pool of which ``count`` machines in a row did not come up. ``until`` 0: the pool is
      not paused yet. After ``until``, one machine is tried.
    - CAPACITY: a node for which no offer has room.
    - POLICY, OPERATOR: a node that is held for another reason. ``until`` has no meaning.
    - DOUBT: a cloud whose list of machines was wrong for long. It ends when the list is right again
      or a person ends it. ``about``: the missing machine ids, and nodes as ``node:NAME``.
    - OTHER_HEAD: the whole cluster, because another head works for it, too. It ends when a person
      says that this head continues. ``about``: ids of the other head's machines.
    - COMMITTED: a cloud, or "" for the cluster, whose budget is spent if the running jobs use their
      time limits. ``until``: the end of the budget's day or month.
    - NO_SPOT: a job (``job:NUMBER``) that gets no spot machine because it cannot be saved.

    ``code``: the cloud's error code. ``since``: when it began (Unix time). ``pool``: the node's
    pool.
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
_SEPARATOR, _OF_RESERVATION = "/", ":"


class OfferScope(Struct, frozen=True):
    """The offers of a cool-down: by cloud, type, zone, market and reservation, and the pool whose
    jobs it concerns. Each part is a name or ANY. The text ``cloud/type/zone/market`` or
    ``cloud/type/zone/market:reservation`` is the ``Offer.key`` if no part is ANY. If the cool-down
    is for one pool only, ``/pool`` follows.
    """

    cloud: str
    instance_type: str = ANY
    zone: str = ANY
    market: str = ANY
    pool: str = ANY
    reservation: str = ANY

    def __str__(self) -> str:
        suffix = "" if self.reservation == ANY else f"{_OF_RESERVATION}{self.reservation}"
        names = [self.cloud, self.instance_type, self.zone, f"{self.market}{suffix}"]
        return _SEPARATOR.join(names if self.pool == ANY else [*names, self.pool])

    @property
    def is_single_offer(self) -> bool:
        """Whether the scope is exactly one offer, for all pools."""
        return self.pool == ANY and ANY not in (
            self.cloud, self.instance_type, self.zone, self.market
        )  # fmt: skip

    def covers(self, offer: Offer, pool: Pool) -> bool:
        """Whether the scope includes the offer for jobs of the pool."""
        return (
            self.cloud in (ANY, offer.cloud)
            and self.instance_type in (ANY, offer.instance_type)
            and self.zone in (ANY, offer.zone)
            and self.market in (ANY, offer.market)
            and self.reservation in (ANY, "" if offer.held is None else offer.held.name)
            and self.pool in (ANY, pool.name)
        )

    def touches(self, pool: Pool) -> bool:
        """Whether the scope may include offers of the pool."""
        return (
            self.cloud in (ANY, pool.cloud)
            and self.pool in (ANY, pool.name)
            and (not pool.instance_types or self.instance_type in (ANY, *pool.instance_types))
            and (not pool.zones or self.zone in (ANY, *pool.zones))
            and self.market in (ANY, *pool.markets)
        )


@lru_cache(maxsize=4096)
def offer_scope(text: str) -> OfferScope:
    """Parse the text of a scope. Missing parts at the end are ANY."""
    cloud, instance_type, zone, market, pool = (*text.split(_SEPARATOR, 4), *[ANY] * 4)[:5]
    market, _, reservation = market.partition(_OF_RESERVATION)
    return OfferScope(cloud, instance_type, zone, market, pool, reservation or ANY)


def scope_of_offers(cloud: str, market: Market | None = None, pool: str = ANY) -> str:
    """The text for all offers of a cloud, or of one market there, or for one pool."""
    return str(OfferScope(cloud, market=market or ANY, pool=pool))
