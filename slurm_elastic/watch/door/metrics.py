"""Metrics for Prometheus that only slurm-elastic can give, read from the records at each scrape.

Labels have few values: no job, no user, an account only if it has a budget. Counters are sums in
the records, so they survive restarts of the services. This module needs the extra ``metrics``.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import with_limits
from slurm_elastic.config.sections.policies import PayerBudget
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.directive import limit_changes
from slurm_elastic.model.exclusion import offer_scope
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.repair.strays import count_of
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.credentials import ends_of
from slurm_elastic.state.heartbeat import CKPTMAN, DAEMON, latest
from slurm_elastic.state.ledger.histograms import BUCKETS
from slurm_elastic.state.spool import Spool
from slurm_elastic.watch.door.records import ckptman_beat, opened, read_facts
from slurm_elastic.watch.view import Facts, status_view
from slurm_elastic.watch.view.rows import HeadView

PREFIX = "slurm_elastic_"
MAX_OFFERS = 500  # series of machines by type and zone; if there are more, both become "*"
_SERIES = re.compile(r"(\w+?)(_bucket|_sum)?(?:\{(.*)\})?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
COUNTERS = {
    "launched": "Machines that were launched.",
    "ended": "Machines that ended: asked by us, or lost.",
    "refusals": "Refusals of clouds, each of which began a cool-down.",
    "boot_failures": "Machines that never registered, or that Slurm refused.",
    "dollars": "Dollars charged for machines.",
    "unused_dollars": "Dollars charged for unused machine time, by reason.",
    "account_dollars": "Dollars that jobs of an account used; (other) has no budget.",
    "api_calls": "Calls to clouds.",
    "ckpt_saves": "Attempts to save a job.",
    "ckpt_migrations": "Moves of jobs off a machine, by result.",
    "ckpt_notices": "Notices of clouds about machines.",
    "ckpt_decisions": "Decisions of slurm-elastic-ckptman.",
    "lost_node_seconds": "Work that moved jobs repeat: seconds times nodes, by cause.",
}
HISTOGRAMS = {
    "boot_seconds": "From launch to registered with Slurm.",
    "start_delay_seconds": "From the last machine's registration to its job running.",
    "resume_to_running_seconds": "From the decision to launch to its job running.",
    "api_seconds": "Duration of a call to a cloud.",
    "checkpoint_seconds": "Duration of a complete checkpoint.",
    "migration_seconds": "From the decision to move a job to its next run, by cause.",
}

Labels = Mapping[str, str]


States = Mapping[tuple[str, str, str], int]  # how many nodes there are by cloud, pool and state


def node_states(config: Config, now: float, slurm: Slurm) -> States:
    """The states that ``status`` shows. SlurmError if Slurm does not answer."""
    facts = replace(read_facts(config, now), nodes=slurm.nodes())
    return {
        (pool.cloud, pool.name, state.replace(" ", "_")): count
        for pool in status_view(config, facts).pools
        for state, count in pool.states.items()
    }


def text(config: Config, now: float, states: States | None = None) -> bytes:
    """All metrics in Prometheus' text format; without ``states`` no metric about nodes."""
    registry = CollectorRegistry()
    registry.register(_Collected(list(families(config, now, states))))
    return generate_latest(registry)


class _Collected:
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """Return the metrics. prometheus_client calls this at each scrape."""
        return self._metrics


def families(config: Config, now: float, states: States | None = None) -> Iterator[Metric]:
    """Yield all metric families. A family whose records cannot be read is left out."""
    facts = read_facts(config, now)
    config = with_limits(config, limit_changes(facts.directives, now))
    yield _gauge("info", "Version and cluster.", [(
        {"version": _version(), "cluster": config.cluster.name}, 1.0)])  # fmt: skip
    yield from _heads(facts.head)
    yield from _health(config, facts, states)
    if facts.ledger_error is None:
        yield from _machines(config, facts, states)
        yield from _money(config, facts)
        yield from _obstacles(facts)
        yield from _directives(facts)
    yield from _requests(config, now)
    yield from _migrations(facts)
    yield from _counted(config)


def _heads(head: HeadView | None) -> Iterator[Metric]:
    """The metrics of two heads; none with one head."""
    if head is None:
        return
    yield _gauge("head_acting", "Whether Slurm says that the head acts.", [
        ({"host": host, "here": "yes" if host == head.here else "no"}, float(host == head.acting))
        for host in head.hosts
    ])  # fmt: skip
    yield _gauge("head_epoch", "The number of the newest epoch.", [({}, float(head.epoch))])


def _health(config: Config, facts: Facts, states: States | None) -> Iterator[Metric]:
    beat = latest(facts.heartbeat, facts.mark.beat if facts.mark else None)
    stands_by = facts.mark is not None and facts.mark.stands_by
    beats = {DAEMON: beat and beat[0]}
    if facts.checkpoints is not None:
        beats[CKPTMAN] = facts.checkpoints.heartbeat and facts.checkpoints.heartbeat[0]
    elif facts.checkpoints_error is not None:
        # The records may be damaged because the service died. Its alert needs the last heartbeat.
        ckptman = ckptman_beat(config)
        beats[CKPTMAN] = ckptman and ckptman[0]
    known_beats = [({"service": name}, beat_at) for name, beat_at in beats.items() if beat_at]
    yield _gauge("service_heartbeat_timestamp_seconds", "Last sign of life.", known_beats)
    works = facts.end_only is not None and facts.end_only.is_other_head
    has_disk = stands_by or works or not facts.end_only
    yield _gauge("ledger_usable", "Whether the ledger can be read and written.", [(
        {}, float(facts.ledger_error is None and has_disk))])  # fmt: skip
    yield _gauge("other_head", "Whether another head works for this cluster.", [({}, float(works))])
    answers = {health.name: health for health in facts.health}
    slurm = answers.get("slurm")
    wrong = states is None and slurm is not None and slurm.error is not None
    yield _gauge("slurm_reachable", "Whether slurmctld answered last.", [({}, float(not wrong))])
    clouds = [(c.name, answers.get(c.name)) for c in config.clouds]
    yield _gauge("cloud_reachable", "Whether the cloud's list could be read last.", [
        ({"cloud": name}, float(
            health is None or health.error is None or health.code == "unlisted"
        ))
        for name, health in clouds
    ])  # fmt: skip
    yield _gauge("cloud_last_error", "The error that stands, by code.", [
        ({"cloud": name, "code": health.code or "error"}, 1.0)
        for name, health in clouds if health is not None and health.error is not None
    ])  # fmt: skip
    yield _gauge("credential_expiry_timestamp_seconds", "When the cloud's credentials end.", [
        ({"cloud": cloud}, ends) for cloud, ends in ends_of(facts.health)
    ])  # fmt: skip
    help_text = "Whether the cloud's list cannot be true; nothing ends by it."
    yield _gauge("cloud_list_implausible", help_text, [
        ({"cloud": name}, float(health is not None and health.code == "unlisted"))
        for name, health in clouds
    ])  # fmt: skip


def _machines(config: Config, facts: Facts, states: States | None) -> Iterator[Metric]:
    if states is not None:
        yield _gauge("nodes", "Nodes of ours, by state.", [
            ({"cloud": cloud, "pool": pool, "state": state}, float(count))
            for (cloud, pool, state), count in states.items()
        ])  # fmt: skip
    live = [m for m in facts.machines if not m.has_ended]
    names = ("cloud", "pool", "market", "instance_type", "zone")
    offers = Counter(
        (m.instance.cloud, m.pool, str(m.instance.market), m.instance.instance_type,
         m.instance.zone) for m in live
    )  # fmt: skip
    if len(offers) > MAX_OFFERS:
        offers = Counter((m.instance.cloud, m.pool, str(m.instance.market), "*", "*") for m in live)
    yield _gauge("machines", "Machines that are paid now.", [
        (dict(zip(names, key, strict=True)), float(n)) for key, n in offers.items()
    ])  # fmt: skip
    kept = {p.name: p.cloud for p in config.pools if p.max_stopped}
    kept |= {m.pool: m.instance.cloud for m in facts.stopped}
    off = Counter(m.pool for m in facts.stopped)
    yield _gauge("machines_stopped", "Stopped machines that can be started again.", [
        ({"cloud": cloud, "pool": pool}, float(off[pool])) for pool, cloud in kept.items()
    ])  # fmt: skip
    limits = [({"scope": "cluster"}, config.limits.nodes)]
    limits += [({"scope": f"cloud:{c.name}"}, c.limits.nodes) for c in config.clouds]
    limits += [({"scope": f"pool:{p.name}"}, p.max_nodes) for p in config.pools]
    yield _gauge("machines_limit", "Machines that there may be at most.", [
        (labels, float(limit)) for labels, limit in limits if limit is not None
    ])  # fmt: skip
    served = Counter(m.instance.node for m in live if m.is_wanted)
    doubles = sum(n - 1 for n in served.values())
    strays = sum(count_of(health.code) for health in facts.health if health.error)
    yield _gauge("strays", "Paid machines without a node, or for a node that has one.", [
        ({"kind": "double"}, float(doubles)),
        ({"kind": "stray"}, float(strays)),
    ])  # fmt: skip


def _money(config: Config, facts: Facts) -> Iterator[Metric]:
    now: Counter[tuple[str, str]] = Counter()
    worst: Counter[tuple[str, str]] = Counter()
    for m in facts.machines:
        if not m.has_ended:
            key = (m.instance.cloud, str(m.instance.market))
            now[key] += m.instance.price  # type: ignore[assignment]
            worst[key] += max(m.instance.price, m.worst_price)  # type: ignore[assignment]
    yield _gauge("dollars_per_hour", "Dollars an hour, now and at worst.", [
        ({"cloud": cloud, "market": market, "basis": basis}, float(dollars))
        for basis, sums in (("now", now), ("worst", worst))
        for (cloud, market), dollars in sums.items()
    ])  # fmt: skip
    caps = [({"scope": "cluster"}, config.limits.dollars_per_hour)]
    caps += [({"scope": f"cloud:{c.name}"}, c.limits.dollars_per_hour) for c in config.clouds]
    yield _gauge("dollars_per_hour_limit", "Dollars an hour that limits allow, at worst.", [
        (labels, limit) for labels, limit in caps if limit is not None
    ])  # fmt: skip
    public = {c.name for c in config.clouds if c.location is Location.PUBLIC}
    yield _gauge("public_dollars_per_hour", "Dollars an hour of public clouds, at worst.", [
        ({}, float(sum(dollars for (cloud, _), dollars in worst.items() if cloud in public)))
    ])  # fmt: skip
    scopes = list(_budgets(config, facts))
    yield _gauge("budget_dollars", "Dollars that a budget allows.", [
        ({"scope": scope, "period": period}, bound)
        for scope, budget, _ in scopes
        for period, bound in (("day", budget.per_day), ("month", budget.per_month))
        if bound is not None
    ])  # fmt: skip
    yield _gauge("spent_dollars", "Dollars spent of a budget, by day and month of UTC.", [
        ({"scope": scope, "period": period}, dollars)
        for scope, _, spent in scopes
        for period, dollars in (("day", spent.day), ("month", spent.month))
    ])  # fmt: skip


def _budgets(config: Config, facts: Facts) -> Iterator[tuple[str, PayerBudget, Spent]]:
    for name, spent in facts.spent.items():
        budget = config.cloud(name).policies.budget if name else config.policies.budget
        yield (f"cloud:{name}" if name else "cluster"), budget, spent
    for scope, spent in facts.payers.items():
        yield scope, config.policies.payer_budgets[scope], spent


def _obstacles(facts: Facts) -> Iterator[Metric]:
    cooling = Counter((offer_scope(c.scope).cloud, c.code) for c in facts.cool_downs)
    yield _gauge("cooldowns", "Offers and markets that cool down.", [
        ({"cloud": cloud, "code": code}, float(n)) for (cloud, code), n in cooling.items()
    ])  # fmt: skip
    paused = sum(breaker.until > facts.now for breaker in facts.breakers)
    yield _gauge("pools_paused", "Pools paused because their machines did not register.", [
        ({}, float(paused))
    ])  # fmt: skip


def _directives(facts: Facts) -> Iterator[Metric]:
    """Yield the metrics of operators' orders in force.

    The label ``ends`` says whether an order ends by itself, or only when a person ends it.
    """
    begun: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for directive in facts.directives:
        if directive.holds(facts.now):
            ends = "by_itself" if directive.ends_by_itself else "by_hand"
            begun[directive.word.command_name, ends].append(directive.starts)
    samples = [({"order": order, "ends": ends}, starts) for (order, ends), starts in begun.items()]
    yield _gauge("directives", "Operators' orders that hold.", [
        (labels, float(len(starts))) for labels, starts in samples
    ])  # fmt: skip
    yield _gauge("directive_oldest_seconds", "For how long the oldest of them has held.", [
        (labels, facts.now - min(starts)) for labels, starts in samples
    ])  # fmt: skip


def _requests(config: Config, now: float) -> Iterator[Metric]:
    spool = Spool(config.state)
    oldest = spool.oldest()
    age = 0.0 if oldest is None else max(now - oldest, 0.0)
    yield _gauge("requests_waiting", "Requests of Slurm's that wait.", [({}, float(spool.count()))])
    yield _gauge("request_oldest_seconds", "Age of the oldest of them.", [({}, age)])


def _migrations(facts: Facts) -> Iterator[Metric]:
    checkpoints = facts.checkpoints
    if checkpoints is None:
        return
    under_way: list[tuple[Labels, float]] = [
        ({}, float(sum(not move.is_over for move in checkpoints.migrations)))
    ]
    yield _gauge("migrations_open", "Jobs that are being moved off a machine.", under_way)
    yield _gauge(
        "notices_open", "Open notices about machines.", [({}, float(len(checkpoints.warned)))]
    )
    images: dict[int, float] = {}
    for image in checkpoints.images:
        images[image.job] = max(images.get(image.job, 0.0), image.taken)
    oldest = facts.now - min(images.values()) if images else 0.0
    yield _gauge("checkpoint_image_oldest_seconds", "Age of the oldest job's last checkpoint.", [
        ({}, max(oldest, 0.0))
    ])  # fmt: skip
    size = sum(image.size for image in checkpoints.images)
    yield _gauge(
        "checkpoint_images_bytes", "Size of the checkpoints that are kept.", [({}, float(size))]
    )


def _counted(config: Config) -> Iterator[Metric]:
    """The sums that both services keep."""
    counts: dict[str, float] = {}
    with contextlib.suppress(OSError, SlurmElasticError), opened(config) as ledger:
        counts.update(ledger.usage.counters())
    with (
        contextlib.suppress(sqlite3.Error, OSError, SlurmElasticError),
        contextlib.closing(CheckpointState(config.state / FILE, read_only=True)) as state,
    ):
        counts.update(state.counters())
    kept: dict[str, defaultdict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for name, value in counts.items():
        parsed = _SERIES.fullmatch(name)
        if parsed is None:
            continue
        labels = tuple((key, _unescaped(word)) for key, word in _LABEL.findall(parsed[3] or ""))
        sums = kept.setdefault(parsed[1].removesuffix("_total"), defaultdict(float))
        sums[parsed[2] or "", labels] += value
    samples = {
        name: [(suffix, dict(labels), value) for (suffix, labels), value in sums.items()]
        for name, sums in kept.items()
    }
    for name, help_text in COUNTERS.items():
        metric = Metric(PREFIX + name, help_text, "counter")
        for _, labelled, value in samples.get(name, ()):
            metric.add_sample(f"{PREFIX}{name}_total", labelled, value)
        yield metric
    for name, help_text in HISTOGRAMS.items():
        yield _histogram(name, help_text, BUCKETS[name], samples.get(name, ()))


def _histogram(
    name: str, help_text: str, bounds: Iterable[float], rows: Iterable[tuple[str, Labels, float]]
) -> Metric:
    metric = Metric(PREFIX + name, help_text, "histogram")
    by_series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for suffix, labels, value in rows:
        key = tuple((k, v) for k, v in labels.items() if k != "le")
        by_series.setdefault(key, {})[labels.get("le", suffix)] = value
    for key, values in by_series.items():
        count = values.get("+Inf", 0.0)
        for bound in bounds:
            bucket: dict[str, str] = dict(key) | {"le": f"{bound:g}"}
            metric.add_sample(f"{PREFIX}{name}_bucket", bucket, values.get(f"{bound:g}", 0.0))
        metric.add_sample(f"{PREFIX}{name}_bucket", dict(key) | {"le": "+Inf"}, count)
        metric.add_sample(f"{PREFIX}{name}_count", dict(key), count)
        metric.add_sample(f"{PREFIX}{name}_sum", dict(key), values.get("_sum", 0.0))
    return metric


def _gauge(name: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    metric = Metric(PREFIX + name, help_text, "gauge")
    for labels, value in samples:
        metric.add_sample(PREFIX + name, dict(labels), value)
    return metric


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def _version() -> str:
    try:
        return version("slurm-elastic")
    except PackageNotFoundError:
        return "unknown"
