"""Checks the results of a rehearsal: where and when its jobs ran, and what its machines cost.
Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import Decision, Machine
from slurm_elastic.sandbox.shell import fields

DONE = "COMPLETED"
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_HOLDING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STOPPED", "SUSPENDED"})


class JobRow(Struct, frozen=True, kw_only=True):
    """A job in the answer of ``scontrol show job``. ``nodes``: empty while it waits; ``wanted``:
    the number of requested nodes; ``started``: Unix time, 0 before the start.
    """

    id: int
    name: str
    state: str
    partition: str
    nodes: tuple[str, ...]
    wanted: int
    started: float = 0.0

    @property
    def holds(self) -> bool:
        """True if the job occupies its nodes now."""
        return bool(self.nodes) and self.state in _HOLDING

    @property
    def over(self) -> bool:
        """True if the job has ended, successfully or not."""
        return self.state not in _WAITING | _HOLDING


class RehearsedPartition(Struct, frozen=True, kw_only=True):
    """A partition and its nodes. ``own``: True for the site's machines, static or on-premises."""

    partition: str
    cloud: str
    nodes: tuple[str, ...]
    own: bool


class CostRow(Struct, frozen=True, kw_only=True):
    """The cost of a market's machines in dollars. ``on_demand``: the cost of the same hours at
    on-demand prices; None if a machine has no such price.
    """

    cloud: str
    market: Market
    machines: int
    hours: float
    dollars: float
    on_demand: float | None


def parse_jobs(text: str) -> dict[int, JobRow]:
    """Parse the answer of ``scontrol --oneliner show job``. Returns jobs by id."""
    rows = (fields(line) for line in text.splitlines() if line.startswith("JobId="))
    return {row.id: row for row in map(_job_row, rows)}


def _job_row(row: Mapping[str, str]) -> JobRow:
    state = row["JobState"].split()[0]
    nodes = row.get("NodeList", "(null)")
    has_nodes = state not in _WAITING and nodes not in ("(null)", "")
    return JobRow(
        id=int(row["JobId"]),
        name=row["JobName"],
        state=state,
        partition=row["Partition"],
        nodes=tuple(expand(nodes)) if has_nodes else (),
        wanted=int(row["NumNodes"].partition("-")[0]),
        started=_time(row.get("StartTime", "Unknown")),
    )


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return 0.0


class JobWatch:
    """Collects the states of the jobs over several looks at the queue. ``too_early``: sentences
    about jobs that got a public machine while own machines were free.
    """

    def __init__(self, places: Sequence[RehearsedPartition]) -> None:
        self.jobs: dict[int, JobRow] = {}
        self.places = {place.partition: place for place in places}
        self.too_early: list[str] = []
        self._own = {n: p.partition for p in places if p.own for n in p.nodes}
        self._free = Counter[str]()

    def see(self, now: Mapping[int, JobRow]) -> None:
        """Record a look at the queue. Ended jobs may be missing from it."""
        free = self._free_by_partition(now.values())
        for job in now.values():
            previous = self.jobs.get(job.id)
            is_new = job.holds and not (previous and previous.holds)
            # A machine that was free at the last look and at this look was also free when the job
            # got a machine of a public cloud.
            free_partitions = [p for p in free if min(free[p], self._free[p]) >= job.wanted]
            if is_new and not self.place(job).own and free_partitions:
                self.too_early.append(
                    f"{job.name} went to {job.partition} while {free_partitions[0]} was free"
                )
        self.jobs.update(now)
        self._free = free

    def _free_by_partition(self, jobs: Iterable[JobRow]) -> Counter[str]:
        occupied = {node for job in jobs if job.holds for node in job.nodes}
        return Counter(partition for node, partition in self._own.items() if node not in occupied)

    def place(self, job: JobRow) -> RehearsedPartition:
        """Return the partition in which a job runs or ran."""
        return self.places[job.partition]

    def states(self) -> Counter[str]:
        """Return the number of jobs by state, in words for people."""
        return Counter(_word(job.state) for job in self.jobs.values())

    def busy(self) -> dict[str, int]:
        """Return the number of occupied nodes by cloud."""
        occupied = {node for job in self.jobs.values() if job.holds for node in job.nodes}
        return {p.cloud: len(occupied.intersection(p.nodes)) for p in self.places.values()}


def _word(state: str) -> str:
    if state in _WAITING:
        return "waiting"
    word_by_state = {"CONFIGURING": "starting", "COMPLETING": "running", DONE: "completed"}
    return word_by_state.get(state, state.lower())


def markets(job: JobRow, machines: Iterable[Machine]) -> Sequence[Market]:
    """Return the markets on which a job's machines were bought; empty for static nodes."""
    latest: dict[str, Machine] = {}
    for machine in sorted(machines, key=lambda m: m.instance.launched):
        # One second of tolerance, because Slurm's times are whole seconds.
        if machine.instance.node in job.nodes and machine.instance.launched <= job.started + 1:
            latest[machine.instance.node] = machine
    return sorted({m.instance.market for m in latest.values()})


def costs(
    machines: Iterable[Machine], on_demand: Mapping[str, float], now: float
) -> Sequence[CostRow]:
    """Return the costs by cloud and market. ``on_demand``: prices in $/h by instance type."""
    groups: defaultdict[tuple[str, Market], list[Machine]] = defaultdict(list)
    for machine in machines:
        groups[machine.instance.cloud, machine.instance.market].append(machine)
    return [_cost(*key, group, on_demand, now) for key, group in groups.items()]


def _cost(
    cloud: str,
    market: Market,
    machines: Sequence[Machine],
    on_demand: Mapping[str, float],
    now: float,
) -> CostRow:
    seconds = sum(
        (now if m.ended_at is None else m.ended_at) - m.instance.launched for m in machines
    )
    listed = [on_demand.get(m.instance.instance_type) for m in machines]
    return CostRow(
        cloud=cloud,
        market=market,
        machines=len(machines),
        hours=seconds / 3600,
        dollars=sum(m.lease.cost(now) for m in machines),
        on_demand=sum(
            replace(m.lease, price=price).cost(now)
            for m, price in zip(machines, listed, strict=True)
            if price is not None
        )
        if None not in listed
        else None,
    )


def job_problems(watch: JobWatch, submitted: Collection[int]) -> list[str]:
    """Return sentences about jobs that failed, or ran in the wrong place; empty if none did."""
    problems = [problem for id_ in submitted if (problem := _job_problem(watch, id_))]
    used = {watch.place(job).cloud for job in watch.jobs.values() if job.nodes}
    unused = [p.cloud for p in watch.places.values() if p.cloud not in used]
    return problems + watch.too_early + [f"no job ran on {cloud}" for cloud in unused]


def _job_problem(watch: JobWatch, id_: int) -> str | None:
    job = watch.jobs.get(id_)
    if job is None:
        return f"job {id_} was submitted and is not known to Slurm"
    if job.state != DONE:
        return f"{job.name} (job {job.id}) is {job.state}, not {DONE}"
    if not set(job.nodes) <= set(watch.place(job).nodes):
        return f"{job.name} ran on {', '.join(job.nodes)}: not in one partition"
    if len(job.nodes) != job.wanted:
        return f"{job.name} ran on {len(job.nodes)} nodes, not on {job.wanted}"
    return None


def market_problems(machines: Iterable[Machine], decisions: Iterable[Decision]) -> list[str]:
    """Return sentences if on-demand machines were bought before spot machines, or if no refused
    offer was followed by another offer within the same request.
    """
    first_generation: dict[Market, str] = {}
    for machine in sorted(machines, key=lambda m: m.instance.generation):
        first_generation.setdefault(machine.instance.market, machine.instance.generation)
    problems = [f"no machine was bought {market}" for market in (Market.SPOT, Market.ON_DEMAND)
                if market not in first_generation]  # fmt: skip
    if not problems and first_generation[Market.ON_DEMAND] < first_generation[Market.SPOT]:
        problems.append("an on-demand machine was bought before any spot machine")
    if refused_and_next(decisions) is None:
        problems.append("no refused offer was followed by another one inside the same request")
    return problems


def refused_and_next(decisions: Iterable[Decision]) -> tuple[Decision, Decision] | None:
    """Return a refusal and the launch that followed it within the same request, or None."""
    refused: dict[str, Decision] = {}
    for decision in sorted(decisions, key=lambda d: d.at):
        if decision.kind == "launch-refused":
            refused[decision.correlation] = decision
        elif decision.kind == "launched" and decision.correlation in refused:
            return refused[decision.correlation], decision
    return None
