"""The input and the output of ``status``, as values.

``StatusView`` as JSON is what ``slurm-elastic status --json`` prints: within one ``version`` fields
are added, never renamed or removed. Times are Unix seconds, durations seconds, money US dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model.directive import Directive
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import Health, Launch, Machine, UnhelpedJob
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.state.heartbeat import Mark, ServiceTrouble
from slurm_elastic.watch.view.checkpoints import CheckpointFacts, CheckpointsView

WAITING_TOLD = 200  # jobs; a page has room for no more


class HeadView(Struct, frozen=True, kw_only=True):
    """Of two heads: which of ``hosts`` acts by Slurm's word ("" where none does, or that cannot be
    told), the number of the newest ``epoch``, which of them is ``here``; ``told``: that in a line.
    ``do``: the remedy if the services of the host where Slurm acts have not taken over.
    """

    told: str
    hosts: tuple[str, ...] = ()
    acting: str = ""
    here: str = ""
    epoch: int = 0
    do: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that was read, at ``now``. ``nodes`` and ``jobs`` are None if Slurm did not
    answer; ``ledger_error`` is set if the ledger could not be read (its parts are empty then).
    ``machines`` are the live ones and those that ended in the last 24 hours; ``stopped`` are to be
    started again. ``process_found``: whether the daemon's process exists on this host (None: nobody
    looked). ``mark`` is what the daemon leaves beside its ledger, ``end_only`` why it only ends
    machines. ``spent``: dollars of this day and month, by cloud with a budget, ``""`` for all;
    ``payers``: by account and user with a budget (``account:physics``). ``checkpoints`` is None if
    there are none, or if they could not be read (``checkpoints_error``). ``private``: the words of
    Slurm's PrivateData that hide a part from who asks. ``directives``: operators' orders that hold
    now or will. ``head`` is None with one head. ``unhelped``: jobs that growth policies do not
    count. ``reservations``, ``partition_states`` and ``suspend_exclusions`` are Slurm's, empty if
    it did not tell.
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
    suspend_exclusions: SuspendExclusions = field(default_factory=SuspendExclusions)
    unhelped: Sequence[UnhelpedJob] = ()


class Level(StrEnum):
    """How much somebody is needed: nothing works; something is broken; have a look; not at all."""

    LOUD = "loud"
    BAD = "bad"
    WARN = "warn"
    NOTE = "note"


class Told(Struct, frozen=True, kw_only=True):
    """A sentence to be read before the rest; ``do``: what to do, where that is not in it. ``cause``
    names what is at fault, where other rows tell of the same (``watch.causes``).
    """

    level: Level
    text: str
    do: str = ""
    cause: str = ""

    @property
    def whole(self) -> str:
        """With what to do, in one line."""
        return f"{self.text}; do: {self.do}" if self.do else self.text


class DirectiveView(Struct, frozen=True, kw_only=True):
    """An operator's order: ``told`` in one line. It holds ``until`` (Unix time; None: until it is
    ended); ``holds``: it is in force now. ``stops``: nothing new starts there.
    """

    number: int
    told: str
    who: str
    since: float
    starts: float
    until: float | None
    holds: bool
    stops: bool


class DaemonView(Struct, frozen=True, kw_only=True):
    """slurm-elasticd. ``alive``: its heartbeat is fresh and its process is not known to be gone;
    ``age`` is the heartbeat's. ``problems``: what Slurm and the clouds last answered. ``end_only``:
    why it buys nothing and only ends machines, and what to do; None if it does everything.
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


class CloudView(Struct, frozen=True, kw_only=True):
    """A cloud. ``states`` counts its nodes by state; ``limit`` is the most nodes it may have,
    ``machines`` how many are paid now (including open launches). Dollars an hour: ``price_now`` at
    today's prices, ``price_worst`` as the limits count. ``unendable``: which of its machines cannot
    be ended because of the ``problem``, ``do``: what to do about that; ``refused``: the cloud
    refuses the credentials.
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


class SiteView(Struct, frozen=True, kw_only=True):
    """All clouds together: ``machines`` paid now, their ``limit``; dollars as in ``CloudView``."""

    machines: int
    limit: int | None
    price_now: float
    price_worst: float
    price_limit: float | None


class PoolView(Struct, frozen=True, kw_only=True):
    """A pool. ``states`` counts its nodes; ``stopped``: machines kept to be started again;
    ``shut``: why none of its nodes that are off may start ("": one may).
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


class InstanceView(Struct, frozen=True, kw_only=True):
    """A machine paid now: its ``cost`` so far, its ``next`` fate; ``calm``: nothing to do."""

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


class LaunchView(Struct, frozen=True, kw_only=True):
    """A launch for which no answer of the cloud is known."""

    generation: str
    request: str
    pool: str
    offer: str
    nodes: str
    count: int
    age: float


class CoolDownView(Struct, frozen=True, kw_only=True):
    """An offer, or a whole market (stars in ``key``), not asked for ``left`` seconds more."""

    key: str
    code: str
    reason: str
    strikes: int
    until: float
    left: float
    cause: str = ""


class BreakerView(Struct, frozen=True, kw_only=True):
    """A pool whose last machines failed, ``failures`` in a row; ``how`` says how. It is paused for
    ``left`` seconds more: 0 if the next machine is on trial, None if it is not paused. ``paid``:
    dollars for those that failed in the last 24 hours. ``node_reason``: why Slurm took them
    out of service, and the ``remedy``.
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


class HoldView(Struct, frozen=True, kw_only=True):
    """Nodes kept from Slurm, for ``left`` seconds (``capacity``) or by the site's ``policy``."""

    pool: str
    nodes: str
    count: int
    reason: str
    until: float
    left: float
    kind: str = "capacity"
    cause: str = ""


class TotalView(Struct, frozen=True, kw_only=True):
    """One market: what runs, its cost an hour, dollars of live machines and of 24 hours' ended."""

    market: str
    machines: int
    price_now: float
    cost_live: float
    cost_ended: float
    ended: int


class BudgetView(Struct, frozen=True, kw_only=True):
    """Dollars of this day and month (UTC), and their limits, of a cloud, of the cluster (``""``),
    or of an account or user. ``stop``: why it gets no new machine now.
    """

    cloud: str
    day: float
    per_day: float | None
    month: float
    per_month: float | None
    account: str = ""
    user: str = ""
    stop: str | None = None


class WaitingView(Struct, frozen=True, kw_only=True):
    """A job that waits, or so many ``tasks`` of an array. ``age``: seconds since its submission
    (None: unknown); ``nodes``: how many each task wants; ``why``: what keeps all nodes that it may
    get ("": nothing of ours). ``label`` is its name in Slurm's commands, ``wait`` what it waits for
    in a sentence, and ``stuck`` that it does not start by itself.
    """

    id: int
    name: str
    user: str
    account: str
    partitions: tuple[str, ...]
    tasks: int
    nodes: int
    cpus: int
    reason: str
    age: float | None
    why: str = ""
    label: str = ""
    wait: str = ""
    stuck: bool = False


class KeptView(Struct, frozen=True, kw_only=True):
    """What Slurm or a person keeps from jobs, or from starting: ``kind`` is node, replaced or
    given-up (also nodes), partition, reservation, job or suspend; ``names`` are ``count`` of them.
    ``text`` says who keeps it, since when and why, ``do`` what ends that. ``stuck``: it does not
    end by itself, and nobody meant it.
    """

    kind: str
    names: str
    count: int
    text: str
    do: str = ""
    stuck: bool = False


class QueueView(Struct, frozen=True, kw_only=True):
    """Slurm's queue: how many jobs run and wait (each task of an array is one), for how many
    seconds the ``oldest`` has waited, how many wait for each of Slurm's reasons, and those that
    have waited longest (``jobs``, at most WAITING_TOLD).
    """

    running: int
    waiting: int
    oldest: float | None
    reasons: dict[str, int]
    jobs: tuple[WaitingView, ...] = ()


class StatusView(Struct, frozen=True, kw_only=True):
    """Everything that ``status`` shows. ``part``: the cloud or pool that it is narrowed to, where
    ``site`` is of the whole cluster still. ``clock``: this host's is behind the records;
    ``attention``: the worst first; ``queue``: None if Slurm did not answer; ``head``: None with
    one head; ``kept``: what Slurm or a person keeps from jobs.
    """

    at: float
    cluster: str
    daemon: DaemonView
    slurm_error: str | None
    ledger_error: str | None
    clouds: tuple[CloudView, ...]
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
    attention: tuple[Told, ...] = ()
    head: HeadView | None = None
    kept: tuple[KeptView, ...] = ()
    unhelped: tuple[UnhelpedJob, ...] = ()
    version: int = field(default=1)
