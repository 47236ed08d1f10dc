"""A Slurm in memory: for tests, rehearsals and the simulator."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.slurm import JobMail, Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.slurm.client.commands.reservation_commands import FLAGS
from slurm_elastic.slurm.client.fake_reservations import with_other_nodes, with_reservation
from slurm_elastic.slurm.client.fake_states import address_field, node_after, requeued_for


class FakeSlurm:
    """``model.protocols.Slurm`` over values that the test sets. Thread-safe: one command at a time.

    ``calls`` counts commands by method name. ``updates`` has all changes in order. ``fail_next``:
    errors to raise, first to last. ``broken``: an error to raise until it is None again.
    ``latency``: how long (s) each command takes. ``on_signal`` is called for signals to jobs.
    ``clock`` gives Unix time. ``timeout`` is SlurmdTimeout (s).
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_nodes", "_jobs", "calls")}

    def __init__(
        self,
        nodes: Sequence[SlurmNode] = (),
        jobs: Sequence[SlurmJob] = (),
        *,
        version: tuple[int, int] = (22, 5),
    ) -> None:
        self._lock = threading.RLock()
        self._nodes = {node.name: node for node in nodes}
        self._jobs = {job.id: job for job in jobs}
        self._version = version
        self._limit_ends: dict[int, float | None] = {}
        self.calls: Counter[str] = Counter()
        self.updates: list[tuple[str, Mapping[str, Any]]] = []
        self.fail_next: deque[Exception] = deque()
        self.broken: Exception | None = None
        self.latency = 0.0
        self.reserved: list[Reservation] = []
        self.partition_default_times: dict[str, float | None] = {}
        self.partition_max_times: dict[str, float | None] = {}
        self.licenses: dict[str, int] = {}
        self.partitions: dict[str, str] = {}
        self.site_default = ""
        self.comments: dict[int, str] = {}
        self.mail: dict[int, JobMail] = {}
        self.scripts: dict[int, str] = {}
        self.dependent: dict[int, str] = {}
        self.never_suspended = SuspendExclusions()
        self.accounted: dict[int, str] = {}
        self.timeout = 300.0
        self.started = 0.0
        self.clock: Callable[[], float] = time.time
        self.on_signal: Callable[[int, str], None] = lambda _job, _name: None

    # Set by tests.

    def set_node(self, name: str, *states: str, **fields: Any) -> None:  # noqa: ANN401
        """Add a node or change its ``fields``. ``states`` replace all of its states."""
        with self._lock:
            old = self._nodes.get(name) or SlurmNode(name=name, states=frozenset({"IDLE"}))
            if states:
                fields["states"] = frozenset(states)
            self._nodes[name] = msgspec.structs.replace(old, **fields)

    def set_job(self, job: int, *states: str, **fields: Any) -> None:  # noqa: ANN401
        """Add a job or change its ``fields``. ``states`` replace all of its states."""
        with self._lock:
            old = self._jobs.get(job) or SlurmJob(id=job, states=frozenset({"PENDING"}))
            if states:
                fields["states"] = frozenset(states)
            self._jobs[job] = msgspec.structs.replace(old, **fields)

    def remove_job(self, job: int) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    # protocols.Slurm

    def version(self) -> tuple[int, int]:
        """The version given at the start."""
        self._command("version")
        return self._version

    def slurmd_timeout(self) -> float:
        """Return ``timeout``. This counts as no command, because real clients cache the value."""
        return self.timeout

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or those of ``names`` that exist."""
        with self._lock:
            self._command("nodes")
            names_wanted = self._nodes if names is None else set(names)
            return {name: node for name, node in self._nodes.items() if name in names_wanted}

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        """The jobs by id. Only ``remove_job`` makes Slurm forget a job."""
        with self._lock:
            self._command("jobs")
            jobs = (self._jobs[job] for job in sorted(self._jobs))
            return tuple(job for job in jobs if ended or not job.has_ended)

    def job(self, number: int) -> SlurmJob | None:
        """One job."""
        with self._lock:
            self._command("job", job=number)
            return self._jobs.get(number)

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """Apply ``state`` with its final effect on slurmctld (see ``_after``)."""
        with self._lock:
            self._command(
                "update_nodes",
                names=tuple(names),
                state=state,
                reason=reason,
                **address_field(address),
            )
            for name in names:
                node = msgspec.structs.replace(self._existing(name), **address_field(address))
                self._nodes[name] = node_after(node, state, reason, self.clock())

    def set_weights(self, weights: Mapping[str, int]) -> None:
        with self._lock:
            self._command("set_weights", weights=dict(weights))
            for name, weight in weights.items():
                self._nodes[name] = msgspec.structs.replace(self._existing(name), weight=weight)

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        with self._lock:
            self._command("set_addresses", addresses=dict(addresses))
            for name, address in addresses.items():
                self._nodes[name] = msgspec.structs.replace(self._existing(name), address=address)

    def requeue(self, job: int) -> None:
        """Make the job pending, with one more restart and a start time in the future. As slurmctld
        does, refuse a job that may not be requeued, and leave it alone.
        """
        with self._lock:
            self._command("requeue", job=job)
            old = self._requeueable_job(job)
            self._jobs[job] = msgspec.structs.replace(
                old,
                states=frozenset({"PENDING"}),
                nodes=(),
                restarts=old.restarts + 1,
                suspended=0.0,
                limit_ends_at=0.0,
                allocated="",
                reason=requeued_for(old),
                start=self.clock() + 121,
                eligible=self.clock() + 121,
            )

    def _requeueable_job(self, job: int) -> SlurmJob:
        """The job, or SlurmError if it may not be requeued, with the words of slurmctld."""
        record = self._existing_job(job)
        if not record.requeue:
            disabled = f"Requested operation is presently disabled for job {job}"
            raise SlurmError(("scontrol", "requeue", str(job)), 1, disabled)
        return record

    def start_now(self, job: int) -> None:
        """Clear a start time in the future."""
        with self._lock:
            self._command("start_now", job=job)
            self._jobs[job] = msgspec.structs.replace(
                self._existing_job(job),
                reason="None",
                description="",
                start=0.0,
                eligible=self.clock(),
            )

    def change_pending(
        self,
        jobs: Sequence[int],
        *,
        partitions: Sequence[str] = (),
        begin_in: float | None = None,
    ) -> None:
        """Change the pending jobs. The others stay as they are."""
        with self._lock:
            changes = {"partitions": tuple(partitions), "begin_in": begin_in}
            self._command("change_pending", jobs=tuple(jobs), **changes)
            for job in jobs:
                self._change_pending(self._existing_job(job), partitions, begin_in)

    def _change_pending(
        self, job: SlurmJob, partitions: Sequence[str], begin_in: float | None
    ) -> None:
        fields: dict[str, Any] = {"partitions": tuple(partitions)} if partitions else {}
        if begin_in is not None:
            later = begin_in > 0
            fields["start"] = self.clock() + begin_in if later else 0.0
            fields["eligible"] = self.clock() + max(begin_in, 0.0)
            fields["reason"], fields["description"] = "BeginTime" if later else "None", ""
        if "PENDING" in job.states:
            self._jobs[job.id] = msgspec.structs.replace(job, **fields)

    def owners(self, jobs: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """The owners in the jobs' own fields."""
        with self._lock:
            self._command("owners")
            jobs_found = [self._jobs[job] for job in jobs if job in self._jobs]
            values = {j.id: {"user": j.user, "account": j.account} for j in jobs_found}
            return {job: {k: v for k, v in names.items() if v} for job, names in values.items()}

    def set_requeue(self, job: int, *, requeue: bool) -> None:
        with self._lock:
            self._command("set_requeue", job=job, requeue=requeue)
            self._jobs[job] = msgspec.structs.replace(self._existing_job(job), requeue=requeue)

    def signal(self, job: int, name: str, *, full: bool) -> None:
        """Call ``on_signal``, as a program would catch the signal."""
        with self._lock:
            self._command("signal", job=job, signal=name, full=full)
            self._existing_job(job)
        self.on_signal(job, name)

    def batch_script(self, job: int) -> str:
        """The entry of ``scripts``, which tests set."""
        with self._lock:
            self._command("batch_script", job=job)
            self._existing_job(job)
            return self.scripts.get(job, "")

    def dependencies(self) -> Mapping[int, str]:
        """The entries of ``dependent``, which tests set, of the waiting jobs."""
        with self._lock:
            self._command("dependencies")
            waiting = {job.id for job in self._jobs.values() if "PENDING" in job.states}
            return {job: text for job, text in self.dependent.items() if job in waiting}

    def any_nodes(self, job: int) -> None:
        """Clear the required nodes."""
        with self._lock:
            self._command("any_nodes", job=job)
            self._jobs[job] = msgspec.structs.replace(self._existing_job(job), required=())

    def excluded_nodes(self, job: int) -> tuple[str, ...]:
        """The nodes in the job's own field."""
        with self._lock:
            self._command("excluded_nodes")
            return self._existing_job(job).excluded

    def exclude_nodes(self, job: int, nodes: Sequence[str]) -> None:
        with self._lock:
            self._command("exclude_nodes", job=job, nodes=tuple(nodes))
            old = self._existing_job(job)
            if "RUNNING" in old.states:
                raise SlurmError(("scontrol", "update"), 1, "Job is no longer pending execution")
            self._jobs[job] = msgspec.structs.replace(old, excluded=tuple(nodes))

    def hold(self, job: int) -> None:
        """Hold the job: the reason says so, and its priority is 0."""
        with self._lock:
            self._command("hold", job=job)
            held = {
                "reason": "JobHeldUser", "description": "", "priority": 0, "eligible": 0.0,
            }  # fmt: skip
            self._jobs[job] = msgspec.structs.replace(self._existing_job(job), **held)

    def release(self, job: int) -> None:
        """Clear the reason that holds the job, and give it a priority again."""
        with self._lock:
            self._command("release", job=job)
            old = self._existing_job(job)
            self._jobs[job] = msgspec.structs.replace(
                old, reason="None", description="", priority=old.priority or 1
            )

    def suspend(self, job: int) -> None:
        """Suspend the job. Its priority is 0 until ``resume``."""
        with self._lock:
            self._command("suspend", job=job)
            old = self._existing_job(job)
            if old.is_suspended:
                return
            if old.states.isdisjoint({"RUNNING", "CONFIGURING"}):
                raise SlurmError(("scontrol", "suspend", str(job)), 1, "Job is not running")
            self._limit_ends[job] = old.ends_at_latest
            self._jobs[job] = msgspec.structs.replace(
                old,
                states=frozenset({"SUSPENDED"}),
                priority=0,
                suspended=self.clock(),
                limit_ends_at=0.0,
            )

    def resume(self, job: int) -> None:
        """Resume the job with its normal priority."""
        with self._lock:
            self._command("resume", job=job)
            old = self._existing_job(job)
            if not old.is_suspended:
                raise SlurmError(("scontrol", "resume", str(job)), 1, "Job is not suspended")
            self._jobs[job] = msgspec.structs.replace(
                old,
                states=frozenset({"RUNNING"}),
                priority=1,
                suspended=0.0,
                limit_ends_at=self._limit_after_suspension(old),
            )

    def _limit_after_suspension(self, job: SlurmJob) -> float:
        """When the time limit ends the job: the time that it was suspended does not count."""
        ends_at = self._limit_ends.pop(job.id, None)
        if ends_at is None:
            return 0.0
        return ends_at + (self.clock() - job.suspended if job.suspended else 0.0)

    def reservations(self) -> Sequence[Reservation]:
        """The reservations that a test has put into ``reserved``."""
        with self._lock:
            self._command("reservations")
            return tuple(self.reserved)

    def reserve(self, name: str, nodes: Sequence[str], start: float, end: float) -> None:
        """Add the reservation to ``reserved``."""
        with self._lock:
            self._command("reserve", reservation=name)
            request = Reservation(name=name, start=start, end=end, nodes=tuple(nodes), flags=FLAGS)
            self.reserved = with_reservation(self.reserved, request)

    def reserve_other_nodes(self, name: str, nodes: Sequence[str]) -> None:
        """Change the nodes of the reservation."""
        with self._lock:
            self._command("reserve_other_nodes", reservation=name)
            self.reserved = with_other_nodes(self.reserved, name, nodes)

    def unreserve(self, name: str) -> None:
        """Remove the reservation from ``reserved``."""
        with self._lock:
            self._command("unreserve", reservation=name)
            self.reserved = [r for r in self.reserved if r.name != name]

    def excluded_by_job(self) -> Mapping[int, tuple[str, ...]]:
        """Return nothing, because ``jobs`` has the excluded nodes."""
        return {}

    def default_times(self) -> Mapping[str, float | None]:
        """The times that a test has put into ``partition_default_times``."""
        with self._lock:
            self._command("default_times")
            return dict(self.partition_default_times)

    def max_times(self) -> Mapping[str, float | None]:
        """The times that a test has put into ``partition_max_times``."""
        with self._lock:
            self._command("max_times")
            return dict(self.partition_max_times)

    def free_licenses(self) -> Mapping[str, int]:
        """The licenses that a test has put into ``licenses``."""
        with self._lock:
            self._command("free_licenses")
            return dict(self.licenses)

    def partition_states(self) -> Mapping[str, str]:
        """The states that a test has put into ``partitions``."""
        with self._lock:
            self._command("partition_states")
            return dict(self.partitions)

    def default_partition(self) -> str:
        """The partition that a test has put into ``site_default``."""
        with self._lock:
            self._command("default_partition")
            return self.site_default

    def slurmctld_started(self) -> float:
        """The time that a test has put into ``started``."""
        with self._lock:
            self._command("slurmctld_started")
            return self.started

    def suspend_exclusions(self) -> SuspendExclusions:
        """The exclusions that a test has put into ``never_suspended``."""
        with self._lock:
            self._command("suspend_exclusions")
            return self.never_suspended

    def tell(self, job: int, text: str) -> None:
        """Record the text in ``updates``."""
        with self._lock:
            self._command("tell", job=job, text=text)
            self._existing_job(job)

    def finished(self, days: int) -> Sequence[tuple[str, str, int, int, int]]:
        """Raise SlurmError, because there is no slurmdbd."""
        del days
        raise SlurmError(("sacct",), 1, "Slurm accounting storage is disabled")

    def accounted_comment(self, job: int) -> str:
        """The comment that was set last."""
        with self._lock:
            self._command("accounted_comment", job=job)
            return self.accounted.get(job, "")

    def set_accounted_comment(self, cluster: str, job: int, text: str) -> None:
        """Set the comment in ``accounted``."""
        with self._lock:
            self._command("set_accounted_comment", cluster=cluster, job=job, text=text)
            self.accounted[job] = text

    def admin_comments(self, jobs: Collection[int] | None = None) -> Mapping[int, str]:
        """The texts of ``set_admin_comment``, and those that a test has put in."""
        with self._lock:
            self._command("admin_comments")
            ids = [j.id for j in self._jobs.values() if jobs is None or {j.id, j.array} & {*jobs}]
            return {job: self.comments.get(job, "") for job in ids}

    def set_admin_comment(self, job: int, text: str) -> None:
        """Record the comment in ``updates``."""
        with self._lock:
            self._command("set_admin_comment", job=job, text=text)
            self.comments[job] = text
            self._existing_job(job)

    def mail_of(self, job: int) -> JobMail | None:
        """The entry of ``mail``, which tests set."""
        return self.mail.get(job)

    def _command(self, name: str, **changes: Any) -> None:  # noqa: ANN401
        with self._lock:
            self.calls[name] += 1
            if self.latency:
                time.sleep(self.latency)
            if self.fail_next:
                raise self.fail_next.popleft()
            if self.broken is not None:
                raise self.broken
            if changes:
                self.updates.append((name, changes))

    def _existing(self, name: str) -> SlurmNode:
        if name not in self._nodes:
            command = ("scontrol", "update", f"nodename={name}")
            raise SlurmError(command, 1, "slurm_update error: Invalid node name specified")
        return self._nodes[name]

    def _existing_job(self, job: int) -> SlurmJob:
        if job not in self._jobs:
            raise SlurmError(("scontrol", str(job)), 1, "Invalid job id specified")
        return self._jobs[job]
