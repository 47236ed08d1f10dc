"""The context of slurm-elasticd: the expanded configuration, the clouds, Slurm and the ledger."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, NotLearntError, SlurmError
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import paid_reservations, purchase_terms, rules_of
from slurm_elastic.config.tunnel import clouds_with_tunnel, node_addresses
from slurm_elastic.controller.decision_recorder import DecisionRecorder
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.controller.job_starts import JobStarts
from slurm_elastic.controller.launching.budget import build_launch_scope, spans_clouds
from slurm_elastic.controller.requeues import ExpectedRequeues
from slurm_elastic.controller.slurm_absence import SlurmAbsence
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import NeverHere, NotYetHere
from slurm_elastic.model.causes.requeues import MachinesLost
from slurm_elastic.model.cluster import Instance, LaunchSpec, Pool, Usage
from slurm_elastic.model.journal_owner import Host
from slurm_elastic.model.memory import PurchaseTerms
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.state.ledger import Launch, Ledger, LedgerState, Machine
from slurm_elastic.state.spool import Spool


class KeptOutJob(Struct, frozen=True, kw_only=True):
    """A job that must leave a ``cloud``, or must not return there yet, with the ``cause``. A job
    that loses its machines (MachinesLost) is held in all partitions. We look for the job in Slurm's
    queue until ``deadline`` (monotonic s). ``nodes``, ``need_s``: the nodes that it wanted, and for
    how long.
    """

    cause: NeverHere | NotYetHere | MachinesLost
    correlation: str
    deadline: float
    cloud: str = ""
    nodes: tuple[str, ...] = ()
    need_s: float = 0.0


@dataclass(frozen=True)
class Site:
    """One cluster as its daemon knows it. All threads of the service share it: no field changes
    after the start, and the values that do change are of classes with a lock of their own.

    ``now`` is the clock (Unix time), ``monotonic`` the clock for time limits. ``wait(seconds)``
    sleeps; it returns True if the service must stop. ``blocked``: by cloud, the cause that forbids
    launches there until the site allows them. ``tunnelled``: the clouds whose machines join Slurm
    under addresses in a tunnel. ``tunnel_addresses``: these, by node. ``extensions``: functions of
    optional features.
    ``looks_names_up``: whether slurmctld looks up the names of nodes without an address.
    ``repairs_allowed_from`` (monotonic): after a takeover the patient actions (``Action.patient``)
    wait until then: lost requests are not bought, and no machine ends because of Slurm's view of
    its node alone.
    ``epoch``: the epoch in which this head acts, 0 with one head. ``host``: this host, None with
    two heads. ``slurm_absence``: the spans in
    which slurmctld did not answer. ``job_starts``: when prologs let their jobs start.

    In memory only: ``worst_prices``: per offer the highest hourly price that its cloud has quoted.
    It also applies to machines bought before that quote. ``oversized``: jobs that fit no cloud and
    are being requeued. If an entry is lost, the job is tried once more and rejected again.
    ``set_aside``: by job, the last reported cause for which it may start only later.
    ``refused_changes``: by job and list of partitions that Slurm has refused for it, when to try
    that again (monotonic).
    ``unreadable``: by cloud, why its last list could not be read. A cloud that was never read has
    no entry. ``unadopted``: by cloud and id, listed machines without a row in the ledger yet.
    ``suspends``: by id, the suspend requests that still wait to be carried out. ``cloud_places``:
    by partition, its place in the order in which growth policies start machines
    (``features.cloud_order``), empty while no prices decide.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # The row and the node's DRAIN flag must change together. Otherwise a node that was released
        # a moment ago could be drained again.
        "hold_lock": "to change a hold: its ledger row and the node's DRAIN flag",
        # A thread that reads the queue before another one's change would take the new values for
        # a person's.
        "job_lock": "to change a waiting job: its ledger row and its values in Slurm",
    }

    config: Config
    slurm: Slurm
    ledger: Ledger
    providers: Mapping[str, Provider]
    now: Callable[[], float]
    pools: Mapping[str, Pool]
    pool_of: Mapping[str, Pool]
    clouds: Mapping[str, CloudSettings]
    spool: Spool
    tunnelled: frozenset[str] = frozenset()
    tunnel_addresses: Mapping[str, str] = field(default_factory=dict)
    hold_lock: threading.Lock = field(default_factory=threading.Lock)
    job_lock: threading.Lock = field(default_factory=threading.Lock)
    requeues: ExpectedRequeues = field(default_factory=ExpectedRequeues)
    monotonic: Callable[[], float] = time.monotonic
    rules: Mapping[str, PoolRules] = field(default_factory=dict)
    wait: Callable[[float], bool] = field(default_factory=lambda: threading.Event().wait)
    worst_prices: SharedDict[str, float] = field(default_factory=SharedDict)
    oversized: SharedDict[int, KeptOutJob] = field(default_factory=SharedDict)
    set_aside: SharedDict[int, NotYetHere] = field(default_factory=SharedDict)
    refused_changes: SharedDict[tuple[int, tuple[str, ...]], float] = field(
        default_factory=SharedDict
    )
    blocked: Mapping[str, AnyCause] = field(default_factory=dict)
    unreadable: SharedDict[str, str] = field(default_factory=SharedDict)
    unadopted: SharedDict[tuple[str, str], Instance] = field(default_factory=SharedDict)
    suspends: SharedDict[str, Request] = field(default_factory=SharedDict)
    cloud_places: SharedDict[str, int] = field(default_factory=SharedDict)
    extensions: Extensions = field(default_factory=Extensions)
    slurm_absence: SlurmAbsence = field(default_factory=SlurmAbsence)
    job_starts: JobStarts = field(default_factory=JobStarts)
    looks_names_up: bool = False
    repairs_allowed_from: float = 0.0
    epoch: int = 0
    host: Host | None = None

    @classmethod
    def of(
        cls,
        config: Config,
        slurm: Slurm,
        ledger: Ledger,
        providers: Mapping[str, Provider],
        now: Callable[[], float],
    ) -> Site:
        """Make the context from the configuration, with the node names of all pools expanded."""
        pools = {pool.name: pool for pool in domain_pools(config, expand)}
        pool_of = {node: pool for pool in pools.values() for node in pool.nodes}
        rules = {pool.name: rules_of(config, pool) for pool in config.pools}
        return cls(
            config, slurm, ledger, providers, now, pools, pool_of,
            clouds={cloud.name: cloud for cloud in config.clouds},
            spool=Spool(config.state),
            tunnelled=clouds_with_tunnel(config),
            tunnel_addresses=node_addresses(config),
            rules=rules,
            blocked=blocked_clouds(config),
            looks_names_up=_slurmctld_looks_names_up(config, slurm),
        )  # fmt: skip

    def rules_of(self, node: str) -> PoolRules:
        """Return the rules of the node's pool. KeyError if no configured pool has the node."""
        return self.rules[self.pool_of[node].name]

    def is_public(self, pool: Pool) -> bool:
        """Whether the pool belongs to a public cloud."""
        return self.rules[pool.name].public

    def pools_of_cloud(self, cloud: str) -> Sequence[Pool]:
        """The pools of one cloud, in the order of the configuration."""
        return [pool for pool in self.pools.values() if pool.cloud == cloud]

    def served_nodes(self) -> set[str]:
        """Nodes that have a machine, or an open launch that may have made one."""
        # Read machines and launches in one step. If a cloud answers a launch between two reads,
        # its nodes are in neither of them, and we would buy a second machine for each.
        state = self.ledger.state()
        nodes = {m.instance.node for m in self.serving_machines(state.machines)}
        return nodes | self.launching_nodes(state.launches)

    def serving_machines(self, live: Sequence[Machine] | None = None) -> list[Machine]:
        """Live machines whose end is not decided. A machine of a cloud that has left the
        configuration is paid and counts in all bounds, but it serves no node.
        """
        clouds = self.providers
        live = self.ledger.machines.live() if live is None else live
        return [m for m in live if m.is_wanted and m.instance.cloud in clouds]

    def launching_nodes(self, rows: Sequence[Launch] | None = None) -> set[str]:
        """Nodes of open launches in clouds that the configuration still has."""
        rows = self.ledger.launches.open() if rows is None else rows
        return {n for row in rows if row.cloud in self.providers for n in row.nodes}

    def usage(self) -> Usage:
        """The usage that costs money now, according to the ledger."""
        state = self.ledger.state()
        # Stopped machines count, too: their cloud still charges for the disks.
        machines = (*state.machines, *state.stopped)
        paid = paid_reservations(self.config, self.now())
        worst = self.worst_prices.snapshot()
        return usage(machines, state.launches, worst, paid)

    def terms_of(self, pool: str) -> Callable[[Instance], PurchaseTerms]:
        """Return the function that says on which terms a machine of the pool is bought now."""
        return lambda i: purchase_terms(self.config, i.cloud, pool, i.instance_type, i.market)

    def terms_by_type(self, spec: LaunchSpec) -> dict[str, PurchaseTerms]:
        """Return the terms on which this launch buys a machine now, by instance type."""
        types = {offer.instance_type for offer in spec.offers}
        cloud, market, pool = spec.offer.cloud, spec.offer.market, spec.pool.name
        return {
            name: purchase_terms(self.config, cloud, pool, name, market) for name in sorted(types)
        }

    def first_unread_cloud(self, cloud: str, read: Collection[str]) -> str:
        """Return a cloud whose machines must be listed before we may buy from ``cloud``, or "".
        This is ``cloud`` itself and, if a bound spans all clouds, every other cloud that can be
        read. ``read``: the clouds whose machines were all listed once.
        """
        if cloud not in read:
            return cloud
        # Only a bound that spans all clouds makes machines elsewhere count against this purchase.
        if not spans_clouds(self.config, self.ledger, self.now()):
            return ""
        # An unreadable cloud must not stop purchases in all others; its known machines count.
        unreadable = self.unreadable.snapshot()
        return next((c for c in self.providers if c not in read and c not in unreadable), "")

    @contextmanager
    def spending(self, pool: Pool) -> Iterator[Scope]:
        """Yield the bounds of a launch for ``pool``. The ranking within these bounds and the intent
        that follows are one transaction of the ledger.

        NotLearntError: the ledger may lack machines of the pool's cloud, for example because its
        file was lost while the cloud was asked for its offers.
        """
        # One transaction, because the workers of all clouds buy at the same time within the same
        # limits: two launches that each fit could exceed a limit together.
        with self.ledger.together():
            state = self.ledger.state()
            # Check again inside the transaction: the ledger may have been lost since the caller
            # checked, and an empty ledger would leave room for the whole limit once more.
            if unknown := self.first_unread_cloud(pool.cloud, state.read_whole):
                raise NotLearntError(
                    f"{unknown}: not listed yet, so its machines may be missing from the limits"
                )
            yield self.scope(pool, state)

    def scope(self, pool: Pool, state: LedgerState | None = None) -> Scope:
        """All bounds of a launch for the pool at this moment. ``state``: the ledger's state if the
        caller has read it already.
        """
        return build_launch_scope(
            self.config, self.ledger, self.rules, pool, self.now(), self.blocked,
            self.worst_prices.snapshot(), state,
        )  # fmt: skip

    @property
    def recorder(self) -> DecisionRecorder:
        """Records decisions for ``explain``."""
        return DecisionRecorder(self.ledger, self.now)

    def record(
        self,
        correlation: str,
        kind: str,
        subjects: Iterable[str],
        cause: AnyCause,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Record one decision for ``explain``."""
        self.recorder.record(correlation, kind, subjects, cause, detail)


def _slurmctld_looks_names_up(config: Config, slurm: Slurm) -> bool:
    """Whether slurmctld looks up the names of cloud nodes: before 23.11 it does, unless
    SlurmctldParameters has ``cloud_dns``. False if Slurm cannot tell.
    """
    try:
        parameters = read_site(config.slurm).items("SlurmctldParameters")
        return slurm.version() < (23, 11) and "cloud_dns" not in parameters
    except (ConfigError, SlurmError):
        return False


def new_generation(now: float, after: float = 0.0, epoch: int = 0) -> str:
    """Return a name for one launch: it sorts by time, is unique, and is safe as a tag and as a
    client token.

    If a pending request has a later time (``after``) than now, because the clock was set back, the
    name ends with that time, so that it sorts after the request (``generation_order``). With two
    heads the name contains the ``epoch`` of the head that launches.
    """
    order = f"-{int(after * 1000) + 1}" if after > now else ""
    of_head = f"e{epoch}" if epoch else ""
    return f"g{int(now * 1000):013d}-{secrets.token_hex(4)}{of_head}{order}"
