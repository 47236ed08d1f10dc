"""A cloud: whether its credentials work, whether it has offers, and whether the clocks agree."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime

from msgspec.structs import replace as altered

from slurm_elastic.base.errors import AuthError, ProviderError, SlurmElasticError
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import brief, money
from slurm_elastic.config import Config
from slurm_elastic.config.catalogue import Catalogue
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import types_of
from slurm_elastic.config.tunnel import uses
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import OFF, STANDING, Limits, Market, NodeRequest, Offer, Pool
from slurm_elastic.model.directive import scope_of_cloud
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Examinable, Expiring, Provider
from slurm_elastic.policies.launch.ranking import Scope, ceiling, mispriced, unsold
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.inbound_rules import InboundRules
from slurm_elastic.state.credentials import ending, health_of, soon
from slurm_elastic.watch.doctor import catalogue
from slurm_elastic.watch.doctor.environment import FILE

NO_LIMITS = Limits()
MAX_SKEW_S = 60.0  # a cloud's clock that differs more is reported


def examine(
    config: Config,
    cloud: CloudSettings,
    pools: Sequence[Pool],
    answer: Catalogue | ProviderError | None = None,
) -> tuple[Finding, ...]:
    """Return all findings on one cloud. An exception of its SDK becomes a finding.

    ``answer``: the catalogue from which ``config`` has the cloud's types, or why there is none.
    """
    try:
        # Both limits bound what pools can ask for.
        bounded = altered(cloud, limits=tighter(cloud.limits, config.limits))
        provider = open_provider(bounded, config.cluster, config)
        catalogue_findings = catalogue.examine(cloud, pools, answer, time.time())
        findings = look(provider, cloud, pools, config.limits)
        return (*findings, *_udp(provider, config, cloud), *catalogue_findings)
    except Exception as error:  # noqa: BLE001 - the other clouds must still be looked at
        is_ours = isinstance(error, SlurmElasticError)
        return (
            Finding.wrong(
                "opening it",
                str(error) if is_ours else f"{type(error).__name__}: {error}",
                expected="its API answers us",
                cause=scope_of_cloud(cloud.name),
            ),
        )


def not_looked_at(config: Config) -> Finding:
    """Return the finding for users: their credentials prove nothing about the services' own."""
    return Finding.note(
        "credentials, machines, offers",
        f"not checked: the cloud's credentials are for root and {config.slurm.user}",
        advice=f"run this as root or {config.slurm.user}",
    )


def tighter(limits: Limits, other_limits: Limits) -> Limits:
    """Return the lower value of each pair of limits."""
    pairs = {
        name: (getattr(limits, name), getattr(other_limits, name))
        for name in Limits.__struct_fields__
    }
    return Limits(
        **{name: min((n for n in pair if n is not None), default=None)
           for name, pair in pairs.items()}
    )  # fmt: skip


def look(
    provider: Provider, cloud: CloudSettings, pools: Sequence[Pool], limits: Limits = NO_LIMITS
) -> Iterator[Finding]:
    """Yield the findings on an open provider. ``limits`` are the cluster's."""
    credentials = _credentials(provider, cloud)
    yield credentials
    if credentials.level is FindingLevel.WRONG:
        return  # the other checks would fail for the same reason
    if isinstance(provider, Expiring):
        yield from _expiry(provider, cloud.name, time.time())
    yield _machines(provider, cloud.name)
    for pool in pools:
        yield from _pool(provider, cloud, pool, limits)
    if isinstance(provider, Examinable):
        yield from provider.examine(pools)
    if cloud.clock_url is not None:
        yield from _clock(cloud.clock_url, cloud.api_timeout)


def _udp(provider: Provider, config: Config, cloud: CloudSettings) -> Iterator[Finding]:
    """Check that the security groups let the head open the tunnels, if the head is the end that
    opens them.
    """
    network = config.join.network
    if network is None or not network.head_opens or not uses(network, cloud):
        return
    if not isinstance(provider, InboundRules):
        return
    subject, port = "UDP from the head", network.udp_port
    try:
        is_open = provider.lets_udp_in(port)
    except ProviderError as error:
        yield Finding.note(subject, f"not checked: {error.refusal}")
        return
    if is_open is None:
        text = "not checked: the configuration names no security group"
        yield Finding.note(subject, text, advice=f"let UDP port {port} into machines")
    elif is_open:
        yield Finding.ok(subject, f"a security group lets port {port} in")
    else:
        yield Finding.wrong(
            subject,
            f"no security group lets port {port} in",
            expected="the way of the tunnels that the head opens",
            advice=f"let UDP port {port} in, or run init --make ({page('network')})",
        )


def _credentials(provider: Provider, cloud: CloudSettings) -> Finding:
    try:
        provider.check()
    except AuthError as error:
        return Finding.wrong(
            "credentials",
            f"refused: {error.code}: {error.message}",
            expected="credentials that the cloud accepts, which SlurmUser may read",
            advice="renew them, or give SlurmUser a copy (install -o) and say in "
            f"{FILE} where it is ({page('install')}); slurm-elasticd reads them without a restart",
            cause=scope_of_cloud(cloud.name),
        )
    except ProviderError as error:
        return Finding.wrong(
            "reaching it",
            f"{error.code}: {error.message}",
            expected="an answer",
            advice=cloud.reach_advice,
            cause=scope_of_cloud(cloud.name),
        )
    return Finding.ok("credentials", "accepted")


def _expiry(provider: Expiring, cloud: str, now: float) -> Iterator[Finding]:
    try:
        ends = provider.credentials_end()
    except ProviderError as error:
        yield Finding.note("credentials' end", f"not known: {error}")
        return
    if ends is not None:
        is_soon = soon(ends, now)
        yield Finding(
            subject="credentials' end",
            level=FindingLevel.NOTE if is_soon else FindingLevel.OK,
            observed=ending(ends, now),
            advice="renew them before: then nothing there can be started or ended"
            if is_soon
            else "",
            cause=health_of(cloud, ends, now).name if is_soon else "",
        )


def _machines(provider: Provider, cloud: str) -> Finding:
    try:
        machines = provider.instances()
    except ProviderError as error:
        return Finding.wrong(
            "listing machines",
            f"{error.code}: {error.message}",
            expected="the right to list them: without it none can be ended for sure",
            advice="see the cloud's page in docs/ for the rights that are needed",
            cause=scope_of_cloud(cloud),
        )
    standing = sum(machine.state in STANDING for machine in machines)
    # Count only these two, because clouds also list machines of the past.
    off = sum(machine.state in OFF for machine in machines)
    stopped = f", {off} stopped" if off else ""
    return Finding.ok("listing machines", f"{standing} of this cluster{stopped}")


def _pool(
    provider: Provider, cloud: CloudSettings, pool: Pool, limits: Limits
) -> Iterator[Finding]:
    subject = f"offers of pool {pool.name}"
    try:
        offers = provider.offers(pool)
    except ProviderError as error:
        yield Finding.wrong(subject, f"{error.code}: {error.message}", expected="prices and types")
        return
    scope = Scope(limits=limits, cloud_limits={cloud.name: cloud.limits})
    request = NodeRequest(id="doctor", pool=pool, nodes=pool.nodes)
    usable, cause = ceiling(request, offers, scope)
    yield _for_sale(subject, offers) if usable or not offers else _unusable(subject, offers, cause)
    yield from _markets(cloud, pool, offers)
    yield from _prices(pool, offers)
    if pool.stopped and not pool.stopped_price:
        yield Finding.note(
            f"stopped machines of pool {pool.name}",
            "stopped_price is 0: their disks are in no cost and no budget",
            advice=f"set pools[{pool.name}].stopped_price, $/h of a machine's disk",
        )


def _unusable(subject: str, offers: Sequence[Offer], cause: AnyCause | None) -> Finding:
    return Finding.wrong(
        subject,
        f"{len(offers)}, none can ever be used: {cause}",
        expected="at least one within the limits that fits the pool",
        advice="slurm-elastic offers has the reason of each",
    )


def _markets(cloud: CloudSettings, pool: Pool, offers: Sequence[Offer]) -> Iterator[Finding]:
    """Report offers that the configuration names but the cloud does not have.

    A wholly missing market would stay unnoticed: the pool is bought at another price, or never.
    """
    missing = unsold(pool, offers, types_of(cloud, pool)) if offers else ()
    if cloud.reservations:
        # A reservation is for the types that it names.
        missing = tuple(wish for wish in missing if wish[1] is not Market.RESERVED)
    sold = {offer.market for offer in offers}
    for market in dict.fromkeys(market for _, market in missing):
        types = ", ".join(sorted(name for name, offer_market in missing if offer_market is market))
        yield Finding(
            subject=f"{market} offers of pool {pool.name}",
            level=FindingLevel.NOTE if market in sold else FindingLevel.WRONG,
            observed=f"the cloud gives no price for {types}",
            expected="a price of each type on each market of the pool (markets, instance_types)",
            advice="does the cloud sell it there? Else take it out of the pool",
        )


def _prices(pool: Pool, offers: Sequence[Offer]) -> Iterator[Finding]:
    """Compare typed prices with the cloud's own prices."""
    subject = f"prices of pool {pool.name}"
    flaw_by_type = {o.instance_type: (o, flaw) for o in offers if (flaw := mispriced(o))}
    for offer, flaw in flaw_by_type.values():
        yield Finding.wrong(
            subject,
            str(flaw),
            expected=f"at least {money(offer.reference_price or 0.0)}/h",
            advice="put the cloud's own on-demand price there: the spending cap counts with it",
        )
    checked = {o.instance_type for o in offers if o.reference_price is not None}
    if checked and not flaw_by_type:
        names = ", ".join(sorted(checked))
        yield Finding.ok(subject, f"none is below what the cloud itself asks ({names})")


def _for_sale(subject: str, offers: Sequence[Offer]) -> Finding:
    """Report what the cloud offers, and how much of it if the cloud says so (quota, hosts)."""
    if not offers:
        return Finding.wrong(
            subject,
            "none",
            expected="at least one type of machine",
            advice="does the cloud have the pool's types, templates, image and zones?",
        )
    counted_offers = [o for o in offers if o.free is not None]
    free = sum(o.free or 0 for o in counted_offers)
    if len(counted_offers) == len(offers) and not free:
        reasons = "; ".join(dict.fromkeys(o.free_reason for o in counted_offers if o.free_reason))
        return Finding.note(
            subject,
            f"{len(offers)}, none has room now" + (f": {reasons}" if reasons else ""),
            advice="nothing: until there is room, jobs go elsewhere or wait. A larger quota helps",
        )
    room = f", room for {free} more" if len(counted_offers) == len(offers) else ""
    return Finding.ok(subject, f"{len(offers)}{room}")


def _clock(url: str, timeout: float) -> Iterator[Finding]:
    """Compare our clock with the Date header of any answer; a front end may send none."""
    if not url.startswith(("http://", "https://")):
        return
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http only, see above
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        # A refusal is also an answer and has a Date header.
        date = error.headers.get("Date")
        error.close()
    except (OSError, ValueError):
        return
    try:
        skew = time.time() - parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return
    good = abs(skew) <= MAX_SKEW_S
    yield Finding(
        subject="clock",
        level=FindingLevel.OK if good else FindingLevel.NOTE,
        observed=f"{brief(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the cloud's",
        advice="" if good else "set both by NTP",
    )
