"""A Slurm in memory whose nodes take as long as slurmctld's.

Measured on 22.05.8: ``power_down_force`` makes a node IDLE+POWER_DOWN+NOT_RESPONDING at once,
POWERING_DOWN about 1 s later and POWERED_DOWN after SuspendTimeout. Its jobs become PENDING with a
start time 121 s ahead. After ResumeTimeout a node that is powering up becomes DOWN+POWERED_DOWN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_down, phase
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.fake_states import (
    BASE_STATES,
    POWER_STATES,
    address_field,
    requeued_for,
    with_reason,
)

BUSY = frozenset({"ALLOCATED", "MIXED"})
REQUEUE_HOLD_S = 121.0
POWER_DOWN_LAG_S = 1.0


class PartitionTimes(Struct, frozen=True):
    """What slurm.conf says of a partition (s)."""

    suspend_time: float = 300.0
    suspend_timeout: float = 30.0
    resume_timeout: float = 600.0


Program = Callable[[str, Sequence[str], Mapping[int, Sequence[str]]], None]
"""A call of a program of slurmctld: kind (``resume``, ``suspend``, ``resume-fail``), nodes, and the
nodes of each job.
"""


class TimedSlurm(FakeSlurm):
    """Nodes start powered down. ``step`` brings everything up to the clock. Times in seconds."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_since", "_times", "_wishes")}

    def __init__(
        self,
        names: Sequence[str],
        clock: Callable[[], float],
        program: Program,
        *,
        suspend_time: float = 300.0,
        suspend_timeout: float = 30.0,
        resume_timeout: float = 600.0,
    ) -> None:
        off = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
        super().__init__([SlurmNode(name=name, states=off) for name in names])
        self.clock = clock
        self._program = program
        times = PartitionTimes(suspend_time, suspend_timeout, resume_timeout)
        self._times: defaultdict[str, PartitionTimes] = defaultdict(lambda: times)
        self._since = dict.fromkeys(names, clock())
        self._wishes: dict[int, tuple[Sequence[str], int]] = {}

    def set_times(self, names: Sequence[str], times: PartitionTimes) -> None:
        """Give the nodes the times of their partition."""
        with self._lock:
            self._times.update(dict.fromkeys(names, times))

    # Events of the cluster.

    def node(self, name: str) -> SlurmNode:
        """The node, even while commands get no answer."""
        with self._lock:
            return self._nodes[name]

    def queue(self) -> Mapping[int, SlurmJob]:
        """The jobs, even while commands get no answer."""
        with self._lock:
            return dict(self._jobs)

    def asked(self, name: str) -> float:
        """When the node's phase began. For a node that powers up: when the power-up was asked
        for.
        """
        with self._lock:
            return self._since[name]

    def submit(self, job: int, among: Sequence[str], count: int = 1, **fields: Any) -> None:  # noqa: ANN401
        """Queue a job that needs ``count`` of these nodes, each whole."""
        with self._lock:
            self.set_job(job, "PENDING", submit=self.clock(), **fields)
            self._wishes[job] = (among, count)
            self.step()

    def wish(self, job: int) -> Sequence[str]:
        """The nodes that a job may use."""
        with self._lock:
            return self._wishes[job][0]

    def finish(self, job: int) -> None:
        """End or cancel the job."""
        with self._lock:
            old = self._jobs.pop(job)
            for name in old.nodes:
                self._free(name)

    def register(self, name: str, address: str) -> bool:
        """Let a freshly booted slurmd register. Return whether slurmctld waited for it."""
        with self._lock:
            node = self._nodes[name]
            if phase(node) is not Phase.POWERING_UP:
                return False
            self._become(name, states=node.states - POWER_STATES, address=address)
            self._configure()
            return True

    def miss(self, name: str) -> None:
        """Let the slurmd miss a ping, which slurmctld sends every SlurmdTimeout / 3."""
        with self._lock:
            node = self._nodes[name]
            self._nodes[name] = replace(node, states=node.states | {"NOT_RESPONDING"})

    def hear(self, name: str) -> None:
        """Let the slurmd of a running node answer."""
        with self._lock:
            node = self._nodes[name]
            if phase(node) is Phase.UP and not is_down(node):
                self._nodes[name] = replace(node, states=node.states - {"NOT_RESPONDING"})

    def lose(self, name: str) -> None:
        """Let the slurmd miss pings for SlurmdTimeout, so that slurmctld gives the node up."""
        with self._lock:
            self._fail(name, "Not responding", {"NOT_RESPONDING"})

    def step(self) -> None:
        """Do everything that is due at this time: power phases first, then the scheduler."""
        with self._lock:
            for name in list(self._nodes):
                self._step_node(name)
            self._schedule()

    # protocols.Slurm

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """Change what slurmctld changes at once. The rest comes with ``step``."""
        with self._lock:
            fields = address_field(address)
            self._command("update_nodes", names=tuple(names), state=state, reason=reason, **fields)
            refused = [n for n in names if _is_refused(self._existing(n), state)]
            for name in names:
                self._nodes[name] = replace(self._existing(name), **fields)
                is_ignored = state == "IDLE" and name in refused
                self._update(name, "" if is_ignored else (state or "").lower())
                if reason is not None:
                    self._nodes[name] = with_reason(self._nodes[name], reason, self.clock())
            # After the other nodes, which are resumed even so (22.05.8).
            if refused:
                text = "slurm_update error: Invalid node state specified"
                raise SlurmError(("scontrol", "update", f"nodename={refused[0]}"), 1, text)

    def requeue(self, job: int) -> None:
        """Make the job pending, with a start time ahead."""
        with self._lock:
            self._command("requeue", job=job)
            self._requeue(self._requeueable_job(job))

    # Internal.

    def _update(self, name: str, state: str) -> None:
        node = self._nodes[name]
        match state:
            case "drain":
                self._nodes[name] = replace(node, states=node.states | {"DRAIN"})
            case "resume" | "undrain" | "idle":
                self._resume(node, state)
            # DOWN has no effect on a powering-up node (22.05.8).
            case "down" if phase(node) is not Phase.POWERING_UP:
                self._fail(name, "", node.states & {"NOT_RESPONDING"}, last_busy=self.clock())
            case "power_up" if "POWERED_DOWN" in node.states:
                self._power_up(node)
            case "power_down_force":
                self._requeue_jobs_of(name)
                self._power_down(name, {"NOT_RESPONDING"})
            # A powered-down node powers down again (22.05.8, 25.11).
            case "power_down" | "power_down_asap":
                self._power_down(name, set())

    def _resume(self, node: SlurmNode, state: str) -> None:
        states = node.states - {"DRAIN", "DOWN"}
        if state != "idle" and "POWERED_DOWN" in states:
            states |= {"NOT_RESPONDING"}
        if is_down(node):
            states |= {"IDLE"}
        resumed = replace(node, states=states)
        # From 24.11 on IDLE leaves the reason (measured).
        keeps_reason = state == "idle" and self._version >= (24, 11)
        self._nodes[node.name] = resumed if keeps_reason else with_reason(resumed, "", 0.0)
        if state == "idle" and phase(node) is Phase.UP:
            # slurmctld counts SuspendTime from now on (22.05.8).
            self._become(node.name, states=states, last_busy=self.clock())

    def _power_up(self, node: SlurmNode) -> None:
        """Power the node up. This clears the reason, but not a DRAIN (measured on 22.05.8)."""
        states = node.states - POWER_STATES | {"POWERING_UP", "NOT_RESPONDING"}
        self._become(node.name, states=states, reason="")
        self._program("resume", [node.name], {})

    def _power_down(self, name: str, flags: set[str]) -> None:
        node = self._nodes[name]
        if is_busy(node):
            self._nodes[name] = replace(node, states=node.states | {"POWER_DOWN"})
        elif "POWERING_DOWN" not in node.states:
            # A node that is down stays so (22.05.8).
            base = node.states & {"DOWN"} or {"IDLE"}
            kept = node.states & ({"DRAIN", "NOT_RESPONDING"} if is_down(node) else {"DRAIN"})
            states = {*base, "CLOUD", "POWER_DOWN", *flags, *kept}
            self._become(name, states=states, **({"last_busy": self.clock()} if flags else {}))

    def _step_node(self, name: str) -> None:
        node, age = self._nodes[name], self.clock() - self._since[name]
        times = self._times[name]
        match phase(node):
            case Phase.POWERING_DOWN if "POWER_DOWN" in node.states and age >= POWER_DOWN_LAG_S:
                self._suspend(name)
            case Phase.POWERING_DOWN if age >= times.suspend_timeout:
                states = (node.states - {"POWERING_DOWN", "NOT_RESPONDING"}) | {"POWERED_DOWN"}
                self._become(name, states=states, address=name)  # as slurmctld resets it
            case Phase.POWERING_UP if age >= times.resume_timeout:
                self._fail(name, "ResumeTimeout reached", {"POWERED_DOWN"})
                self._program("resume-fail", [name], {})
            case Phase.UP if "IDLE" in node.states and age >= times.suspend_time:
                self._suspend(name)

    def _suspend(self, name: str) -> None:
        # This clears a DRAIN that came after the order to power down (22.05.8).
        base = self._nodes[name].states & {"DOWN"} or {"IDLE"}
        self._become(name, states={*base, "CLOUD", "POWERING_DOWN"})
        self._program("suspend", [name], {})

    def _fail(self, name: str, reason: str, flags: Set[str], **fields: float) -> None:
        node = self._nodes[name]
        self._requeue_jobs_of(name)
        states = ((node.states - BASE_STATES - POWER_STATES) | (node.states & {"POWERED_DOWN"})) | {
            "DOWN"
        }
        self._become(name, states=states | flags, reason=node.reason or reason, **fields)

    def _requeue_jobs_of(self, name: str) -> None:
        for job in list(self._jobs.values()):
            if name in job.nodes:
                self._requeue(job)

    def _requeue(self, job: SlurmJob) -> None:
        if not job.requeue:  # NODE_FAIL
            self.finish(job.id)
            return
        self._jobs[job.id] = replace(
            job,
            states=frozenset({"PENDING"}),
            nodes=(),
            restarts=job.restarts + 1,
            suspended=0.0,
            limit_ends_at=0.0,
            allocated="",
            reason=requeued_for(job),
            start=self.clock() + REQUEUE_HOLD_S,
            eligible=self.clock() + REQUEUE_HOLD_S,
        )
        for name in job.nodes:
            self._free(name)

    def _free(self, name: str) -> None:
        node = self._nodes[name]
        if node.states & BUSY:
            states = (node.states - BUSY) | {"IDLE"}
            if phase(node) is Phase.UP:
                self._become(name, states=states, last_busy=self.clock())
            else:
                self._nodes[name] = replace(node, states=frozenset(states))

    def _become(self, name: str, *, states: set[str] | frozenset[str], **fields: Any) -> None:  # noqa: ANN401
        self._nodes[name] = replace(self._nodes[name], states=frozenset(states), **fields)
        self._since[name] = self.clock()

    def _schedule(self) -> None:
        now, reserved = self.clock(), set[str]()
        for job in sorted(self._jobs.values(), key=lambda j: j.id):
            if job.start > now and "PENDING" in job.states and job.reason == "None":
                self._jobs[job.id] = replace(job, reason="BeginTime")
            if job.id in self._wishes and job.start <= now and self._may_start(job):
                nodes = self._nodes_for(job, reserved, _usable)
                if nodes:
                    self._allocate(job, nodes)
                else:
                    # As the backfill scheduler does: later jobs may not take the nodes that this
                    # one waits for, or small jobs would keep it waiting for ever.
                    reserved.update(self._nodes_for(job, reserved, _comes_free))
        self._configure()

    def _change_pending(
        self, job: SlurmJob, partitions: Sequence[str], begin_in: float | None
    ) -> None:
        super()._change_pending(job, partitions, begin_in)
        changed = self._jobs[job.id]
        if changed.reason == "BeginTime":  # the scheduler says it, in its next round (22.05, 25.11)
            self._jobs[job.id] = replace(changed, reason="None")

    def _may_start(self, job: SlurmJob) -> bool:
        """Whether nothing but nodes is missing."""
        return "PENDING" in job.states and job.reason not in ("JobHeldUser", "JobHeldAdmin")

    def _nodes_for(
        self, job: SlurmJob, reserved: Set[str], fits: Callable[[SlurmNode], bool]
    ) -> Sequence[str]:
        """Nodes for the job that fit and are not reserved, usable nodes first, then powered-up
        nodes, then by weight. All are in the first of its partitions that has enough. Empty if no
        partition has.
        """
        allowed_names, count = self._wishes[job.id]
        nodes = [self._nodes[name] for name in allowed_names if name not in reserved]
        for partition in job.partitions or ("",):
            fitting = [n for n in nodes if fits(n) and _may_run(job, n, partition)]
            if len(fitting) >= count:
                return [n.name for n in sorted(fitting, key=self._preference)[:count]]
        return ()

    def _preference(self, node: SlurmNode) -> tuple[bool, bool, int]:
        return not _usable(node), self._is_off(node.name), node.weight

    def _is_off(self, name: str) -> bool:
        return "POWERED_DOWN" in self._nodes[name].states

    def _allocate(self, job: SlurmJob, names: Sequence[str]) -> None:
        powered_down = [n for n in names if self._is_off(n)]
        for name in names:
            states = self._nodes[name].states - {"IDLE"} | {"ALLOCATED"}
            if name in powered_down:
                states = states - POWER_STATES | {"POWERING_UP", "NOT_RESPONDING"}
                self._become(name, states=states)
            else:
                self._nodes[name] = replace(self._nodes[name], states=frozenset(states))
        configuring = frozenset({"CONFIGURING"})
        self._jobs[job.id] = replace(
            job, states=configuring, nodes=tuple(names), reason="None", start=self.clock()
        )
        if powered_down:
            self._program("resume", powered_down, {job.id: names})

    def _configure(self) -> None:
        """Start the jobs whose nodes are all up."""
        for job in list(self._jobs.values()):
            are_up = all(phase(self._nodes[n]) is Phase.UP for n in job.nodes)
            if "CONFIGURING" in job.states and are_up:
                started = {"start": self.clock(), "limit_ends_at": 0.0}
                self._jobs[job.id] = replace(job, states=frozenset({"RUNNING"}), **started)


def _is_refused(node: SlurmNode, state: str | None) -> bool:
    """Whether slurmctld refuses the state: RESUME without a need, IDLE for a node with a job."""
    if state == "IDLE":
        return is_busy(node) and phase(node) is Phase.UP
    return state == "RESUME" and not _can_resume(node)


def _can_resume(node: SlurmNode) -> bool:
    return bool(node.states & {"DRAIN", "DOWN", "FAIL", "POWERING_UP"})


def _may_run(job: SlurmJob, node: SlurmNode, partition: str) -> bool:
    """Whether the node is in the partition, and the job does not avoid it. A node that names no
    partition is in all.
    """
    return (not node.partitions or partition in node.partitions) and node.name not in job.excluded


def _comes_free(node: SlurmNode) -> bool:
    """Whether nothing but time keeps the node from its next job."""
    return not node.states & {"DRAIN", "DOWN", "FAIL"}


def _usable(node: SlurmNode) -> bool:
    """Whether a job may start on the node now."""
    if "IDLE" not in node.states or node.states & {"DRAIN", "POWER_DOWN"}:
        return False
    return phase(node) in (Phase.UP, Phase.POWERED_DOWN)
