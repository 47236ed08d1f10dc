"""The input and the output of ``status``, as values.

``slurm-elastic status --json`` prints ``StatusView`` as JSON. Within one ``version`` fields are
added, never renamed or removed. Times are Unix seconds, durations seconds, money US dollars. In
JSON a field has the name that ``rename`` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model.directive import Directive
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import Health, Launch, Machine, UnhelpedJob
from slurm_elastic.model.requeued_jobs import RequeuedJob
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.state.heartbeat import Mark, ServiceTrouble
from slurm_elastic.watch.view.checkpoints import CheckpointFacts, CheckpointsView
from slurm_elastic.watch.view.queue import QueueView, SiteNodesView
from slurm_elastic.watch.view.reserved import ReservedView


class HeadView(Struct, frozen=True, kw_only=True, rename={"told": "text", "do": "advice"}):
    """The state of two heads.

    ``acting``: the host that Slurm has act ("" if none does, or if that is unknown). ``epoch``: the
    number of the newest takeover. ``here``: which of ``hosts`` this is. ``told``: the state in a
    line. ``do``: the remedy if the services have not followed Slurm to the acting host.
    """

    told: str
    hosts: tuple[str, ...] = ()
    acting: str = ""
    here: str = ""
    epoch: int = 0
    do: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that was read, at ``now``.

    ``nodes`` and ``jobs`` are None and empty if Slurm did not answer. ``ledger_error`` is set if
    the ledger could not be read; the ledger's fields are empty then. ``machines`` are the live
    machines and machines ended in the last 24 hours; ``stopped`` machines can be started again.
    ``process_found``: whether the daemon's process exists on this host (None: not checked).
    ``mark``: the daemon's heartbeat file beside its ledger. ``end_only``: why the daemon only ends
    machines. ``spent``: dollars of this day and month for each cloud with a budget, and for all
    clouds (``""``). ``payers``: the same for each account and user with a budget
    (``account:physics``). ``checkpoints`` is None if there are none, or if they could not be read
    (``checkpoints_error``). ``private``: the words of Slurm's PrivateData that hide something from
    this user. ``directives``: operators' orders that hold now or will hold. ``head`` is None with
    one head. ``obstacles``: why jobs get no machine now. ``consoles``: by pool with a breaker, the
    last console line of its last machine that did not register. ``requeued``: by job, its last
    requeue by the daemon. ``clock_lead_s``: by how much this host's clock was ahead of the cloud's
    at the last launch. ``reservations``, ``partition_states``, ``max_times`` and
    ``suspend_exclusions`` are Slurm's, empty if it did not answer.
    """

    now: float
    nodes: Mapping[str, SlurmNode] | None = None
    jobs: Sequence[SlurmJob] = ()
    slurm_error: str | None = None
    ledger_error: str | None = None
    machines: Sequence[Machine] = ()
    stopped: Sequence[Machine] = ()
    open_launches: Sequence[Launch] = ()
    cool_downs: Sequence[Exclusion] = ()
    holds: Sequence[Exclusion] = ()
    breakers: Sequence[Exclusion] = ()
    health: Sequence[Health] = ()
    heartbeat: tuple[float, int] | None = None
    process_found: bool | None = None
    pending: int | None = None
    mark: Mark | None = None
    end_only: ServiceTrouble | None = None
    checkpoints: CheckpointFacts | None = None
    checkpoints_error: str | None = None
    private: tuple[str, ...] = ()
    spent: Mapping[str, Spent] = field(default_factory=dict)
    payers: Mapping[str, Spent] = field(default_factory=dict)
    directives: Sequence[Directive] = ()
    head: HeadView | None = None
    reservations: Sequence[Reservation] = ()
    partition_states: Mapping[str, str] = field(default_factory=dict)
    max_times: Mapping[str, float | None] = field(default_factory=dict)
    suspend_exclusions: SuspendExclusions = field(default_factory=SuspendExclusions)
    obstacles: Obstacles = Obstacles()
    consoles: Mapping[str, str] = field(default_factory=dict)
    requeued: Mapping[int, RequeuedJob] = field(default_factory=dict)
    clock_lead_s: float = 0.0


class AttentionLevel(StrEnum):
    """How urgent a notice is: nothing works; something is broken; check it; for information."""

    LOUD = "loud"
    BAD = "bad"
    WARN = "warn"
    NOTE = "note"


class StatusNotice(Struct, frozen=True, kw_only=True, rename={"do": "advice"}):
    """A notice that stands above the tables of ``status``.

    ``do``: the remedy, if the text does not contain it. ``cause``: the key of the thing at fault
    (``watch.causes``); other rows with the same key refer to this notice.
    """

    level: AttentionLevel
    text: str
    do: str = ""
    cause: str = ""

    @property
    def whole(self) -> str:
        """The text and the remedy in one line."""
        return f"{self.text}; do: {self.do}" if self.do else self.text


class DirectiveView(Struct, frozen=True, kw_only=True, rename={"told": "text", "who": "given_by"}):
    """An operator's order; ``told`` is its line.

    ``until``: its end (Unix time; None: it holds until a person ends it). ``holds``: it is in force
    now. ``stops``: it lets no new machine start in its scope.
    """

    number: int
    told: str
    who: str
    since: float
    starts: float
    until: float | None
    holds: bool
    stops: bool


class DaemonView(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"heartbeat": "heartbeat_at", "age": "heartbeat_age_s"},
):
    """The state of slurm-elasticd.

    ``alive``: its heartbeat is fresh and its process is not known to be gone. ``age``: seconds
    since the heartbeat. ``problems``: the last errors of Slurm and other services. ``end_only``:
    why it only ends machines, and what to do; None if it does everything.
    """

    alive: bool
    heartbeat: float | None
    age: float | None
    pid: int | None
    process_found: bool | None
    pending_requests: int | None
    problems: tuple[str, ...] = ()
    end_only: str | None = None
    trouble: ServiceTrouble | None = None


class CloudRow(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"do": "advice", "checked": "checked_at", "refused": "credentials_refused"},
):
    """A cloud.

    ``states`` counts its nodes by state. ``machines``: how many are paid now, including open
    launches; ``limit``: how many nodes it may have. Dollars an hour: ``price_now`` at today's
    prices, ``price_worst`` as the limits count. ``unendable``: a sentence about machines that
    cannot be ended because of the ``problem``; ``do``: the remedy. ``refused``: the cloud refuses
    the credentials. ``unopened``: this host cannot open the cloud.
    """

    name: str
    location: str
    provider: str
    partition: str
    nodes: int
    states: dict[str, int]
    machines: int
    limit: int | None
    price_now: float
    price_worst: float
    price_limit: float | None
    blocked: str | None
    problem: str | None
    checked: float | None
    unendable: str = ""
    do: str = ""
    refused: bool = False
    unopened: bool = False


class SiteView(Struct, frozen=True, kw_only=True):
    """All clouds together: ``machines`` that are paid now and their ``limit``; dollars as in
    ``CloudRow``.
    """

    machines: int
    limit: int | None
    price_now: float
    price_worst: float
    price_limit: float | None


class PoolView(Struct, frozen=True, kw_only=True, rename={"shut": "blocked"}):
    """A pool.

    ``states`` counts its nodes by state. ``stopped``: stopped machines that can be started again.
    ``shut``: why none of its powered-down nodes may start ("" if one may).
    """

    name: str
    cloud: str
    nodes: str
    count: int
    states: dict[str, int]
    machines: int
    limit: int | None
    markets: tuple[str, ...]
    stopped: int = 0
    shut: str = ""


class NodesView(Struct, frozen=True, kw_only=True):
    """Nodes of one cloud in the same state for the same reason; ``nodes`` is a hostlist."""

    state: str
    cloud: str
    nodes: str
    count: int
    note: str


class JobView(Struct, frozen=True, kw_only=True):
    """A job on a machine; ``label`` is its name in Slurm's commands."""

    id: int
    user: str
    state: str
    label: str = ""


class InstanceView(
    Struct, frozen=True, kw_only=True, rename={"launched": "launched_at", "age": "age_s"}
):
    """A machine paid now: its ``cost`` so far, its ``next`` step; ``calm``: it needs no person."""

    id: str
    node: str
    pool: str
    cloud: str
    instance_type: str
    zone: str
    market: str
    price: float
    state: str
    address: str | None
    launched: float
    age: float
    cost: float
    jobs: tuple[JobView, ...]
    next: str
    calm: bool = True


class LaunchView(Struct, frozen=True, kw_only=True, rename={"age": "age_s"}):
    """A launch that the cloud has not yet answered."""

    generation: str
    request: str
    pool: str
    offer: str
    nodes: str
    count: int
    age: float


class CoolDownView(Struct, frozen=True, kw_only=True, rename={"left": "left_s"}):
    """An offer, or a market (stars in ``key``), that is not tried for ``left`` more seconds.

    ``strikes``: its refusals in a row, the last one included; each doubles the cool-down. An
    interruption counts as a refusal. 0: it refused nothing, but gave fewer machines than wanted.
    """

    key: str
    code: str
    reason: str
    strikes: int
    until: float
    left: float
    cause: str = ""


class BreakerView(Struct, frozen=True, kw_only=True, rename={"left": "left_s", "remedy": "advice"}):
    """A pool whose last machines failed, ``failures`` in a row; ``how`` says in which way.

    The pool is paused for another ``left`` seconds (0: the next machine is on trial; None: it is
    not paused). ``paid``: dollars for the failed machines of the last 24 hours. ``node_reason``:
    why Slurm took the nodes out of service; ``remedy``: what to do. ``console``: the last line of
    the last machine's console.
    """

    pool: str
    failures: int
    limit: int
    until: float | None
    left: float | None
    how: str = "booted but never registered"
    paid: float = 0.0
    node_reason: str = ""
    remedy: str = ""
    console: str = ""


class HoldView(Struct, frozen=True, kw_only=True, rename={"left": "left_s"}):
    """Held nodes, for ``left`` seconds (``capacity``) or by the site's ``policy``."""

    pool: str
    nodes: str
    count: int
    reason: str
    until: float
    left: float
    kind: str = "capacity"
    cause: str = ""


class TotalView(Struct, frozen=True, kw_only=True):
    """One market: its live machines, their price an hour, and their dollars so far.

    ``cost_ended``: dollars of the machines that ended in the last 24 hours.
    """

    market: str
    machines: int
    price_now: float
    cost_live: float
    cost_ended: float
    ended: int


class BudgetView(Struct, frozen=True, kw_only=True):
    """Dollars of this day and month (UTC) and their limits.

    The budget belongs to a cloud, to the cluster (``cloud`` is ""), or to an account or user.
    ``stop``: why no machine is started on it now.
    """

    cloud: str
    day: float
    per_day: float | None
    month: float
    per_month: float | None
    account: str = ""
    user: str = ""
    stop: str | None = None


class KeptView(Struct, frozen=True, kw_only=True, rename={"do": "advice"}):
    """Nodes, partitions or jobs that Slurm or a person keeps from running.

    ``kind`` is node, replaced or given-up (also nodes), partition, reservation, job or suspend;
    ``names`` lists the ``count`` things. ``text``: who keeps them, since when and why. ``do``: how
    to end that. ``stuck``: it does not end by itself, and it is a mistake.
    """

    kind: str
    names: str
    count: int
    text: str
    do: str = ""
    stuck: bool = False


class StatusView(Struct, frozen=True, kw_only=True):
    """Everything that ``status`` shows.

    ``part``: the cloud or pool that the view is narrowed to; ``site`` is always the whole cluster.
    ``clock``: a sentence if this host's clock is behind the records, or was ahead of a cloud's.
    ``attention``: the notices, the worst first. ``queue`` is None if Slurm did not answer, ``head``
    with one head. ``kept``: what Slurm or a person keeps from running. ``site_nodes``: the nodes
    that are in no pool; None if there are none, or if Slurm shows none. ``reserved``: reservations
    that are paid now; none for users who do not see all machines. ``other_clusters``: the clusters
    that ``--clusters`` shows, too. ``checkpoints_error``: why the records of saves cannot be read,
    else None.
    """

    at: float
    cluster: str
    daemon: DaemonView
    slurm_error: str | None
    ledger_error: str | None
    clouds: tuple[CloudRow, ...]
    pools: tuple[PoolView, ...]
    nodes: tuple[NodesView, ...]
    instances: tuple[InstanceView, ...]
    launches: tuple[LaunchView, ...]
    cool_downs: tuple[CoolDownView, ...]
    holds: tuple[HoldView, ...]
    totals: tuple[TotalView, ...]
    breakers: tuple[BreakerView, ...] = ()
    checkpoints: CheckpointsView | None = None
    budgets: tuple[BudgetView, ...] = ()
    directives: tuple[DirectiveView, ...] = ()
    private: tuple[str, ...] = ()
    site: SiteView | None = None
    clock: str | None = None
    queue: QueueView | None = None
    part: str = ""
    attention: tuple[StatusNotice, ...] = ()
    head: HeadView | None = None
    kept: tuple[KeptView, ...] = ()
    unhelped: tuple[UnhelpedJob, ...] = ()
    site_nodes: SiteNodesView | None = None
    reserved: tuple[ReservedView, ...] = ()
    other_clusters: tuple[str, ...] = ()
    checkpoints_error: str | None = None
    version: int = field(default=1)
