"""Launches machines in a cloud, and handles each kind of failure.

The order is fixed: the intent is in the ledger, then the cloud is called, then the result is
written. If the daemon dies in between, its successor repeats the call of the open intent.
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from slurm_elastic.model.memory import code_of
from slurm_elastic.model.protocols import Chooser
from slurm_elastic.model.slurm import NOWHERE
from slurm_elastic.policies.launch.exclusions import (
    AUTH_COOLDOWN,
    PARTIAL,
    after_partial,
    after_refusal,
    cool_down_after_refusal,
    keys_of,
    strikes_of,
)
from slurm_elastic.policies.nodes.node_state import has_name_alone
from slurm_elastic.policies.repair.list_plausibility import sanitize_listing
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ledger import Health, Launch

log = logging.getLogger(__name__)

RETRY_FOR_S = 60.0
"""Seconds for which a call is repeated. Not configurable: throttling ends within this time, an
outage does not, and the other calls of the cloud's worker wait meanwhile.
"""
RETRY_PAUSES = Backoff(0.5, 8.0)
CLOCK_SLACK_S = 60.0
"""Seconds by which the clock may step back without a warning; NTP makes such small steps."""

Answer = TypeVar("Answer")


class LaunchOutcome(Enum):
    """How a launch ended. IN_DOUBT: the cloud may have made machines; the intent stays open."""

    STARTED = "started"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"


class Launched(Struct, frozen=True, kw_only=True):
    """The result of one launch. ``instances`` may be fewer than requested. ``reason``: the error
    of a launch that was refused or is in doubt.
    """

    outcome: LaunchOutcome
    instances: tuple[Instance, ...] = ()
    reason: str = ""


def launch(
    site: Site,
    spec: LaunchSpec,
    request: str,
    *,
    is_repetition: bool = False,
    record_started: Callable[[Sequence[Instance]], None] | None = None,
) -> Launched:
    """Launch ``spec``, whose intent the caller has written to the ledger.

    ``record_started`` records the started machines, in the same transaction as the result.
    ``is_repetition``: an earlier round made the same call, which may have taken effect. A refusal
    cools down the offer, its market or the cloud. Raises sqlite3.Error, and no error of a cloud.
    """
    reach("launch.after-intent")
    call = _Call(site, spec, in_doubt=is_repetition)
    try:
        # Call once for an open launch. The next round repeats it anyway, and retries here would
        # delay the other launches of this cloud.
        answered = call() if is_repetition else call_with_retries(site, spec.offer.cloud, call)
    except TransientError as error:
        log.warning(
            "launch in doubt generation=%s cloud=%s error=%s", spec.generation, error.cloud, error
        )
        return Launched(outcome=LaunchOutcome.IN_DOUBT, reason=str(error))
    except ProviderError as error:
        return _handle_refusal(site, spec, error, in_doubt=call.in_doubt)
    # Unknown error, for example of a provider's SDK: the call may have reached the cloud. Keep the
    # intent open. The next list of the cloud shows whether the machines exist.
    except Exception as error:
        log.exception("launch failed in an unknown way generation=%s", spec.generation)
        reason = bounded(f"{type(error).__name__}: {error}")
        return Launched(outcome=LaunchOutcome.IN_DOUBT, reason=reason)
    reach("launch.after-call")
    instances = _sanitize_answer(site, spec, answered)
    for on_answer in site.extensions.on_answer:
        on_answer(spec.generation, spec.pool.name)
    with site.ledger.together():
        site.ledger.machines.record_launch(
            spec.generation, instances, site.now(), site.terms_of(spec.pool.name)
        )
        if record_started is not None:
            record_started(instances)
    reach("launch.after-result")
    log.info(
        "launched request=%s generation=%s offer=%s count=%d wanted=%d",
        request, spec.generation, spec.offer.key, len(instances), len(spec.nodes),
    )  # fmt: skip
    if site.clouds[spec.offer.cloud].node_address == "provider":
        assign_addresses(site, {i.node: i.address for i in instances if i.address})
    reach("launch.after-slurm")
    return Launched(outcome=LaunchOutcome.STARTED, instances=instances)


def _sanitize_answer(
    site: Site, spec: LaunchSpec, answered: Sequence[Instance]
) -> tuple[Instance, ...]:
    """Return the machines of the answer as the ledger may keep them. The answer to a repeated call
    shows tags that somebody may have edited since the first call.
    """
    prices = {offer.key: offer.price for offer in spec.offers}
    sanitized = sanitize_listing(
        answered, lambda instance: prices.get(instance.offer_key, spec.offer.price), site.now()
    )
    for id_, doubt in (sanitized.doubts | sanitized.unusable).items():
        log.warning("launch's answer not believed cloud=%s id=%s reason=%s",
                    spec.offer.cloud, id_, doubt)  # fmt: skip
    machines = sanitized.machines
    for keep in site.extensions.complete_listed:
        machines = keep(spec.offer.cloud, machines)
    return machines


def assign_addresses(site: Site, addresses: Mapping[str, str]) -> None:
    """Set NodeAddr of these nodes. If Slurm refuses, log it; the next round tries again."""
    if not addresses:
        return
    try:
        node_updates.set_addresses(site.slurm, addresses)
    except SlurmError as error:
        log.warning("addresses not set, reconcile tries again: %s", error)


def hide_names(site: Site, nodes: Sequence[str]) -> None:
    """Give these nodes an address that leads nowhere, if they are still off and have no address,
    so that slurmctld does not look up their names.
    """
    # Read the nodes again: a node that registers just now must not lose its machine's address.
    view = site.slurm.nodes(nodes)
    assign_addresses(site, {n: NOWHERE for n in nodes if n in view and has_name_alone(view[n])})


def rebuild_spec(site: Site, launch_row: Launch) -> LaunchSpec:
    """Return the spec of an earlier launch unchanged, to repeat the call under its token. EC2
    refuses a repeated call if any parameter differs.
    """
    spec = LaunchSpec(
        generation=launch_row.generation,
        pool=site.pools[launch_row.pool],
        nodes=launch_row.nodes,
        offer=launch_row.offer,
        jobs=launch_row.jobs,
        alternatives=launch_row.alternatives,
        is_repeated=True,
        owner=launch_row.owner,
        least=launch_row.least,
    )
    for describe in site.extensions.complete_spec:
        spec = describe(spec)
    return spec


class _Call(Struct):
    """The cloud call of one launch. ``in_doubt``: a call that failed may have taken effect."""

    site: Site
    spec: LaunchSpec
    in_doubt: bool
    is_repeated: bool = False

    def __call__(self) -> Sequence[Instance]:
        cloud = self.spec.offer.cloud
        if self.is_repeated and (trouble := self.site.ledger.end_only):
            # A repeated call may buy machines that the first one did not buy, and the ledger could
            # not record them. A round repeats the call after the ledger works again.
            raise UnsettledError(cloud, "EndOnly", trouble)
        self.is_repeated = True
        try:
            return self.site.providers[cloud].launch(self.spec)
        except TransientError:
            self.in_doubt = True
            raise


def call_with_retries(site: Site, cloud: str, call: Callable[[], Answer]) -> Answer:
    """Call ``call`` of the ``cloud``, and repeat it after a TransientError for at most RETRY_FOR_S
    seconds.

    UnsettledError passes at once, and so do all other errors.
    """
    # Leave the machine at least half of its ResumeTimeout to boot.
    boot_s = site.config.resume_timeout(site.clouds[cloud])
    deadline = site.monotonic() + min(RETRY_FOR_S, boot_s / 2)
    pause = RETRY_PAUSES.longer(0.0)
    while True:
        try:
            return call()
        # Before TransientError, its base class. Only time settles such a call, so a later round
        # repeats it; retries here would block the cloud's other calls.
        except UnsettledError:
            raise
        except TransientError as error:
            if site.monotonic() + pause > deadline:
                raise
            log.info("repeated after=%s", error)
            # Full jitter, because many clusters of one account must not retry at the same moment.
            if site.wait(random.uniform(pause / 2, pause)):  # noqa: S311
                raise
        pause = RETRY_PAUSES.longer(pause)


def _handle_refusal(
    site: Site, spec: LaunchSpec, error: ProviderError, *, in_doubt: bool
) -> Launched:
    # An earlier call may have taken effect even if the cloud refuses this one (for example because
    # our credentials have expired). A lack of capacity or quota closes the launch all the same:
    # a provider raises these errors on a repetition only if there are no machines of the first
    # call (``protocols.Provider.launch``).
    stays_open = in_doubt and not isinstance(error, CapacityError | QuotaError)
    # The cloud has answered. Close the intent first: if a later step failed with the intent open,
    # no other offer would be tried, and every round would repeat this same launch.
    if not stays_open:
        site.ledger.launches.record_failure(spec.generation, str(error), site.now())
    with _log_cool_down_errors(spec):
        _cool_down(site, spec, error)
    outcome = LaunchOutcome.IN_DOUBT if stays_open else LaunchOutcome.REFUSED
    return Launched(outcome=outcome, reason=str(error))


@contextmanager
def _log_cool_down_errors(spec: LaunchSpec) -> Iterator[None]:
    """Log an error of a cool-down. A cool-down only avoids useless calls, so its failure must not
    keep us from the next offer.
    """
    try:
        yield
    except sqlite3.Error:  # the ledger can store nothing, so nothing may be bought either
        raise
    except Exception:
        log.exception("offer does not cool down after a refusal offer=%s", spec.offer.key)


def _cool_down(site: Site, spec: LaunchSpec, error: ProviderError) -> None:
    """Cool down the offers that refused, and report errors that only a person can correct."""
    for offer, refusal in _refused_offers(site, spec, error):
        site.ledger.exclusions.add(make_cool_down(site, offer, refusal))
    if isinstance(error, DeniedError):
        log.error("cloud denies a launch, grant the right offer=%s error=%s", spec.offer.key, error)
    elif isinstance(error, AuthError):
        report_auth(site, error)


def _refused_offers(
    site: Site, spec: LaunchSpec, error: ProviderError
) -> Sequence[tuple[Offer, ProviderError]]:
    """Return the offers that must cool down after a failed launch, each with its own error. If the
    cloud denies the call as a whole, all offers cool down. Otherwise an offer that did not refuse
    may still work in a call of its own.
    """
    refused = list_refusals(site, spec)
    if isinstance(error, DeniedError) and not refused:
        return [(offer, error) for offer in spec.offers]
    return (
        *((o, refusal) for o, refusal in refused if o.key != spec.offer.key),
        (spec.offer, error),
    )


def report_auth(site: Site, error: AuthError) -> None:
    """Report in the log and in ``status`` that the cloud refuses us, or cannot be opened."""
    log.error("cloud cannot be used cloud=%s error=%s", error.cloud, error)
    site.ledger.health.report(
        Health(name=error.cloud, checked=site.now(), error=str(error), code=code_of(error))
    )


def end_far_exclusions(site: Site, exclusions: Iterable[Exclusion]) -> None:
    """End the cool-downs, pauses and holds that end later than any may be set for. They exist only
    after the clock was set back, and would exclude offers for as long as it was wrong.
    """
    timings = site.config.timings
    cool_downs = (timings.max_cooldown, timings.capacity_cooldown, timings.quota_cooldown)
    # The hold of a node whose machine did not boot is one cool-down longer than its pool's pause.
    hold_s = max(*cool_downs, timings.boot_cooldown, AUTH_COOLDOWN) + timings.capacity_cooldown
    longest = hold_s + CLOCK_SLACK_S
    latest = site.now() + longest
    if not any(row.until > latest and row.kind in TIMED for row in exclusions):
        return
    if ended := site.ledger.exclusions.end_far(site.now(), longest):
        log.warning("the clock was set back: cool-downs and holds over count=%d", ended)


def make_cool_down(site: Site, offer: Offer, error: ProviderError) -> Exclusion:
    """Return the cool-down after a refusal. Its time doubles with each refusal in a row."""
    timings = site.config.timings
    return grow_cool_down(
        site,
        *cool_down_after_refusal(offer, error, timings.capacity_cooldown, timings.quota_cooldown),
    )


def grow_cool_down(site: Site, key: str, seconds: float, code: str, cause: AnyCause) -> Exclusion:
    """Return the cool-down of ``key``: ``seconds``, doubled with each refusal in a row, at most
    ``timings.max_cooldown``.
    """
    now = site.now()
    earlier_refusals, longest = (
        strikes_of(site.ledger.exclusions.all(), key, now),
        site.config.timings.max_cooldown,
    )
    return after_refusal(key, earlier_refusals, now, seconds, longest, code, cause)


def list_refusals(site: Site, spec: LaunchSpec) -> list[tuple[Offer, ProviderError]]:
    """Return the offers that gave too few machines, with their errors, if the cloud could choose
    among several offers and names those that refused.
    """
    provider = site.providers[spec.offer.cloud]
    error_by_offer = provider.refusals(spec.generation) if isinstance(provider, Chooser) else {}
    return [
        (offer, error_by_offer[offer.key]) for offer in spec.offers if offer.key in error_by_offer
    ]


def cool_down_partial(site: Site, spec: LaunchSpec, started: int) -> Mapping[str, int]:
    """Cool down the offer of a launch that gave fewer machines than requested. The offer is empty
    for now, but it refused no call, so its next cool-down does not grow. If the cloud names the
    offers that refused, these cool down as after a refusal.

    Returns the earlier refusals by offer for ``count_as_refused``.
    """
    earlier_refusals: dict[str, int] = {}
    with _log_cool_down_errors(spec):
        refused = list_refusals(site, spec)
        for offer, error in refused:
            site.ledger.exclusions.add(make_cool_down(site, offer, error))
        seconds = site.config.timings.capacity_cooldown
        for offer in () if refused else spec.offers:
            rows = site.ledger.exclusions.all()
            earlier_refusals[offer.key] = strikes_of(rows, offer.key, site.now())
            site.ledger.exclusions.add(
                after_partial(offer.key, started, len(spec.nodes), site.now(), seconds)
            )
    return earlier_refusals


def count_as_refused(site: Site, earlier_refusals: Mapping[str, int]) -> None:
    """Count the partial answers of these offers as refusals, because the machines were too few for
    their job and ended. Otherwise the same machines would be bought and ended after each cool-down.
    """
    now, timings = site.now(), site.config.timings
    rows = {row.scope: row for row in site.ledger.exclusions.all() if row.kind == COOL_DOWN}
    for key, count in earlier_refusals.items():
        if key in rows and rows[key].code == PARTIAL:
            grown = after_refusal(
                key, count, now, timings.capacity_cooldown, timings.max_cooldown,
                PARTIAL, rows[key].cause,
            )  # fmt: skip
            site.ledger.exclusions.add(grown)


def forget_refusals(site: Site, spec: LaunchSpec, instances: Sequence[Instance]) -> None:
    """Forget earlier refusals of the offers that have now given all requested machines."""
    refused = {row.scope for row in site.ledger.exclusions.all() if row.kind == COOL_DOWN}
    if not refused:
        return
    gave = {i.offer_key for i in instances}
    for offer in spec.offers:
        for key in keys_of(offer) if offer.key in gave or not spec.alternatives else ():
            if key in refused and strikes_of(site.ledger.exclusions.all(), key, site.now()):
                site.ledger.exclusions.readmit(COOL_DOWN, key)
