"""The proof of a rehearsal: jobs as they were seen, machines as they were paid. Pure."""

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
    """A job as ``scontrol show job`` has it. ``nodes`` is empty while it waits; ``wanted`` is how
    many it asks for; ``started`` is Unix time, 0 while it has none.
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
        """Whether its nodes are taken by it now."""
        return bool(self.nodes) and self.state in _HOLDING

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state not in _WAITING | _HOLDING


class RehearsedPartition(Struct, frozen=True, kw_only=True):
    """A partition and its nodes; ``own``: the site's machines, static or on-premises."""

    partition: str
    cloud: str
    nodes: tuple[str, ...]
    own: bool


class CostRow(Struct, frozen=True, kw_only=True):
    """The cost of a market's machines. ``on_demand``: the same hours at on-demand prices,
    None for machines that no cloud sells.
    """

    cloud: str
    market: Market
    machines: int
    hours: float
    dollars: float
    on_demand: float | None


def parse_jobs(text: str) -> dict[int, JobRow]:
    """The answer of ``scontrol --oneliner show job``, by job id."""
    rows = (fields(line) for line in text.splitlines() if line.startswith("JobId="))
    return {row.id: row for row in map(_job_row, rows)}


def _job_row(row: Mapping[str, str]) -> JobRow:
    state = row["JobState"].split()[0]
    nodes = row.get("NodeList", "(null)")
    taken = state not in _WAITING and nodes not in ("(null)", "")
    return JobRow(
        id=int(row["JobId"]),
        name=row["JobName"],
        state=state,
        partition=row["Partition"],
        nodes=tuple(expand(nodes)) if taken else (),
        wanted=int(row["NumNodes"].partition("-")[0]),
        started=_time(row.get("StartTime", "Unknown")),
    )


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return 0.0


class JobWatch:
    """The states of the jobs, look by look."""

    def __init__(self, places: Sequence[RehearsedPartition]) -> None:
        self.jobs: dict[int, JobRow] = {}
        self.places = {place.partition: place for place in places}
        self.too_early: list[str] = []
        self._own = {n: p.partition for p in places if p.own for n in p.nodes}
        self._free = Counter[str]()

    def see(self, now: Mapping[int, JobRow]) -> None:
        """One look at the queue; ended jobs may be missing from it."""
        free = self._free_by_partition(now.values())
        for job in now.values():
            before = self.jobs.get(job.id)
            fresh = job.holds and not (before and before.holds)
            # Free before and after: free when the job was given a machine of a public cloud.
            could = [p for p in free if min(free[p], self._free[p]) >= job.wanted]
            if fresh and not self.place(job).own and could:
                self.too_early.append(
                    f"{job.name} went to {job.partition} while {could[0]} was free"
                )
        self.jobs.update(now)
        self._free = free

    def _free_by_partition(self, jobs: Iterable[JobRow]) -> Counter[str]:
        taken = {node for job in jobs if job.holds for node in job.nodes}
        return Counter(where for node, where in self._own.items() if node not in taken)

    def place(self, job: JobRow) -> RehearsedPartition:
        """Where a job with nodes runs or ran."""
        return self.places[job.partition]

    def states(self) -> Counter[str]:
        """How many jobs wait, start, run and are done."""
        return Counter(_word(job.state) for job in self.jobs.values())

    def busy(self) -> dict[str, int]:
        """How many nodes are taken, by cloud."""
        taken = {node for job in self.jobs.values() if job.holds for node in job.nodes}
        return {p.cloud: len(taken.intersection(p.nodes)) for p in self.places.values()}


def _word(state: str) -> str:
    if state in _WAITING:
        return "waiting"
    words = {"CONFIGURING": "starting", "COMPLETING": "running", DONE: "completed"}
    return words.get(state, state.lower())


def markets(job: JobRow, machines: Iterable[Machine]) -> Sequence[Market]:
    """On which markets a job's machines were bought; none for static nodes."""
    latest: dict[str, Machine] = {}
    for machine in sorted(machines, key=lambda m: m.instance.launched):
        # A second of slack: Slurm's times are whole seconds.
        if machine.instance.node in job.nodes and machine.instance.launched <= job.started + 1:
            latest[machine.instance.node] = machine
    return sorted({m.instance.market for m in latest.values()})


def costs(
    machines: Iterable[Machine], on_demand: Mapping[str, float], now: float
) -> Sequence[CostRow]:
    """By cloud and market; ``on_demand`` are $/h by instance type."""
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
    seconds = sum((now if m.ended is None else m.ended) - m.instance.launched for m in machines)
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
    """The faults of the jobs and of where they ran; empty: all as it should be."""
    problems = [why for id_ in submitted if (why := _job_problem(watch, id_))]
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
    """Whether spot machines came before on-demand ones, and a refusal was followed by another
    offer inside the same request.
    """
    first: dict[Market, str] = {}
    for machine in sorted(machines, key=lambda m: m.instance.generation):
        first.setdefault(machine.instance.market, machine.instance.generation)
    problems = [f"no machine was bought {market}" for market in (Market.SPOT, Market.ON_DEMAND)
                if market not in first]  # fmt: skip
    if not problems and first[Market.ON_DEMAND] < first[Market.SPOT]:
        problems.append("an on-demand machine was bought before any spot machine")
    if refused_and_next(decisions) is None:
        problems.append("no refused offer was followed by another one inside the same request")
    return problems


def refused_and_next(decisions: Iterable[Decision]) -> tuple[Decision, Decision] | None:
    """A refusal, and the launch that followed it inside the same request."""
    refused: dict[str, Decision] = {}
    for one in sorted(decisions, key=lambda d: d.at):
        if one.kind == "launch-refused":
            refused[one.correlation] = one
        elif one.kind == "launched" and one.correlation in refused:
            return refused[one.correlation], one
    return None
