"""The input and the output of ``status``, as values.

``StatusView`` as JSON is the document of ``slurm-elastic status --json``: within one ``version``
fields are added, never renamed or removed. Times are Unix seconds, durations seconds, money US
dollars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.model.cluster import Exclusion
from slurm_elastic.model.directive import Directive
from slurm_elastic.model.memory import Health, Launch, Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.growth.capacity import Spent
from slurm_elastic.state.heartbeat import Mark
from slurm_elastic.watch.view.checkpoints import CheckpointFacts, CheckpointsView


class Facts(Struct, frozen=True, kw_only=True):
    """All that was read, at ``now``. ``nodes`` and ``jobs`` are None where Slurm did not answer,
    ``ledger_error`` is set where the ledger could not be read (its parts are then empty).
    ``machines`` holds the live ones and those that ended in the last 24 hours; ``stopped`` those
    that are to be started again.
    ``process_found`` says whether the daemon's process exists on this host (None: not looked).
    ``mark`` is what the daemon leaves beside its ledger, ``end_only`` why it only ends machines.
    ``spent``: dollars of this day and month, by cloud with a budget, ``""`` for all; ``payers``:
    by account and user with a budget (``account:physics``). ``checkpoints`` is None where there are
    none, or they could not be read (``checkpoints_error``). ``private``: words of Slurm's
    PrivateData by which a part of it is hidden from who asks. ``directives``: operators' words, in
    force or to come.
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
    end_only: str = ""
    checkpoints: CheckpointFacts | None = None
    checkpoints_error: str | None = None
    private: tuple[str, ...] = ()
    spent: Mapping[str, Spent] = field(default_factory=dict)
    payers: Mapping[str, Spent] = field(default_factory=dict)
    directives: Sequence[Directive] = ()


class Level(StrEnum):
    """How much somebody is needed: nothing works without; something is broken; look at it; no."""

    LOUD = "loud"
    BAD = "bad"
    WARN = "warn"
    NOTE = "note"


class Told(Struct, frozen=True, kw_only=True):
    """A sentence that is read before the rest."""

    level: Level
    text: str


class DirectiveView(Struct, frozen=True, kw_only=True):
    """An operator's word: ``told`` in one line; ``until`` (Unix time) it holds, None: until it is
    ended; ``holds``: it is in force now. ``stops``: nothing new starts there.
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
    ``age`` is the heartbeat's. ``problems`` are what Slurm and the clouds last answered.
    ``end_only`` is why it buys nothing and only ends machines, and what to do; None where it
    does all.
    """

    alive: bool
    heartbeat: float | None
    age: float | None
    pid: int | None
    process_found: bool | None
    pending_requests: int | None
    problems: tuple[str, ...] = ()
    end_only: str | None = None


class CloudView(Struct, frozen=True, kw_only=True):
    """A cloud. ``states`` counts its nodes by state; ``limit`` is the most nodes it may have and
    ``machines`` those that are paid now (open launches included). Dollars an hour: ``price_now``
    at today's prices, ``price_worst`` as the limits count.
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


class SiteView(Struct, frozen=True, kw_only=True):
    """All clouds together: ``machines`` that are paid now (open launches included) and their
    ``limit``; dollars an hour as in ``CloudView``.
    """

    machines: int
    limit: int | None
    price_now: float
    price_worst: float
    price_limit: float | None


class PoolView(Struct, frozen=True, kw_only=True):
    """A pool. ``states`` counts its nodes by state; ``stopped``: its machines that are to be
    started again, beside the paid ones.
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


class NodesView(Struct, frozen=True, kw_only=True):
    """Nodes of one cloud in the same state for the same reason; ``nodes`` is a hostlist."""

    state: str
    cloud: str
    nodes: str
    count: int
    note: str


class JobView(Struct, frozen=True, kw_only=True):
    """A job on a machine."""

    id: int
    user: str
    state: str


class InstanceView(Struct, frozen=True, kw_only=True):
    """A machine that is paid now; ``cost`` is so far, ``next`` what will happen to it, ``calm``:
    nobody has to do anything about that.
    """

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
    """A launch whose call is not known to have answered."""

    generation: str
    request: str
    pool: str
    offer: str
    nodes: str
    count: int
    age: float


class CoolDownView(Struct, frozen=True, kw_only=True):
    """An offer, or a whole market of a cloud (stars in ``key``), not asked for
    ``left`` seconds.
    """

    key: str
    code: str
    reason: str
    strikes: int
    until: float
    left: float


class BreakerView(Struct, frozen=True, kw_only=True):
    """A pool whose last machines failed, ``failures`` in a row: ``how`` in words. ``left`` is
    how long it is still paused: 0 when the next machine is on trial, None if it is not paused.
    """

    pool: str
    failures: int
    limit: int
    until: float | None
    left: float | None
    how: str = "booted but never registered"


class HoldView(Struct, frozen=True, kw_only=True):
    """Nodes of a pool that are kept from Slurm: for ``left`` s more (``kind`` ``capacity``), or
    until the site's policies start them (``policy``).
    """

    pool: str
    nodes: str
    count: int
    reason: str
    until: float
    left: float
    kind: str = "capacity"


class TotalView(Struct, frozen=True, kw_only=True):
    """One market: what runs, what it costs an hour, and dollars of the live machines so far and
    of those that ended in the last 24 hours.
    """

    market: str
    machines: int
    price_now: float
    cost_live: float
    cost_ended: float
    ended: int


class BudgetView(Struct, frozen=True, kw_only=True):
    """Dollars of this day and month (UTC) of a cloud, or the cluster (``""``), or of an account
    or user, and the bounds. ``stop``: why it gets no new machine now.
    """

    cloud: str
    day: float
    per_day: float | None
    month: float
    per_month: float | None
    account: str = ""
    user: str = ""
    stop: str | None = None


class QueueView(Struct, frozen=True, kw_only=True):
    """Slurm's queue: jobs that run and that wait (each task of an array is one), the ``oldest`` of
    these in seconds since it was submitted, and how many wait for which reason of Slurm's.
    """

    running: int
    waiting: int
    oldest: float | None
    reasons: dict[str, int]


class StatusView(Struct, frozen=True, kw_only=True):
    """Everything ``status`` shows. ``clock``: this host's is behind what was written.
    ``attention``: what to read first, the worst first. ``queue`` is None where Slurm did not
    answer.
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
    attention: tuple[Told, ...] = ()
    version: int = field(default=1)
