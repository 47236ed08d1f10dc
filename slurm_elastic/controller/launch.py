"""One launch: intent first, the cloud call, the result after; and what each failure means."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    ProviderError,
    QuotaError,
    SlurmError,
    TransientError,
    UnsettledError,
    bounded,
)
from slurm_elastic.base.faults import reach
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Instance, LaunchSpec, Offer
from slurm_elastic.model.exclusion import COOL_DOWN, TIMED, Exclusion
from slurm_elastic.model.memory import REFUSED
from slurm_elastic.model.protocols import Chooser
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.launch.exclusions import (
    AUTH_COOLDOWN,
    after_partial,
    after_refusal,
    keys_of,
    of_refusal,
    strikes_of,
)
from slurm_elastic.policies.nodes.node_state import has_name_alone
from slurm_elastic.policies.repair.list_plausibility import sound
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ledger import Health, Launch

log = logging.getLogger(__name__)

RETRIED = 60.0
"""Seconds for which a call is repeated. No key: a throttle passes within them, a cloud that is down
does not, and others' calls wait meanwhile.
"""
PAUSES = Backoff(0.5, 8.0)
SLACK = 60.0
"""Seconds by which a clock may be put right without a word."""

Answer = TypeVar("Answer")


class LaunchOutcome(Enum):
    """How a launch ended. IN_DOUBT: the call may have taken effect; its intent stays open."""

    STARTED = "started"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"


class Launched(Struct, frozen=True, kw_only=True):
    """The answer to one launch: ``instances`` may be fewer than asked; ``why`` where it lacks."""

    outcome: LaunchOutcome
    instances: tuple[Instance, ...] = ()
    why: str = ""


def launch(
    site: Site,
    spec: LaunchSpec,
    request: str,
    *,
    again: bool = False,
    tell: Callable[[Sequence[Instance]], None] | None = None,
) -> Launched:
    """Start ``spec``. The intent is in the ledger before the cloud is called. ``tell`` records the
    decision on what was started, in the transaction that writes the result down.

    A refusal cools the offer (or its market, or the cloud) down. ``again``: a call of an earlier
    round may have taken effect.
    """
    reach("launch.after-intent")
    call = _Call(site, spec, in_doubt=again)
    try:
        # For an open launch the next round is the repetition: it must not hold up the others.
        answered = call() if again else with_retries(site, call)
    except TransientError as error:
        log.warning(
            "launch in doubt generation=%s cloud=%s error=%s", spec.generation, error.cloud, error
        )
        return Launched(outcome=LaunchOutcome.IN_DOUBT, why=str(error))
    except ProviderError as error:
        return _refused(site, spec, error, in_doubt=call.in_doubt)
    # None of the five: the machines may exist, so the intent stays open.
    except Exception as error:
        log.exception("launch failed in an unknown way generation=%s", spec.generation)
        why = bounded(f"{type(error).__name__}: {error}")
        return Launched(outcome=LaunchOutcome.IN_DOUBT, why=why)
    reach("launch.after-call")
    instances = _believed(site, spec, answered)
    for tell_answered in site.extensions.on_answer:
        tell_answered(spec.generation, spec.pool.name)
    with site.ledger.together():
        site.ledger.machines.launched(spec.generation, instances, site.now())
        if tell is not None:
            tell(instances)
    reach("launch.after-result")
    log.info(
        "launched request=%s generation=%s offer=%s count=%d wanted=%d",
        request, spec.generation, spec.offer.key, len(instances), len(spec.nodes),
    )  # fmt: skip
    if site.clouds[spec.offer.cloud].node_address == "provider":
        assign_addresses(site, {i.node: i.address for i in instances if i.address})
    reach("launch.after-slurm")
    return Launched(outcome=LaunchOutcome.STARTED, instances=instances)


def _believed(site: Site, spec: LaunchSpec, answered: Sequence[Instance]) -> tuple[Instance, ...]:
    """As the answer may be kept: that of a repeated call has tags that anybody may have changed."""
    prices = {offer.key: offer.price for offer in spec.offers}
    found = sound(answered, lambda one: prices.get(one.offer_key, spec.offer.price), site.now())
    for id_, why in (found.doubts | found.unusable).items():
        log.warning("launch's answer not believed cloud=%s id=%s reason=%s",
                    spec.offer.cloud, id_, why)  # fmt: skip
    machines = found.machines
    for keep in site.extensions.complete_listed:
        machines = keep(spec.offer.cloud, machines)
    return machines


def assign_addresses(site: Site, addresses: Mapping[str, str]) -> None:
    """NodeAddr by node, of machines that have an address already; repair does the others."""
    if not addresses:
        return
    try:
        node_updates.set_addresses(site.slurm, addresses)
    except SlurmError as error:
        log.warning("addresses not set, reconcile tries again: %s", error)


def hide_names(site: Site, nodes: Sequence[str]) -> None:
    """Give these nodes an address that leads nowhere, if they are still off and without one."""
    # Read again, else a node that registers just now would lose its machine's address.
    view = site.slurm.nodes(nodes)
    assign_addresses(site, {n: NOWHERE for n in nodes if n in view and has_name_alone(view[n])})


def spec_of(site: Site, launch_row: Launch) -> LaunchSpec:
    """The very spec of an earlier launch, to repeat it under the same token."""
    spec = LaunchSpec(
        generation=launch_row.generation,
        pool=site.pools[launch_row.pool],
        nodes=launch_row.nodes,
        offer=launch_row.offer,
        jobs=launch_row.jobs,
        alternatives=launch_row.alternatives,
        again=True,
        owner=launch_row.owner,
    )
    for describe in site.extensions.complete_spec:
        spec = describe(spec)
    return spec


class _Call(Struct):
    """The cloud call of one launch, and whether one that went wrong may have taken effect."""

    site: Site
    spec: LaunchSpec
    in_doubt: bool
    is_repeated: bool = False

    def __call__(self) -> Sequence[Instance]:
        cloud = self.spec.offer.cloud
        if self.is_repeated and (why := self.site.ledger.end_only):
            # It might buy what it did not buy before: a round repeats it, once all is known again.
            raise UnsettledError(cloud, "EndOnly", why)
        self.is_repeated = True
        try:
            return self.site.providers[cloud].launch(self.spec)
        except TransientError:
            self.in_doubt = True
            raise


def with_retries(site: Site, call: Callable[[], Answer]) -> Answer:
    """``call``, repeated while the cloud is only busy, for RETRIED seconds at most."""
    # Half of a boot is left to the machine in any case.
    deadline = site.monotonic() + min(RETRIED, site.shortest_boot / 2)
    pause = PAUSES.longer(0.0)
    while True:
        try:
            return call()
        # What only time can answer is left to a later round: others' calls wait behind this one.
        except UnsettledError:
            raise
        except TransientError as error:
            if site.monotonic() + pause > deadline:
                raise
            log.info("repeated after=%s", error)
            # Full jitter: many clusters of one account must not come back at the same moment.
            if site.wait(random.uniform(pause / 2, pause)):  # noqa: S311
                raise
        pause = PAUSES.longer(pause)


def _refused(site: Site, spec: LaunchSpec, error: ProviderError, *, in_doubt: bool) -> Launched:
    # An earlier call may have taken effect. This refusal does not tell.
    stays_open = in_doubt and not isinstance(error, CapacityError | QuotaError)
    # The cloud has answered. Close the intent first: if a later step failed with the intent open,
    # no other offer would be tried, and every round would repeat this very launch.
    if not stays_open:
        site.ledger.launches.failed(spec.generation, str(error), site.now())
    try:
        _cool_down(site, spec, error)
    except sqlite3.Error:  # the ledger can store nothing, so nothing may be bought either
        raise
    except Exception:
        log.exception("offer does not cool down after a refusal offer=%s", spec.offer.key)
    outcome = LaunchOutcome.IN_DOUBT if stays_open else LaunchOutcome.REFUSED
    return Launched(outcome=outcome, why=str(error))


def _cool_down(site: Site, spec: LaunchSpec, error: ProviderError) -> None:
    """Ask the offers that refused later, and report what only a person can mend."""
    for offer, why in _refused_offers(site, spec, error):
        site.ledger.exclusions.add(cool_down_for(site, offer, why))
    if isinstance(error, DeniedError):
        log.error("cloud denies a launch, grant the right offer=%s error=%s", spec.offer.key, error)
    elif isinstance(error, AuthError):
        report_auth(site, error)


def _refused_offers(
    site: Site, spec: LaunchSpec, error: ProviderError
) -> Sequence[tuple[Offer, ProviderError]]:
    """The offers that cool down after a launch that failed, each with its own reason. A call that
    is denied as a whole is denied for all of them; the others may do by themselves.
    """
    told = refusals(site, spec)
    if isinstance(error, DeniedError) and not told:
        return [(offer, error) for offer in spec.offers]
    return (*((o, why) for o, why in told if o.key != spec.offer.key), (spec.offer, error))


def report_auth(site: Site, error: AuthError) -> None:
    """Somebody has to renew our credentials."""
    log.error("cloud refuses our credentials cloud=%s error=%s", error.cloud, error)
    site.ledger.health.report(
        Health(name=error.cloud, checked=site.now(), error=str(error), code=REFUSED)
    )


def end_far(site: Site, exclusions: Iterable[Exclusion]) -> None:
    """No cool-down, pause or hold lasts for longer than any is set for, as the clock may have been
    set back since; by more than the small steps that keep it right (SLACK).
    """
    timings = site.config.timings
    ours = (timings.cooldown_max, timings.capacity_cooldown, timings.quota_cooldown)
    longest = max(*ours, timings.boot_cooldown, AUTH_COOLDOWN) + SLACK
    far = site.now() + longest
    if not any(one.until > far and one.kind in TIMED for one in exclusions):
        return
    if ended := site.ledger.exclusions.end_far(site.now(), longest):
        log.warning("the clock was set back: cool-downs and holds over count=%d", ended)


def cool_down_for(site: Site, offer: Offer, error: ProviderError) -> Exclusion:
    """The offers not to ask again, and for how long: it doubles with each refusal in a row."""
    timings = site.config.timings
    return grown(site, *of_refusal(offer, error, timings.capacity_cooldown, timings.quota_cooldown))


def grown(site: Site, key: str, seconds: float, code: str, cause: AnyCause) -> Exclusion:
    """The cool-down of ``key``: ``seconds``, doubled with each one in a row."""
    now = site.now()
    strikes, longest = (
        strikes_of(site.ledger.exclusions.all(), key, now),
        site.config.timings.cooldown_max,
    )
    return after_refusal(key, strikes, now, seconds, longest, code, cause)


def refusals(site: Site, spec: LaunchSpec) -> list[tuple[Offer, ProviderError]]:
    """The offers that gave nothing or too little, where the launch could choose among several."""
    provider = site.providers[spec.offer.cloud]
    said = provider.refusals(spec.generation) if isinstance(provider, Chooser) else {}
    return [(offer, said[offer.key]) for offer in spec.offers if offer.key in said]


def cool_partial(site: Site, spec: LaunchSpec, started: int) -> None:
    """An offer that gave some is empty for now, but refused nothing: its next cool-down does not
    grow. Where the cloud says which offers refused, they are cooled as such.
    """
    refused = refusals(site, spec)
    for offer, error in refused:
        site.ledger.exclusions.add(cool_down_for(site, offer, error))
    seconds = site.config.timings.capacity_cooldown
    for offer in () if refused else spec.offers:
        site.ledger.exclusions.add(
            after_partial(offer.key, started, len(spec.nodes), site.now(), seconds)
        )


def forgive(site: Site, spec: LaunchSpec, instances: Sequence[Instance]) -> None:
    """All that was asked for was given: earlier refusals of what gave it count no more."""
    refused = {one.scope for one in site.ledger.exclusions.all() if one.kind == COOL_DOWN}
    if not refused:
        return
    gave = {i.offer_key for i in instances}
    for offer in spec.offers:
        for key in keys_of(offer) if offer.key in gave or not spec.alternatives else ():
            if key in refused and strikes_of(site.ledger.exclusions.all(), key, site.now()):
                site.ledger.exclusions.readmit(COOL_DOWN, key)
