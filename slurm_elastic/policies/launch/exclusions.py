"""Exclusions: offers and pools that must not be used for a time, and how people read about them.
Pure; the daemon and the simulator share these rules.

Cool-downs: an offer that refused, gave too few machines or lost one to an interruption is asked
again later.

Breakers: with a broken image, a closed port or a wrong key, machines boot, cost money and never
register with Slurm, and each job then buys the next ones. After some failures in a row the pool is
paused: nothing is bought for it for a time, then one machine is tried. After a single failure the
pool, or the offer, cools down for a short while (``to_cool_down``), so that its job first tries
elsewhere.
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
"""The kinds of exclusions that affect the ranking of offers."""
STRIKES_KEPT = 3600.0
"""Seconds after the end of a cool-down in which it still lengthens the next cool-down."""
AUTH_COOLDOWN = 60.0
"""Seconds before we ask a cloud again that refused our credentials."""
DENIED = "Denied"
"""The code of the cool-down of an offer for which we lack a right: a person must grant it."""
PARTIAL = "Partial"
"""The code of the cool-down of an offer that gave fewer machines than wanted."""


_NEVER_REGISTERED = BootsFailed()


class Excluded:
    """The exclusions of one pool and its offers at one moment. Ranking, ``explain``, ``status`` and
    ``offers`` all use it to decide what must not be used now.

    ``pause``: why nothing is bought for the pool, or None. ``trial``: why only one machine may be
    tried at a time, or None. ``jobs``: the waiting jobs' numbers. ``refused_spot``: why no spot
    machine is bought, whatever the exclusions are.
    """

    def __init__(
        self,
        pool: Pool,
        exclusions: Sequence[Exclusion],
        now: float,
        jobs: Collection[int] = (),
        *,
        refused_spot: AnyCause | None = None,
    ) -> None:
        lasting = []
        self.pause: PoolPaused | None = None
        self.trial: PoolTried | None = None
        for exclusion in exclusions:
            if exclusion.kind == COOL_DOWN and exclusion.until > now:
                lasting.append(exclusion)
            # An ended pause is no pause, but its breaker still allows one trial machine only.
            elif exclusion.kind == BREAKER and exclusion.scope == pool.name:
                self.pause, self.trial = paused(exclusion, now), _trial(exclusion)
        self._pool, self._now = pool, now
        scopes = [(offer_scope(c.scope), c) for c in lasting]
        self._wide = [(scope, c) for scope, c in scopes if not scope.is_single_offer]
        # Reversed, so that the first of several cool-downs of an offer counts.
        self._of_offer = {c.scope: c for c in reversed(lasting)}
        self._no_spot = refused_spot or no_spot(jobs, exclusions, now)

    def among(self, offers: Iterable[Offer]) -> dict[str, AnyCause]:
        """Return, by key, why these offers are not asked now although their pool may buy."""
        if not (self._of_offer or self._no_spot):
            return {}
        return {offer.key: cause for offer in offers if (cause := self.why(offer))}

    def why(self, offer: Offer) -> AnyCause | None:
        """Return why the offer is not asked now although its pool may buy; None if it is asked."""
        return self._cooling(offer) or (self._no_spot if offer.market is Market.SPOT else None)

    def _cooling(self, offer: Offer) -> CoolsDown | None:
        wide = (c for scope, c in self._wide if scope.covers(offer, self._pool))
        cool_down = next(wide, None) or self._of_offer.get(offer.key)
        if cool_down is None:
            return None
        until = Deadline.of(cool_down.until, self._now)
        return CoolsDown(until=until, code=cool_down.code, cause=cool_down.cause)


def no_spot(
    jobs: Collection[int], exclusions: Iterable[Exclusion], now: float
) -> SpotRefused | None:
    """Return why no spot machine is bought for these jobs; None if it is allowed."""
    job_of = {f"job:{job}": job for job in jobs}
    for exclusion in exclusions:
        if exclusion.kind == NO_SPOT and exclusion.scope in job_of and exclusion.until > now:
            return SpotRefused(job=job_of[exclusion.scope], cause=exclusion.cause)
    return None


def touches(key: str, pool: Pool) -> bool:
    """Whether a cool-down's key may cover offers of the pool."""
    return offer_scope(key).touches(pool)


def pool_key(pool: Pool) -> str:
    """Return the key of a cool-down that covers all offers for this pool only."""
    return scope_of_offers(pool.cloud, pool=pool.name)


# cool-downs


def keys_of(offer: Offer) -> tuple[str, str, str]:
    """Return the keys of cool-downs: of the offer, of its market in the cloud, of the cloud."""
    return offer.key, scope_of_offers(offer.cloud, offer.market), scope_of_offers(offer.cloud)


def cool_down_after_refusal(
    offer: Offer, error: ProviderError, capacity: float, quota: float
) -> tuple[str, float, str, AnyCause]:
    """Return which key cools down after a cloud's refusal, for how long the first time (s), the
    code, and the cause. ``capacity`` and ``quota``: the site's cool-downs (s).
    """
    of_offer, of_market, of_cloud = keys_of(offer)
    if isinstance(error, DeniedError):
        # Some rights are granted per market: without such a right the cloud refuses all its offers.
        key = of_market if error.of_market else of_offer
        return key, capacity, DENIED, Quoted(text=f"{error.code}: {error.message}")
    cloud_text = Quoted(text=error.message)
    # Credentials are the cloud's, so no other offer of it would be sold either.
    if isinstance(error, AuthError):
        return of_cloud, AUTH_COOLDOWN, error.code, cloud_text
    # A quota applies to the whole market of the account; a lack of capacity to one offer. But one
    # large job must not close the market to jobs for which the quota still has enough.
    if isinstance(error, QuotaError) and not error.of_size:
        return of_market, quota, error.code, cloud_text
    return of_offer, capacity, error.code, cloud_text


def after_refusal(
    key: str,
    earlier_refusals: int,
    now: float,
    seconds: float,
    longest: float,
    code: str,
    cause: AnyCause,
) -> Exclusion:
    """Return the cool-down of ``key`` after one more refusal: ``seconds``, doubled for each of the
    ``earlier_refusals`` in a row before it, up to ``longest`` (s).
    """
    refusals = earlier_refusals + 1
    # Backoff is bounded: refusals are kept in the ledger, and 2 ** 1024 would raise OverflowError.
    until = now + Backoff(seconds, max(longest, seconds)).after(refusals)
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=until,
        code=code,
        cause=cause,
        count=refusals,
    )


def after_partial(
    key: str, given_count: int, wanted_count: int, now: float, seconds: float
) -> Exclusion:
    """Return the cool-down of an offer that gave fewer machines than wanted. It is empty for now,
    but refused nothing, so its next cool-down does not grow unless the machines were useless
    (``controller/launching/launch.py``, ``count_as_refused``).
    """
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=now + seconds,
        code=PARTIAL,
        cause=PartlyGiven(given=given_count, wanted=wanted_count),
        count=0,
    )


def after_interruption(key: str, machine: str, now: float, seconds: float) -> Exclusion:
    """Return the cool-down of an offer that just lost a machine to an interruption: the cloud will
    hardly sell it again at once.
    """
    return Exclusion(
        kind=COOL_DOWN,
        scope=key,
        until=now + seconds,
        code="interruption",
        cause=TakenAway(machine=machine),
        count=1,
    )


def strikes_of(exclusions: Iterable[Exclusion], key: str, now: float) -> int:
    """Return the number of consecutive refusals of ``key``: the count of its last cool-down, unless
    that cool-down ended an hour ago or earlier.
    """
    since = now - STRIKES_KEPT
    counts = (
        c.count for c in exclusions if c.kind == COOL_DOWN and c.scope == key and c.until > since
    )
    return next(counts, 0)


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
    """Return the pool's breaker after ``count`` more machines failed in the way ``how``.

    It opens after ``limit`` failures in a row, and opens again if the trial machine fails, too.
    ``cool_down`` (s).
    """
    failures = before.count + count
    # Only a trial that fails prolongs an open breaker. Machines launched before it opened must not,
    # because they may fail all at once.
    is_after_trial = before.until and before.until <= now
    if not is_after_trial and (before.until or failures < limit):
        return replace(before, count=failures, cause=before.cause if before.until else how)
    return Exclusion(
        kind=BREAKER,
        scope=before.scope,
        count=failures,
        until=now + cool_down,
        cause=replace(how, in_a_row=failures),
    )


def paused(breaker: Exclusion | None, now: float) -> PoolPaused | None:
    """Return why nothing is bought for the pool now; None if buying is allowed."""
    if breaker is None or not breaker.until or breaker.until <= now:
        return None
    until = Deadline.of(breaker.until, now)
    return PoolPaused(pool=breaker.scope, until=until, cause=breaker.cause)


def _trial(breaker: Exclusion) -> PoolTried | None:
    return PoolTried(pool=breaker.scope, cause=breaker.cause) if breaker.until else None


def sickly(breaker: Exclusion) -> bool:
    """Whether the pool's last machines did register, and failed later: Slurm took them out of
    service, or others ended them. The next registration then does not prove that the pool works.
    """
    return isinstance(breaker.cause, BootsFailed) and breaker.cause.is_after_registration


class Boot(Struct, frozen=True, kw_only=True):
    """The outcome of a machine's boot: its offer, when it was launched, and when its node
    registered (Unix s; None: it did not).
    """

    offer: str
    launched: float
    registered: float | None = None


def to_cool_down(failed: Sequence[Boot], pool_boots: Iterable[Boot], pool: str) -> tuple[str, ...]:
    """Return the cool-down keys for machines of a pool that did not register. ``pool`` is the key
    of the whole pool.

    If machines of the pool (``pool_boots``) have registered since the first of these was launched,
    return only the offers without a registration, which may be none.
    """
    # A registration before that may be older than the fault.
    first_launched_at = min(boot.launched for boot in failed)
    proofs = [
        b for b in pool_boots if b.registered is not None and b.registered >= first_launched_at
    ]
    # No machine of the pool has come up since: an image, a network or a key is the likely cause,
    # and all offers share these.
    if not proofs:
        return (pool,)
    # The pool works, so an offer with a registration is not at fault; single machines have failed.
    proven = {boot.offer for boot in proofs}
    return tuple(dict.fromkeys(b.offer for b in failed if b.offer not in proven))
