"""Why a pending job gets no machine of a pool: the first failing predicate, as a sentence. Pure.

The predicates are the rules by which the submit filter lists our partitions, by which growth
policies count a job for a pool, and by which Slurm and the ledger's bounds keep it from starting.
Each is a row of ``PREDICATES``, in the order in which a person would have to fix them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.repairs import NodeIll
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.gres import gres_count, gres_requests
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.open_partitions import not_open
from slurm_elastic.policies.launch.spot_use import SPOT_OK, bears_loss, nodes_for
from slurm_elastic.policies.launch.time_limits import is_admitted, may_be_shown
from slurm_elastic.policies.launch.unhelped_words import unhelped_reason
from slurm_elastic.policies.launch.waiting import is_counted, is_limit_fixed, is_unproven, sentence
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark, without_mark
from slurm_elastic.policies.nodes.node_state import is_busy, is_down, is_drained, may_take_jobs
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, ill

_EXPRESSION = frozenset("|[]()*!")


class ReservedNodes(Struct, frozen=True, kw_only=True):
    """A reservation of ``nodes`` from ``start`` to ``end`` (Unix s); ``text`` describes it."""

    name: str
    nodes: frozenset[str]
    start: float
    end: float
    text: str


class PoolNodeCounts(Struct, frozen=True, kw_only=True):
    """How many nodes of a pool there are, and of them: in use by jobs, ``idle`` (up and free), and
    ``unusable`` (down or drained), with the most frequent ``cause``. ``busy``: in use and usable.
    ``is_hidden``: users may not see these figures.
    """

    total: int
    in_use: int = 0
    busy: int = 0
    idle: int = 0
    unusable: int = 0
    cause: NodeIll | Quoted = Quoted(text="")
    is_hidden: bool = False

    @classmethod
    def of(
        cls,
        nodes: Collection[SlurmNode],
        terms: DrainTerms,
        *,
        hold: str = "",
        is_hidden: bool = False,
    ) -> PoolNodeCounts:
        """Count the nodes. ``terms``: to read why nodes are drained. ``hold``: why slurm-elasticd
        holds nodes of the pool, by its records; Slurm's reasons are as old as the hold.
        """
        marked = [_with_hold(node, hold) for node in nodes]
        held_back = [node for node in marked if not _is_held_by_growth(node)]
        unusable, cause = out_of_service(held_back, terms)
        return cls(
            total=len(nodes),
            in_use=sum(map(is_busy, nodes)),
            busy=sum(is_busy(n) and not is_down(n) and not is_drained(n) for n in held_back),
            idle=sum(may_take_jobs(n) and not is_busy(n) for n in nodes),
            unusable=unusable,
            cause=cause,
            is_hidden=is_hidden,
        )


def _is_held_by_growth(node: SlurmNode) -> bool:
    """Whether a growth policy keeps the node from Slurm only until a job needs it."""
    return is_drained(node) and without_mark(node, HOLD_MARK) == str(GrowthStartsIt())


def _with_hold(node: SlurmNode, hold: str) -> SlurmNode:
    is_held = is_drained(node) and (has_mark(node, HOLD_MARK) or not node.reason)
    is_held = is_held and not _is_held_by_growth(node)
    return replace(node, reason=f"{HOLD_MARK} {hold}") if hold and is_held else node


class PoolBar(Struct, frozen=True, kw_only=True):
    """Why a pool cannot start a machine for each of its nodes now. ``room``: for how many it can.

    ``is_private``: the reason may reveal money or machines of other users. ``shows_room``: whether
    the sentence names the ``room``.
    """

    pool: str
    reason: str
    room: int = 0
    is_private: bool = False
    shows_room: bool = True

    def reason_for(self, node_count: int) -> str:
        """Return why no machines start for so many nodes; "" if they do."""
        if node_count <= self.room:
            return ""
        if not self.room or not self.shows_room:
            return self.reason
        return f"{self.room} of {node_count} nodes are available now: {self.reason}"

    @property
    def public(self) -> PoolBar:
        """The bar without a private reason. The bar itself stays, so that users know why they
        wait.
        """
        if not self.is_private:
            return self
        reason = "a bound of the site on machines, dollars or hours is reached"
        return replace(self, reason=reason, shows_room=False)


class PoolCase(Struct, frozen=True, kw_only=True):
    """The facts about one pool that matter for any job.

    ``partition``: its cloud's partition, which admits ``accounts``, ``groups`` and ``qos`` (empty:
    all) for at most ``max_time`` s, and only jobs of ``site_partitions`` (empty: jobs that name no
    partition). ``no_requeue_on_spot``: accounts whose jobs may lose a spot machine although Slurm
    may not requeue them. ``interactive``: srun and salloc wait long enough for its machines.
    ``most``: how many of its nodes may ever be up together; ``cloud_most``: the same for its cloud.
    ``nodes``: its nodes in Slurm (None: unknown). ``stop``: why no machine starts in any pool.
    ``bar``: why it does not start machines for all of its nodes. ``is_public``: budgets of accounts
    and users hold for its machines. ``unlisted``: why the submit filter gives no job our
    partitions. ``shut``: why its partition starts no job. ``reserved``: reservations of its nodes.
    """

    pool: Pool
    partition: str
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    site_partitions: tuple[str, ...] = ()
    no_requeue_on_spot: tuple[str, ...] = ()
    max_time: float | None = None
    interactive: bool
    most: int = 0
    cloud_most: int | None = None
    nodes: PoolNodeCounts | None = None
    stop: str = ""
    bar: PoolBar | None = None
    is_public: bool = False
    unlisted: str = ""
    shut: str = ""
    reserved: tuple[ReservedNodes, ...] = ()


class Asker(Struct, frozen=True, kw_only=True):
    """The job that waits, its user's Unix groups (None: unknown), the site's ``default`` partition,
    ``ours`` (all our partitions), ``now`` (Unix s), MaxTime (s) by partition as far as it is known,
    and the arrays of which a task has started.

    ``label``: the job's name in commands ("": as the job itself is called). ``barred``: why its
    account or user gets no machine of a public cloud.
    """

    job: SlurmJob
    now: float
    groups: frozenset[str] | None = None
    default: str = ""
    ours: frozenset[str] = frozenset()
    unhelped: UnhelpedJob | None = None
    fixed_arrays: frozenset[int] = frozenset()
    max_times: Mapping[str, float | None] = {}
    label: str = ""
    barred: str = ""

    @property
    def name(self) -> str:
        """The job's name in commands."""
        return self.label or self.job.shell_label


class Verdict(Struct, frozen=True, kw_only=True):
    """``predicate``: the name of the first predicate that fails, ``reason``: its sentence. "slurm":
    all our predicates hold, and the reason is Slurm's own.
    """

    cloud: str
    pool: str
    predicate: str
    reason: str


class _Question(Struct, frozen=True, kw_only=True):
    """One job and one pool. ``together``: how many nodes that fit the job may be up at a time.
    ``allowed``: how many of them the job may use, as it may have to stay off spot machines.
    ``avoided``: the nodes that its user excludes.
    """

    asker: Asker
    case: PoolCase
    together: int = 0
    allowed: int = 0
    avoided: frozenset[str] = frozenset()

    @property
    def job(self) -> SlurmJob:
        return self.asker.job

    @property
    def listed(self) -> bool:
        """Whether the job's list of partitions contains the pool's partition."""
        return self.case.partition in self.job.partitions


def verdicts(asker: Asker, cases: Sequence[PoolCase]) -> tuple[Verdict, ...]:
    """Return one verdict per pool, in the order of ``cases``."""
    job = asker.job
    allowed_cases = [
        replace(case, most=min(case.most, nodes_for(job, case.pool, case.no_requeue_on_spot)))
        for case in cases
    ]
    avoided = _avoided_by_user(job, cases)
    return tuple(
        _verdict(
            _Question(
                asker=asker,
                case=case,
                together=most_together(job, case, cases),
                allowed=most_together(job, case, allowed_cases),
                avoided=avoided,
            )
        )
        for case in cases
    )


def _avoided_by_user(job: SlurmJob, cases: Sequence[PoolCase]) -> frozenset[str]:
    """Return the excluded nodes of the job without those that the submit filter excludes, because
    the job must stay off spot machines.
    """
    avoided = frozenset(job.excluded)
    for case in cases if avoided else ():
        may_be_filtered = not bears_loss(job, case.no_requeue_on_spot)
        if may_be_filtered and case.partition in job.partitions:
            avoided = avoided.difference(case.pool.spot_nodes)
    return avoided


def most_together(job: SlurmJob, case: PoolCase, cases: Iterable[PoolCase]) -> int:
    """Return how many nodes that could run the job may be up together in the case's partition."""
    # A job runs within one partition, so the fitting pools of its partition add up.
    mates = [c for c in cases if c.partition == case.partition and could_run(job, c.pool)]
    together = sum(mate.most for mate in mates)
    return together if case.cloud_most is None else min(together, case.cloud_most)


def _verdict(question: _Question) -> Verdict:
    pool = question.case.pool
    for name, predicate in PREDICATES:
        reason = predicate(question)
        if reason:
            return Verdict(cloud=pool.cloud, pool=pool.name, predicate=name, reason=reason)
    slurm_reason = f"Slurm has not asked for a machine yet: {sentence(question.job)}"
    return Verdict(cloud=pool.cloud, pool=pool.name, predicate="slurm", reason=slurm_reason)


def could_run(job: SlurmJob, pool: Pool) -> bool:
    """Whether a node of the pool could run the job: plain features, gres, CPUs, memory."""
    return not (
        lacks_features(job, pool)
        or lacks_gres(job, pool)
        or lacks_cpus(job, pool)
        or lacks_memory(job, pool)
    )


def need(job: SlurmJob, pool: Pool) -> int:
    """Return how many nodes of the pool the job takes."""
    gres = [
        math.ceil(asked_count / usable)
        for name, asked_count in gres_requests(job.job_gres)
        if (usable := _usable_gres(job, pool, name))
    ]
    return max(job.node_count, math.ceil(job.cpus / pool.cpus), *gres)


def _usable_gres(job: SlurmJob, pool: Pool, name: str) -> int:
    """Return how many of a gres the job can take of one node, which has to have the CPUs and the
    memory that each of them needs.
    """
    have, kind = gres_count(pool.gres, name), name.partition(":")[0]
    for each, amount in ((job.gres_cpus, pool.cpus), (job.gres_memory, pool.real_memory)):
        per_gres = gres_count(gres_requests(each), kind)
        have = min(have, amount // per_gres) if per_gres else have
    return have


def _beside_gres(job: SlurmJob, each: str) -> int:
    """Return what a node needs at least for its gres; ``each``: what each gres needs."""
    # Slurm may spread gres for the whole job (--gpus), so a node may have a single gres.
    together = [(name, 1) for name, _ in gres_requests(job.job_gres)]
    of_node = [*gres_requests(job.gres)]
    return sum(
        amount * max(gres_count(of_node, kind), min(gres_count(together, kind), 1))
        for kind, amount in gres_requests(each)
    )


def features(pool: Pool) -> tuple[str, ...]:
    """Return the names that ``--constraint`` may have: the pool's features, its cloud, the pool."""
    return tuple(dict.fromkeys((*pool.features, pool.cloud, pool.name)))


def most_nodes(pool: Pool, price: float, caps: Iterable[float | None]) -> int:
    """Return how many nodes of the pool may ever be up together if each costs ``price`` under the
    ``caps`` ($/h). A larger job would wait forever.
    """
    bounds = [len(pool.nodes)] if pool.max_nodes is None else [len(pool.nodes), pool.max_nodes]
    # A billionth of slack against rounding, as in `ranking`.
    bounds += [int(cap / price + 1e-9) for cap in caps if cap is not None and price]
    return min(bounds)


def lacks_features(job: SlurmJob, pool: Pool) -> str:
    """Return the features that the pool lacks, as a sentence; "" if it lacks none. Only Slurm can
    judge an expression of features.
    """
    if not job.features or set(job.features) & _EXPRESSION:
        return ""
    asked_features = (word.strip() for word in job.features.replace("&", ",").split(","))
    lacking = [word for word in asked_features if word and word not in features(pool)]
    return f"its nodes lack the feature {', '.join(lacking)} (--constraint)" if lacking else ""


def lacks_gres(job: SlurmJob, pool: Pool) -> str:
    """Return the gres that the pool lacks, as a sentence; "" if it lacks none. ``gpu`` counts every
    type, ``gpu:a100`` that type only. Slurm may satisfy a request for the whole job (--gpus) from
    any number of nodes.
    """
    for text, together in ((job.gres, False), (job.job_gres, True)):
        for name, asked_count in gres_requests(text):
            have = gres_count(pool.gres, name)
            if have == 0 or (asked_count > have and not together):
                return f"its nodes have {have} {name}, the job asks for {asked_count}"
    return ""


def lacks_cpus(job: SlurmJob, pool: Pool) -> str:
    asked_cpus = max(job.node_cpus, _beside_gres(job, job.gres_cpus))
    if asked_cpus <= pool.cpus:
        return ""
    return f"its nodes have {pool.cpus} CPUs, the job asks for {asked_cpus} on one"


def lacks_memory(job: SlurmJob, pool: Pool) -> str:
    asked_mib = max(
        job.node_memory,
        job.cpu_memory * max(job.node_cpus, 1),
        _beside_gres(job, job.gres_memory),
    )
    if asked_mib <= pool.real_memory:
        return ""
    return f"its nodes have {pool.real_memory} MiB, the job asks for {asked_mib} on one"


def _named(question: _Question) -> str:
    """Return the user's choice for which the submit filter leaves the job alone; "" if none."""
    job = question.job
    if question.listed:
        return ""
    case, asker = question.case, question.asker
    names = [name for name in job.partitions if name and name not in asker.ours]
    if reason := not_open(names, case.site_partitions, asker.default):
        return f"{reason} may get {case.partition} (allow.partitions of cloud {case.pool.cloud})"
    for kind, value in (
        ("nodes (-w)", job.required), ("nodes to avoid (-x)", question.avoided),
        ("a reservation", job.reservation),
    ):  # fmt: skip
        if value:
            return f"the job names {kind}: the submit filter leaves such a job alone"
    return ""


def _account(question: _Question) -> str:
    return _not_in("account", question.job.account, question.case.accounts, question)


def _qos(question: _Question) -> str:
    return _not_in("QOS", question.job.qos, question.case.qos, question)


def _not_in(kind: str, value: str, allowed: Collection[str], question: _Question) -> str:
    """Return why ``value`` is not among the names that the cloud admits; "" if it is."""
    # Slurm has admitted a listed job, also by its account's parent, unless it refuses this name.
    # Of several partitions another one may refuse it.
    is_refused = question.job.wait_reason.row.refuses == kind and not is_unproven(question.job)
    let_in = question.listed and not is_refused
    if let_in or not allowed or value.lower() in {name.lower() for name in allowed}:
        return ""
    names = ", ".join(sorted(allowed))
    if not value:
        return f"only {kind} {names} may use it, and Slurm knows none for the job"
    # Not "may not use it": since 23.02 Slurm admits accounts below a named account, too.
    key = "accounts" if kind == "account" else "qos"
    return f"{kind} {value} is not in allow.{key} of slurm-elastic.yaml, which names {names}"


def _group(question: _Question) -> str:
    groups, allowed = question.asker.groups, question.case.groups
    # Slurm has admitted a listed job. Unknown groups prove nothing.
    if question.listed or groups is None or not allowed or groups & set(allowed):
        return ""
    user = question.job.user or "its user"
    return f"{user} is in none of the groups that may use it: {', '.join(allowed)}"


def _interactive(question: _Question) -> str:
    if question.listed or question.job.batch or question.case.interactive:
        return ""
    return "srun and salloc may give up before its machines have booted: use sbatch"


def _requeue(question: _Question) -> str:
    job, case = question.job, question.case
    usable = nodes_for(job, case.pool, case.no_requeue_on_spot)
    if usable == len(case.pool.nodes):
        return ""
    is_enough = question.allowed >= need(job, case.pool)
    # The submit filter excludes the nodes of spot machines from a job that other nodes of the
    # partition can hold. If they cannot, its user has named the partition, and its machines are
    # bought on demand.
    if is_enough and usable:
        return ""
    if question.listed and (not is_enough or job.required or job.reservation):
        return ""
    nodes = f"all but {usable} of its nodes" if usable else "it"
    return (
        f"{nodes} may have spot machines, and the job may not be requeued (sbatch --requeue, or"
        f" --comment={SPOT_OK})"
    )


_REST_WITHOUT_LIMIT = "its first task started without a time limit, which the other tasks keep"


def _time(question: _Question) -> str:
    job, max_time = question.job, question.case.max_time
    limit = job.least_limit
    if max_time is None or (limit is not None and limit <= max_time):
        return ""
    if question.listed and is_admitted(job):
        return ""
    is_fixed = is_limit_fixed(job, question.asker.fixed_arrays)
    if limit is None:
        if not is_fixed or not question.listed:
            return ""
        command = f"scontrol update jobid={question.asker.name} timelimit={int(max_time // 60)}"
        return f"{_REST_WITHOUT_LIMIT}; the partition's is {brief(max_time)}; do: {command}"
    if not is_fixed and may_be_shown(job, question.case.partition, question.asker.max_times):
        return ""
    option = "sbatch --time-min" if job.min_limit else "sbatch -t"
    return f"the job's time limit is {brief(limit)}, the partition's {brief(max_time)} ({option})"


def _size(question: _Question) -> str:
    node_count = need(question.job, question.case.pool)
    if node_count <= question.together:
        return ""
    most = question.together
    return f"the job asks for {node_count} nodes, and {most} such can be up together at most"


def _unlisted(question: _Question) -> str:
    if question.listed:
        return ""
    listed = ",".join(filter(None, question.job.partitions))
    cause = question.case.unlisted or (
        f"the job is for {listed} only: its user chose that, an order moved it, or the submit "
        "filter added nothing"
    )
    # No other partition starts a job that is held, or that waits for a time or another job.
    if not is_counted(question.job, question.asker.now):
        return cause
    partitions = f"{listed},{question.case.partition}"
    return f"{cause}; do: scontrol update jobid={question.asker.name} partition={partitions}"


def _kept(question: _Question) -> str:
    job, now = question.job, question.asker.now
    if is_counted(job, now) or job.is_requeue_hold(now):
        return ""
    command = job.wait_reason.advice(question.asker.name)
    return f"{sentence(job)}; do: {command}" if command else sentence(job)


def _shut(question: _Question) -> str:
    return question.case.shut


def _reserved(question: _Question) -> str:
    """Return the first reservation that leaves the job too few nodes; "" if none does."""
    pool, job, now = question.case.pool, question.job, question.asker.now
    end = now + (job.limit if job.limit is not None else math.inf)
    own_reservations = job.reservation.split(",")
    blocking = [
        row
        for row in question.case.reserved
        if row.name not in own_reservations and row.start < end and row.end > now
    ]
    free = set(pool.nodes).difference(*(row.nodes for row in blocking))
    if not blocking or len(free) >= _nodes_needed_here(question):
        return ""
    earliest = min(blocking, key=lambda row: row.start)
    return f"{earliest.text}{fits_before(question.asker, earliest.start)}"


def fits_before(asker: Asker, start: float) -> str:
    """Return the advice with the time limit that lets the job end before a reservation starts."""
    job = asker.job
    # Slurm's time limits are whole minutes.
    minutes = int((start - asker.now) // 60)
    if minutes < 1:
        return ""
    limit = "no limit" if job.limit is None else f"a limit of {brief(job.limit)}"
    command = f"scontrol update jobid={asker.name} timelimit={minutes}"
    return f"; the job has {limit}, sbatch -t {minutes} fits before; do: {command}"


def _requeued(question: _Question) -> str:
    """Return when Slurm starts a requeued job at the earliest; "" without such a delay."""
    job, now = question.job, question.asker.now
    if not job.is_requeue_hold(now):
        return ""
    return f"it was requeued: Slurm starts it in {brief(job.begin - now)} at the earliest"


def _unhelped(question: _Question) -> str:
    row = question.asker.unhelped
    return unhelped_reason(row, question.asker.now) if row and question.listed else ""


def _bar(question: _Question) -> str:
    """Return why machines do not start for the job, unless idle machines are enough for it."""
    case = question.case
    missing = _nodes_needed_here(question) - (case.nodes.idle if case.nodes else 0)
    if missing > 0 and case.stop:
        return case.stop
    # slurm-elasticd keeps the jobs of a spent budget from idle machines, too.
    if case.is_public and question.asker.barred:
        return question.asker.barred
    return case.bar.reason_for(missing) if case.bar and missing > 0 else ""


def _health(question: _Question) -> str:
    """Return how many nodes take no job, and the most frequent reason; "" if enough are left."""
    nodes = question.case.nodes
    if nodes is None:
        return ""
    usable = nodes.total - nodes.unusable - nodes.busy
    if not nodes.unusable or usable >= _nodes_needed_here(question):
        return ""
    if nodes.is_hidden:
        return "its nodes take no jobs"
    busy = nodes.busy
    busy_text = f" and {busy} are busy" if busy > 1 else " and 1 is busy" if busy else ""
    return f"{nodes.unusable} of its {nodes.total} nodes take no jobs{busy_text}: {nodes.cause}"


def _nodes_needed_here(question: _Question) -> int:
    """Return how many nodes of this pool the job needs; other nodes may come from other pools."""
    return min(need(question.job, question.case.pool), len(question.case.pool.nodes))


def out_of_service(nodes: Iterable[SlurmNode], terms: DrainTerms) -> tuple[int, NodeIll | Quoted]:
    """Return how many nodes are down or drained, and the most frequent reason."""
    reasons: Counter[NodeIll | Quoted] = Counter()
    for node in nodes:
        if is_down(node) or is_drained(node):
            ails, node_reason = ill(node, terms), without_mark(node, HOLD_MARK)
            reasons[ails.cause if ails else Quoted(text=node_reason or "without a reason")] += 1
    return reasons.total(), reasons.most_common(1)[0][0] if reasons else Quoted(text="")


def _in_use(question: _Question) -> str:
    nodes = question.case.nodes
    if nodes is None or not nodes.total:
        return ""
    if nodes.total - nodes.in_use >= _nodes_needed_here(question):
        return ""
    if nodes.is_hidden:
        return "its nodes are in use"
    return f"{nodes.in_use} of its {nodes.total} nodes are in use"


_Predicate = Callable[[_Question], str]
PREDICATES: tuple[tuple[str, _Predicate], ...] = (
    ("partition", _named),
    ("account", _account),
    ("qos", _qos),
    ("group", _group),
    ("interactive", _interactive),
    ("requeue", _requeue),
    ("time", _time),
    ("features", lambda q: lacks_features(q.job, q.case.pool)),
    ("gres", lambda q: lacks_gres(q.job, q.case.pool)),
    ("cpus", lambda q: lacks_cpus(q.job, q.case.pool)),
    ("memory", lambda q: lacks_memory(q.job, q.case.pool)),
    ("size", _size),
    ("filter", _unlisted),
    ("partition state", _shut),
    ("reserved", _reserved),
    ("kept", _kept),
    ("unhelped", _unhelped),
    ("bound", _bar),
    ("health", _health),
    ("in use", _in_use),
    # Last, because this hold passes by itself: any other reason matters more.
    ("requeued", _requeued),
)


_OF_ENTRY = frozenset({"account", "qos", "group", "requeue", "partition state"})


def refused_entry(asker: Asker, case: PoolCase) -> Verdict | None:
    """Return why the job should not be moved into the pool's partition, which it does not name: why
    Slurm refuses the job there, or would not start it. None if nothing is against it.
    """
    question = _Question(asker=asker, case=case)
    for name, predicate in PREDICATES:
        reason = predicate(question) if name in _OF_ENTRY else ""
        if reason:
            pool = case.pool
            return Verdict(cloud=pool.cloud, pool=pool.name, predicate=name, reason=reason)
    return None


def grouped(results: Sequence[Verdict]) -> list[tuple[str, tuple[str, ...], str]]:
    """Return cloud, pools and reason, with pools of one cloud and the same reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for verdict in results:
        groups.setdefault((verdict.cloud, verdict.reason), []).append(verdict.pool)
    return [(cloud, tuple(pools), reason) for (cloud, reason), pools in groups.items()]
