"""Jobs and machines that stand in the way when nodes or partitions leave slurm.conf.

When slurmctld starts without a partition, it ends every job of that partition with NODE_FAIL, even
a pending job that has other partitions in its list (measured on 22.05). So we cut these lists
first, and refuse if a job has no other partition, or runs on a node or in a partition that leaves.
It also ends a waiting job that requires a node which leaves, each job on a node whose number of
CPUs has changed, and each job that uses gres on a node whose gres have changed (all measured on
22.05), so we refuse while there are such jobs. We also refuse while clouds have machines: Slurm
suspends no node that it does not know, so nothing would end them.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config, SlurmSettings
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.exclusion import CAPACITY, POLICY
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.siteconf import ConfLine, names, read_lines
from slurm_elastic.slurm.conf import fragment
from slurm_elastic.state.ledger import Launch, Ledger, Machine
from slurm_elastic.state.store.shared_journal import is_there

log = logging.getLogger(__name__)

_MAX_SHOWN = 10
_DYNAMIC = frozenset({"DYNAMIC_NORM", "DYNAMIC_FUTURE"})

JobLists = dict[tuple[str, ...], list[int]]
"""Jobs by their list of partitions."""


class NodesAndPartitions(Struct, frozen=True, kw_only=True):
    """Nodes and partitions by name. ``resized``: nodes that stay, with another number of CPUs.
    ``other_gres``: nodes that stay, with other gres.
    """

    nodes: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    resized: frozenset[str] = frozenset()
    other_gres: frozenset[str] = frozenset()

    def without(self, remaining: NodesAndPartitions) -> NodesAndPartitions:
        """The nodes and partitions missing in ``remaining``."""
        return NodesAndPartitions(
            nodes=self.nodes - remaining.nodes, partitions=self.partitions - remaining.partitions
        )

    def joined(self, other: NodesAndPartitions) -> NodesAndPartitions:
        """The nodes and partitions of both."""
        return NodesAndPartitions(
            nodes=self.nodes | other.nodes,
            partitions=self.partitions | other.partitions,
            resized=self.resized | other.resized,
            other_gres=self.other_gres | other.other_gres,
        )

    def __bool__(self) -> bool:
        return bool(self.nodes or self.partitions or self.resized or self.other_gres)


class LeavingCosts(Struct, frozen=True, kw_only=True):
    """Machines, and launches without an answer, that cost money on nodes that leave.

    ``stopped``: machines that are kept stopped, whose disks are paid. ``unread``: why the ledger
    could not be read, so that there may be more.
    """

    machines: tuple[Machine, ...] = ()
    stopped: tuple[Machine, ...] = ()
    launches: tuple[Launch, ...] = ()
    unread: str | None = None

    def __bool__(self) -> bool:
        return bool(self.machines or self.stopped or self.launches or self.unread)

    def lines(self) -> Iterator[str]:
        """A sentence for each kind, with the names of the first few."""
        if self.unread:
            yield f"there may be machines of clouds: {self.unread}"
        if self.machines:
            yield f"machines of clouds: {_named(self.machines)}"
        if self.stopped:
            yield f"stopped machines of clouds: {_named(self.stopped)}"
        for launch in self.launches:
            yield f"a launch at {launch.cloud} for {compress(launch.nodes)} has no answer yet"

    def problems(self, known_nodes: Set[str], booting: Set[str] = frozenset()) -> Iterator[str]:
        """The sentences of ``lines``, with the remedy. ``known_nodes``: nodes that Slurm still has.
        ``booting``: nodes that power up.
        """
        yield from self.lines()
        nodes = {m.instance.node for m in self.machines} & known_nodes
        # 22.05 ignores power_down of a node that powers up, until ResumeTimeout.
        orders = {"power_down": nodes - booting, "power_down_force": nodes & booting}
        ask = "".join(
            f"`scontrol update nodename={compress(names)} state={state}`, then "
            for state, names in orders.items()
            if names
        )
        # Slurm's power_down does nothing for a node whose machine is stopped.
        ask += "".join(
            f"`slurm-elastic drain {cloud}`, then "
            for cloud in sorted({m.instance.cloud for m in self.stopped})
        )
        if self:
            yield (
                f"nothing would end machines once their nodes have left: {ask}leave slurm-elasticd"
                " running, with their cloud in its configuration, until `slurm-elastic status`"
                " shows none; or use --force and end them in the cloud yourself"
            )


def find_costs(config: Config, departing: NodesAndPartitions, clouds: Set[str]) -> LeavingCosts:
    """Machines and launches on nodes of ``departing``, or in a cloud that is not in ``clouds``."""
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            if not is_there(path):
                return LeavingCosts()
            with contextlib.closing(Ledger(path, read_only=True)) as ledger:
                state = ledger.state()
    except (sqlite3.Error, SlurmElasticError) as error:
        # An unreadable ledger is no empty ledger: machines may be paid.
        return LeavingCosts(unread=f"{path}: {error}")

    def leaving(machines: Sequence[Machine]) -> tuple[Machine, ...]:
        return tuple(
            m
            for m in machines
            if m.instance.node in departing.nodes or m.instance.cloud not in clouds
        )

    return LeavingCosts(
        machines=leaving(state.machines),
        stopped=leaving(state.stopped),
        launches=tuple(
            launch
            for launch in state.launches
            if departing.nodes & set(launch.nodes) or launch.cloud not in clouds
        ),
    )


def forget_holds(config: Config) -> None:
    """Forget the holds of former nodes. If they come back, they come back released."""
    path = config.state / "ledger.db"
    try:
        with config.sharing():
            _readmit_all(path)
    except (sqlite3.Error, SlurmElasticError) as error:
        log.warning("holds stay in the ledger path=%s error=%s", path, error)


def _readmit_all(path: Path) -> None:
    if not is_there(path):
        return
    with contextlib.closing(Ledger(path)) as ledger:
        for kind in (POLICY, CAPACITY):
            nodes = [row.scope for row in ledger.exclusions.holds() if row.kind == kind]
            ledger.exclusions.readmit(kind, *nodes)


def running(settings: SlurmSettings) -> NodesAndPartitions:
    """The cloud nodes of the running slurmctld with their partitions; none if it does not answer.

    slurmctld may still have nodes that an earlier install without a restart has taken out of the
    fragment, and start jobs on them.
    """
    if not controller.is_up(settings):
        return NodesAndPartitions()
    try:
        nodes = SlurmCli(settings).nodes().values()
    except SlurmError:  # a controller that stands by answers pings and nothing else
        return NodesAndPartitions()
    # Dynamic nodes are in no file, and stay.
    cloud_nodes = [node for node in nodes if "CLOUD" in node.states and not node.states & _DYNAMIC]
    return NodesAndPartitions(
        nodes=frozenset(node.name for node in cloud_nodes),
        partitions=frozenset(name for node in cloud_nodes for name in node.partitions),
    )


def installed(directory: Path) -> NodesAndPartitions:
    """The nodes of the installed fragment, which may be older than the configuration."""
    path = directory / fragment.FILE_NAME
    return defined_in(read_lines(path) if path.exists() else ())


def resized(directory: Path, pools: Sequence[Pool]) -> frozenset[str]:
    """The nodes of the installed fragment that get another number of CPUs in ``pools``."""
    installed_cpus = _installed_values(directory, "cpus")
    return frozenset(
        node
        for pool in pools
        for node in pool.nodes
        if installed_cpus.get(node, str(pool.cpus)) != str(pool.cpus)
    )


def with_other_gres(directory: Path, pools: Sequence[Pool]) -> frozenset[str]:
    """The nodes of the installed fragment that get other gres in ``pools``."""
    installed_gres = _installed_values(directory, "gres")
    return frozenset(
        node
        for pool in pools
        for node in pool.nodes
        if node in installed_gres
        and set(installed_gres[node].split(",")) != set(fragment.gres_value(pool).split(","))
    )


class ChangedNodes(Struct, frozen=True, kw_only=True):
    """Nodes that stay, and for which the running slurmctld has another value than the plan."""

    key: str
    nodes: frozenset[str]
    before: str
    after: str

    def __str__(self) -> str:
        shown = compress(self.nodes)
        return f"changes {self.key} of {shown}: {self.before or 'none'} -> {self.after or 'none'}"


CPUS, GRES = "CPUs", "Gres"
_SHOWN_AS = {CPUS: "CPUTot", "RealMemory": "RealMemory", GRES: "Gres",
             "Feature": "AvailableFeatures"}  # fmt: skip
"""By option what scontrol calls its value. Weight is not compared: policies set it meanwhile."""


def changed_in_running(settings: SlurmSettings, pools: Sequence[Pool]) -> Sequence[ChangedNodes]:
    """What the running slurmctld has other than the plan, on nodes that stay; nothing if it does
    not answer. An earlier install without a restart may have replaced the fragment already.
    """
    if not controller.is_up(settings):
        return ()
    try:
        values = controller.node_values(settings)
    except SlurmError:  # a controller that stands by answers pings and nothing else
        return ()
    nodes: dict[tuple[str, str, str], set[str]] = {}
    for pool in pools:
        planned = _planned_values(pool)
        for node in values.keys() & set(pool.nodes):
            for key, after in planned.items():
                before = _as_configured(values[node].get(_SHOWN_AS[key], ""))
                if set(before.split(",")) != set(after.split(",")):
                    nodes.setdefault((key, before, after), set()).add(node)
    return [
        ChangedNodes(key=key, nodes=frozenset(names), before=before, after=after)
        for (key, before, after), names in nodes.items()
    ]


def _planned_values(pool: Pool) -> dict[str, str]:
    return {
        CPUS: str(pool.cpus), "RealMemory": str(pool.real_memory), GRES: fragment.gres_value(pool),
        "Feature": ",".join(features(pool)),
    }  # fmt: skip


def _as_configured(text: str) -> str:
    """A value of scontrol as slurm.conf has it: gres without their sockets and with whole counts
    (scontrol shows 1024 as 1K), "(null)" as "".
    """
    plain = re.sub(r"\([^)]*\)", "", text)
    return re.sub(r":(\d+)([KMGTP])(?=,|$)", _whole_count, plain)


def _whole_count(match: re.Match[str]) -> str:
    return f":{int(match[1]) * 1024 ** (1 + 'KMGTP'.index(match[2]))}"


def _installed_values(directory: Path, key: str) -> dict[str, str]:
    """The value of an option by node in the installed fragment, "" if its line lacks the option."""
    path = directory / fragment.FILE_NAME
    lines = read_lines(path) if path.exists() else ()
    values: dict[str, str] = {}
    for line in lines:
        if line.entries[0].key != "nodename":
            continue
        value = next((entry.value for entry in line.entries if entry.key == key), "")
        # NodeName=DEFAULT of the site may have made us write Gres="".
        values |= dict.fromkeys(names(line.entries[0]), value.strip('"'))
    return values


def defined_in(lines: Sequence[ConfLine]) -> NodesAndPartitions:
    """The nodes and partitions that these lines define."""
    nodes = [n for li in lines if li.entries[0].key == "nodename" for n in names(li.entries[0])]
    partitions = [li.entries[0].value for li in lines if li.entries[0].key == "partitionname"]
    return NodesAndPartitions(nodes=frozenset(nodes), partitions=frozenset(partitions))


@contextlib.contextmanager
def lists_restored_on_failure(settings: SlurmSettings) -> Iterator[JobLists]:
    """Yield a record for ``prepare_jobs``. If the block fails, restore the lists in the record."""
    changed_lists: JobLists = {}
    try:
        yield changed_lists
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(SlurmError):
            _restore_lists(SlurmCli(settings), changed_lists)
        raise


def _restore_lists(slurm: SlurmCli, changed_lists: JobLists) -> None:
    if changed_lists:
        slurm.jobs()  # from this list the client knows the names of arrays' tasks
    for partitions, jobs in changed_lists.items():
        with contextlib.suppress(SlurmError):
            slurm.change_pending(jobs, partitions=partitions)


def prepare_jobs(
    settings: SlurmSettings,
    departing: NodesAndPartitions,
    changed_lists: JobLists,
    *,
    up: bool,
    costs: LeavingCosts,
    force: bool = False,
) -> None:
    """Take ``departing`` partitions out of pending jobs' lists. ``up``: slurmctld answers.
    ``changed_lists`` gets the jobs and their lists before the change.

    Raises ConfigError, with no job changed, if there are ``hindrances``.
    """
    if problems := hindrances(settings, departing, up=up, costs=costs, force=force):
        raise ConfigError(*problems)
    # With --force and without a slurmctld there is no list to change.
    if not (departing or costs) or not up:
        return
    slurm = SlurmCli(settings)
    jobs_by_list: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for job in _waiting(slurm.jobs(), departing):
        jobs_by_list[job.partitions].append(job.id)
    # Otherwise slurmctld ends these jobs at its start, despite their other partitions (see above).
    # A job that has started or ended since the list needs no change and must not stop the others.
    for partitions, jobs in jobs_by_list.items():
        other_partitions = [name for name in partitions if name not in departing.partitions]
        if other_partitions:
            changed_lists.setdefault(partitions, []).extend(jobs)
            slurm.change_pending(jobs, partitions=other_partitions)
            log.info("jobs moved jobs=%s partitions=%s", jobs, ",".join(other_partitions))


_UNKNOWN_JOBS = (
    "slurmctld does not answer, so there may be jobs on cloud nodes that leave or change; start it,"
    " or use --force"
)

_RUNNING = (
    "on cloud nodes or in cloud partitions that leave ({nodes}); wait for the end, or use --force"
)
_RESIZED = (
    "on cloud nodes ({nodes}) whose number of CPUs changes, and slurmctld would end each such job;"
    " wait for the end, or use --force"
)
_USING_GRES = (
    "using gres of cloud nodes ({nodes}) whose gres change, and slurmctld would end each such job;"
    " wait for the end, or use --force"
)
_STUCK = "waiting in cloud partitions only and would fail; cancel or move, or use --force"
_REQUIRING = (
    "waiting for cloud nodes that leave (--nodelist) and would fail; cancel, or let any node serve:"
    " scontrol update jobid=JOBID reqnodelist=; or use --force"
)


def hindrances(
    settings: SlurmSettings,
    departing: NodesAndPartitions,
    *,
    up: bool,
    costs: LeavingCosts,
    force: bool,
) -> tuple[str, ...]:
    """A sentence for each kind of job that needs ``departing`` nodes or partitions, and about
    ``costs``. With ``force`` neither is a hindrance.
    """
    if force or not (departing or costs):
        return ()
    if not up:
        return (_UNKNOWN_JOBS,)
    slurm = SlurmCli(settings)
    jobs = slurm.jobs()
    on_nodes = [job for job in jobs if job.states & ON_NODES]
    running = [
        job
        for job in on_nodes
        if departing.nodes & set(job.nodes) or departing.partitions & set(job.partitions)
    ]
    resized = [job for job in on_nodes if departing.resized & set(job.nodes)]
    using_gres = [
        job for job in on_nodes if _uses_gres(job) and departing.other_gres & set(job.nodes)
    ]
    stuck = [j for j in _waiting(jobs, departing) if departing.partitions >= set(j.partitions)]
    requiring = [job for job in jobs if _requires(job, departing)]
    complaints = (
        f"{_jobs(found)} {sentence.format(nodes=_nodes(found))}"
        for found, sentence in (
            (running, _RUNNING), (resized, _RESIZED), (using_gres, _USING_GRES), (stuck, _STUCK),
            (requiring, _REQUIRING),
        )
        if found
    )  # fmt: skip
    booting = _booting(slurm, departing.nodes) if costs.machines else frozenset[str]()
    return (*complaints, *costs.problems(departing.nodes, booting))


def _uses_gres(job: SlurmJob) -> bool:
    return bool(job.gres or job.job_gres or "gres/" in job.allocated)


def _requires(job: SlurmJob, departing: NodesAndPartitions) -> bool:
    """Whether the job waits for a node that leaves (``sbatch --nodelist``)."""
    return "PENDING" in job.states and not departing.nodes.isdisjoint(job.required)


def _booting(slurm: SlurmCli, names: Set[str]) -> frozenset[str]:
    """The nodes that power up; none if slurmctld does not say."""
    try:
        nodes = slurm.nodes(sorted(names)).values()
    except SlurmError:
        return frozenset()
    return frozenset(node.name for node in nodes if phase(node) is Phase.POWERING_UP)


def _waiting(jobs: Sequence[SlurmJob], departing: NodesAndPartitions) -> list[SlurmJob]:
    return [
        job
        for job in jobs
        if "PENDING" in job.states and departing.partitions & set(job.partitions)
    ]


def _nodes(jobs: Sequence[SlurmJob]) -> str:
    return compress(node for job in jobs for node in job.nodes)


def _jobs(jobs: Sequence[SlurmJob]) -> str:
    ids = _first([str(job.id) for job in jobs])
    return f"job {ids} is" if len(jobs) == 1 else f"jobs {ids} are"


def _named(machines: Sequence[Machine]) -> str:
    return _first([f"{m.instance.id} of {m.instance.node or 'no node'}" for m in machines])


def _first(names: Sequence[str]) -> str:
    unnamed = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + unnamed
