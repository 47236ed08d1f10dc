"""Exclusions: things that are not to be used now, until when, and how that is told. Pure; daemon
and simulator go by the same.

Cool-downs: an offer that refused, gave too little or was taken away is asked again later. Breakers:
a broken image, a closed port or a wrong key make machines that boot, cost and never register with
Slurm; each job then buys the next ones. After some in a row the pool is paused: nothing is bought
for it until that is over, then one machine is tried. After one alone its pool, or its offer, cools
down for a short while (``to_cool_down``), so that its job goes elsewhere first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import AuthError, DeniedError, ProviderError, QuotaError
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.composed import CoolsDown, PoolPaused, PoolTried, SpotRefused
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.causes.refusals import PartlyGiven, TakenAway
from slurm_elastic.model.cluster import Market, Offer, Pool
from slurm_elastic.model.exclusion import (
    BREAKER,
    COOL_DOWN,
    NO_SPOT,
    Exclusion,
    offer_scope,
    scope_of_offers,
)

RANKED = frozenset({COOL_DOWN, BREAKER, NO_SPOT})
"""Kinds of exclusions by which offers are ranked."""
STRIKES_KEPT = 3600.0
"""How long (s) after its end a cool-down still counts for the length of the next."""
AUTH_COOLDOWN = 60.0
"""Seconds before a cloud that refused our credentials is asked again."""
DENIED = "Denied"
"""The code of the cool-down of an offer for which a right is missing: a person has to grant it."""


_NEVER_REGISTERED = BootsFailed()


class Excluded:
    """The exclusions that concern one pool and its offers at one moment: the rule by which ranking,
    ``explain``, ``status`` and ``offers`` tell that something is not to be used now.

    ``pause``: why nothing is bought for the pool at all, None where something may be; ``trial``:
    why one machine may be tried at a time, empty where more may. ``jobs`` are those that wait.
    """

    def __init__(
        self, pool: Pool, exclusions: Sequence[Exclusion], now: float, jobs: Collection[int] = ()
    ) -> None:
        lasting = []
        self.pause: PoolPaused | None = None
        self.trial: PoolTried | None = None
        for one in exclusions:
            if one.kind == COOL_DOWN and one.until > now:
                lasting.append(one)
            elif one.kind == BREAKER and one.scope == pool.name:
                self.pause, self.trial = paused(one, now), _trial(one)
        self._pool, self._now = pool, now
        scopes = [(offer_scope(c.scope), c) for c in lasting]
        self._wide = [(scope, c) for scope, c in scopes if not scope.is_single_offer]
        self._of_offer = {c.scope: c for c in reversed(lasting)}
        self._no_spot = no_spot(jobs, exclusions, now)

    def among(self, offers: Iterable[Offer]) -> dict[str, AnyCause]:
        """By key, why these are not asked now though their pool may buy; of those that are not."""
        if not (self._of_offer or self._no_spot):
            return {}
        return {offer.key: why for offer in offers if (why := self.why(offer))}

    def why(self, offer: Offer) -> AnyCause | None:
        """Why the offer is not asked now though its pool may buy; None where it may be."""
        return self._cooling(offer) or (self._no_spot if offer.market is Market.SPOT else None)

    def _cooling(self, offer: Offer) -> CoolsDown | None:
        wide = (c for scope, c in self._wide if scope.covers(offer, self._pool))
        found = next(wide, None) or self._of_offer.get(offer.key)
        if found is None:
            return None
        until = Deadline.of(found.until, self._now)
        return CoolsDown(until=until, code=found.code, cause=found.cause)


def no_spot(
    jobs: Collection[int], exclusions: Iterable[Exclusion], now: float
) -> SpotRefused | None:
    """Why no spot machine is bought for these jobs; None where one may be."""
    job_of = {f"job:{job}": job for job in jobs}
    for one in exclusions:
        if one.kind == NO_SPOT and one.scope in job_of and one.until > now:
            return SpotRefused(job=job_of[one.scope], cause=one.cause)
    return None


def touches(key: str, pool: Pool) -> bool:
    """Whether a cool-down key may name offers of the pool."""
    return offer_scope(key).touches(pool)


def pool_key(pool: Pool) -> str:
    """The key of a cool-down of all offers, but for this pool only."""
    return scope_of_offers(pool.cloud, pool=pool.name)


# cool-downs


def keys_of(offer: Offer) -> tuple[str, str, str]:
    """The keys of cool-downs: the offer's own, its market's in the cloud, and the whole cloud's."""
    return offer.key, scope_of_offers(offer.cloud, offer.market), scope_of_offers(offer.cloud)


def of_refusal(
    offer: Offer, error: ProviderError, capacity: float, quota: float
) -> tuple[str, float, str, AnyCause]:
    """What is not asked again after a cloud's refusal, for how long the first time (s; ``capacity``
    and ``quota`` are the site's), its code and the cause.
    """
    of_offer, of_market, of_cloud = keys_of(offer)
    if isinstance(error, DeniedError):
        key = of_market if error.of_market else of_offer
        return key, capacity, DENIED, Quoted(text=f"{error.code}: {error.message}")
    said = Quoted(text=error.message)
    if isinstance(error, AuthError):
        return of_cloud, AUTH_COOLDOWN, error.code, said
    # A quota is the account's for the whole market; a lack of capacity is one offer's.
    if isinstance(error, QuotaError):
        return of_market, quota, error.code, said
    return of_offer, capacity, error.code, said


def after_refusal(
    key: str, strikes: int, now: float, seconds: float, longest: float, code: str, cause: AnyCause
) -> Exclusion:
    """The cool-down of ``key`` after one refusal more: ``seconds``, doubled with each of the
    ``strikes`` before it in a row, up to ``longest``.
    """
    until = now + Backoff(seconds, max(longest, seconds)).after(strikes + 1)
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=until,
        code=code,
        cause=cause,
        count=strikes + 1,
    )


def after_partial(key: str, given: int, wanted: int, now: float, seconds: float) -> Exclusion:
    """An offer that gave some machines is empty for now, but refused nothing: its next cool-down
    does not grow.
    """
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=now + seconds,
        code="Partial",
        cause=PartlyGiven(given=given, wanted=wanted),
        count=0,
    )


def after_interruption(key: str, machine: str, now: float, seconds: float) -> Exclusion:
    """An offer that was just taken away is hardly to be had again at once."""
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=now + seconds,
        code="interruption",
        cause=TakenAway(machine=machine),
        count=1,
    )


def strikes_of(exclusions: Iterable[Exclusion], key: str, now: float) -> int:
    """Consecutive refusals so far: those of the last cool-down of ``key``, unless that was over an
    hour ago or longer.
    """
    since = now - STRIKES_KEPT
    known = (
        c.count for c in exclusions if c.kind == COOL_DOWN and c.scope == key and c.until > since
    )
    return next(known, 0)


# breakers


def after_failures(
    before: Exclusion,
    count: int,
    now: float,
    *,
    limit: int,
    cool_down: float,
    how: BootsFailed = _NEVER_REGISTERED,
) -> Exclusion:
    """The pool's breaker when ``count`` more machines have failed: ``how`` they did.

    It opens at ``limit`` in a row, and anew when the machine that was tried fails, too.
    """
    failures = before.count + count
    # An open breaker is drawn out by a trial that fails, not by machines that were on their way.
    tried = before.until and before.until <= now
    if not tried and (before.until or failures < limit):
        return replace(before, count=failures, cause=before.cause if before.until else how)
    return Exclusion(
        kind=BREAKER,
        scope=before.scope,
        count=failures,
        until=now + cool_down,
        cause=replace(how, in_a_row=failures),
    )


def paused(breaker: Exclusion | None, now: float) -> PoolPaused | None:
    """Why nothing is bought for the pool now, if so."""
    if breaker is None or not breaker.until or breaker.until <= now:
        return None
    until = Deadline.of(breaker.until, now)
    return PoolPaused(pool=breaker.scope, until=until, cause=breaker.cause)


def _trial(breaker: Exclusion) -> PoolTried | None:
    return PoolTried(pool=breaker.scope, cause=breaker.cause) if breaker.until else None


def sickly(breaker: Exclusion) -> bool:
    """Whether its last machines did register, and Slurm took them out of service after that: the
    next one that registers proves nothing then.
    """
    return isinstance(breaker.cause, BootsFailed) and bool(breaker.cause.node_reason)


class Boot(Struct, frozen=True, kw_only=True):
    """How a machine's boot went: its offer, when it was launched, and when its node registered."""

    offer: str
    launched: float
    registered: float | None = None


def to_cool_down(failed: Sequence[Boot], others: Iterable[Boot], pool: str) -> tuple[str, ...]:
    """The things not to be asked for a while after these machines of a pool did not register (keys
    of cool-downs): ``pool`` is the key of all of it.

    Where machines of the pool (``others``) have registered since one of them was launched, only the
    offers of which none has; nothing, where one has of each.
    """
    since = min(boot.launched for boot in failed)
    proofs = [b for b in others if b.registered is not None and b.registered >= since]
    # An image, a network or a key is at fault mostly, as nothing of the pool has come up since.
    if not proofs:
        return (pool,)
    # The pool works: where each offer has a proof, single machines have failed.
    proven = {boot.offer for boot in proofs}
    return tuple(dict.fromkeys(b.offer for b in failed if b.offer not in proven))
