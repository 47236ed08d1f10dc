"""The context of slurm-elasticd: configuration opened up, clouds, Slurm and the ledger."""

from __future__ import annotations

import math
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
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.config.tunnel import clouds_with_tunnel
from slurm_elastic.controller.budget import launch_scope
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.controller.job_starts import JobStarts
from slurm_elastic.controller.requeues import Requeues
from slurm_elastic.controller.slurm_absence import SlurmAbsence
from slurm_elastic.model.causes import AnyCause, as_cause
from slurm_elastic.model.causes.composed import NeverTogether
from slurm_elastic.model.cluster import Instance, Limits, Pool, Usage
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.model.slurm import Request
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.launch.ranking import Scope
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.state.ledger import Decision, Launch, Ledger, LedgerState, Machine
from slurm_elastic.state.spool import Spool


class Barred(Struct, frozen=True):
    """Why a job is to leave a partition, and until when (monotonic s) it is looked for."""

    partition: str
    why: NeverTogether
    correlation: str
    deadline: float


@dataclass(frozen=True)
class Site:
    """One cluster as its daemon knows it. All threads of the service share it: no field changes
    after the start, and the values that do change are of classes with a lock of their own.

    ``now`` is the clock (Unix time), ``monotonic`` the clock for time limits. ``wait(seconds)``
    sleeps; it returns True if the service must stop. ``blocked``: by cloud, why nothing may be
    started there before the site allows it. ``tunnelled``: the clouds whose machines are Slurm's
    nodes under addresses in a tunnel. ``extensions``: functions of optional features.
    ``shortest_boot``: seconds that machines of the quickest cloud may take. ``looks_names_up``:
    whether slurmctld looks up the names of nodes without an address. ``repairs_allowed_from``
    (monotonic): after a takeover we end, until then, only machines that Slurm asked to suspend.
    ``epoch``: in which this head acts, 0 with one head. ``slurm_absence``: when slurmctld was away.
    ``job_starts``: when prologs let jobs go.

    In memory only: ``worst_prices``: per offer the highest hourly price that its cloud has quoted.
    It also applies to machines bought before that quote. ``oversized``: jobs that fit no cloud and
    are being requeued. If an entry is lost, the job is tried once more and rejected again.
    ``unreadable``: by cloud, why its last list could not be read. A cloud that was never read is
    not in it. ``unadopted``: by cloud and id, machines that the ledger could not take in yet.
    ``suspends``: by id, suspend requests that came and are not carried out yet.
    """

    guarded_by: ClassVar[GuardedBy] = {
        # The row and the node's DRAIN flag must change together. Otherwise a node that was released
        # a moment ago could be drained again.
        "hold_lock": "to change a hold: its ledger row and the node's DRAIN flag",
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
    hold_lock: threading.Lock = field(default_factory=threading.Lock)
    requeues: Requeues = field(default_factory=Requeues)
    monotonic: Callable[[], float] = time.monotonic
    rules: Mapping[str, PoolRules] = field(default_factory=dict)
    wait: Callable[[float], bool] = field(default_factory=lambda: threading.Event().wait)
    worst_prices: SharedDict[str, float] = field(default_factory=SharedDict)
    oversized: SharedDict[int, Barred] = field(default_factory=SharedDict)
    blocked: Mapping[str, AnyCause] = field(default_factory=dict)
    unreadable: SharedDict[str, str] = field(default_factory=SharedDict)
    unadopted: SharedDict[tuple[str, str], Instance] = field(default_factory=SharedDict)
    suspends: SharedDict[str, Request] = field(default_factory=SharedDict)
    extensions: Extensions = field(default_factory=Extensions)
    slurm_absence: SlurmAbsence = field(default_factory=SlurmAbsence)
    job_starts: JobStarts = field(default_factory=JobStarts)
    shortest_boot: float = math.inf
    looks_names_up: bool = False
    repairs_allowed_from: float = 0.0
    epoch: int = 0

    @classmethod
    def of(
        cls,
        config: Config,
        slurm: Slurm,
        ledger: Ledger,
        providers: Mapping[str, Provider],
        now: Callable[[], float],
    ) -> Site:
        """Open the configuration's pools up."""
        pools = {pool.name: pool for pool in domain_pools(config, expand)}
        pool_of = {node: pool for pool in pools.values() for node in pool.nodes}
        rules = {pool.name: rules_of(config, pool) for pool in config.pools}
        return cls(
            config, slurm, ledger, providers, now, pools, pool_of,
            clouds={cloud.name: cloud for cloud in config.clouds},
            spool=Spool(config.state),
            tunnelled=clouds_with_tunnel(config),
            rules=rules,
            blocked=blocked_clouds(config),
            shortest_boot=min((config.resume_timeout(c) for c in config.clouds), default=math.inf),
            looks_names_up=_looks_names_up(config, slurm),
        )  # fmt: skip

    def rules_of(self, node: str) -> PoolRules:
        """How the machine of a node of ours comes and goes."""
        return self.rules[self.pool_of[node].name]

    def is_public(self, pool: Pool) -> bool:
        """Whether the pool is a public cloud's."""
        return self.rules[pool.name].public

    def pools_of_cloud(self, cloud: str) -> Sequence[Pool]:
        """The pools of one cloud, in the site's order."""
        return [pool for pool in self.pools.values() if pool.cloud == cloud]

    def served(self) -> set[str]:
        """Nodes that have a machine, or an open launch that may have made one."""
        # As of one moment: a launch that is answered between two reads would be in neither.
        state = self.ledger.state()
        nodes = {m.instance.node for m in self.serving(state.machines)}
        return nodes | self.launching(state.launches)

    def serving(self, live: Sequence[Machine] | None = None) -> list[Machine]:
        """Live machines whose end is not decided. One of a cloud that has left the configuration is
        paid, and counts in all bounds, but serves nobody.
        """
        clouds = self.providers
        live = self.ledger.machines.live() if live is None else live
        return [m for m in live if m.is_wanted and m.instance.cloud in clouds]

    def launching(self, rows: Sequence[Launch] | None = None) -> set[str]:
        """Nodes of open launches, but of clouds that have left the configuration."""
        rows = self.ledger.launches.open() if rows is None else rows
        return {n for row in rows if row.cloud in self.providers for n in row.nodes}

    def usage(self) -> Usage:
        """The usage that is paid for now, by the ledger."""
        state = self.ledger.state()
        machines = (*state.machines, *state.stopped)
        return usage(machines, state.launches, self.worst_prices.snapshot())

    def first_unread_cloud(self, cloud: str, read: Collection[str]) -> str:
        """Return a cloud whose machines must be listed before we may buy from ``cloud``, or "".
        This is ``cloud`` itself and, if a limit spans all clouds, every other cloud that can be
        read. ``read``: the clouds whose machines were all listed once.
        """
        if cloud not in read:
            return cloud
        if self.config.limits == Limits():
            return ""
        unreadable = self.unreadable.snapshot()
        return next((c for c in self.providers if c not in read and c not in unreadable), "")

    @contextmanager
    def spending(self, pool: Pool) -> Iterator[Scope]:
        """Ranking within these bounds and the intent that follows, as one transaction of the
        ledger: clouds work in parallel, but the cluster's limits are one, and a list that has an
        ended machine again changes what is spent. NotLearntError where the ledger may lack what the
        pool's cloud has, as one that was lost while the cloud was asked for its offers.
        """
        with self.ledger.together():
            state = self.ledger.state()
            if unknown := self.first_unread_cloud(pool.cloud, state.read_whole):
                raise NotLearntError(f"{unknown}: not read yet, its machines may be in no count")
            yield self.scope(pool, state)

    def scope(self, pool: Pool, state: LedgerState | None = None) -> Scope:
        """All bounds of a launch for that pool, as they are now; by the ledger's ``state``, where
        it was read.
        """
        return launch_scope(
            self.config, self.ledger, self.rules, pool, self.now(), self.blocked,
            self.worst_prices.snapshot(), state,
        )  # fmt: skip

    def record(
        self,
        correlation: str,
        kind: str,
        subjects: Iterable[str],
        reason: AnyCause | str,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Keep one decision for ``explain``, with its cause or a sentence."""
        self.ledger.decisions.record(
            Decision(
                at=self.now(),
                correlation=correlation,
                kind=kind,
                subjects=tuple(subjects),
                cause=as_cause(reason),
                detail=detail,
            )
        )

    def news(
        self,
        nodes: Iterable[str],
        kind: str,
        reason: AnyCause | str,
        correlation: str | None = None,
    ) -> list[str]:
        """The nodes of which something else was told last: what is looked at again and again is
        told when it changes. With a ``correlation`` it is news also where it was another one's.
        """
        cause = as_cause(reason)

        def is_news(node: str) -> bool:
            for last in self.ledger.decisions.about(node, 1):
                same = (last.kind, last.cause) == (kind, cause)
                return not same or correlation not in (None, last.correlation)
            return True

        return [node for node in nodes if is_news(node)]


def _looks_names_up(config: Config, slurm: Slurm) -> bool:
    """Whether slurmctld looks node names up: before 23.11, unless the site's DNS has the names."""
    try:
        parameters = read_site(config.slurm).items("SlurmctldParameters")
        return slurm.version() < (23, 11) and "cloud_dns" not in parameters
    except (ConfigError, SlurmError):
        return False


def new_generation(now: float, after: float = 0.0, epoch: int = 0) -> str:
    """A name for one launch: sorts by time, unique, safe as a tag and as a client token. It ends
    with ``generation_order`` where requests that have come bear a later time (``after``) than now.
    Of two heads it tells the ``epoch`` of the one that launches.
    """
    order = f"-{int(after * 1000) + 1}" if after > now else ""
    of_head = f"e{epoch}" if epoch else ""
    return f"g{int(now * 1000):013d}-{secrets.token_hex(4)}{of_head}{order}"
