"""Copies the files of jobs to machines without a shared file system, and back (``data: copy``).

A job's directory goes to its nodes while the job's PrologSlurmctld waits, and comes back while its
EpilogSlurmctld waits: after every run, also if the run was requeued. While the job runs, its output
comes back again and again, because a machine may be lost. The ledger has a row for each node of
each run, so that a restarted daemon continues.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.processes.background import in_background
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.controller.changed_jobs import hold_until_released
from slurm_elastic.controller.context import Site
from slurm_elastic.features.files.copy_ages import CopyAges
from slurm_elastic.features.files.copy_orders import CopyResult, CopyRun, order_of
from slurm_elastic.features.files.shared_outputs import SharedOutputs
from slurm_elastic.features.files.unfit_images import (
    READ_ERRORS,
    reason_against_image,
    saved_outputs,
)
from slurm_elastic.machine.jobfiles.copier import GROUPS_DOUBT_S, CopierRefusalError
from slurm_elastic.machine.jobfiles.identity import END_WAIT_S
from slurm_elastic.model import admin_comment
from slurm_elastic.model.admin_comment import NoteKind
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.copies import (
    FilesLost,
    FilesNotSent,
    FilesRetried,
    FilesReturned,
    FilesSent,
)
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.model.slurm import ON_NODES, SlurmJob
from slurm_elastic.slurm.client.commands import requeue_setting
from slurm_elastic.slurm.client.job_files import JobFiles
from slurm_elastic.state.audit_trail import job_subject
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

CORRELATION = "copy"
RETRY_S = 3.0
"""Seconds between two tries of a copy."""
OUTPUTS_TIMEOUT_S = 120.0
"""Time-out of one copy of a running job's output."""
MIN_TRY_S = 30.0
"""A copy back that waited for a thread until its time was over is still tried for this long."""
HOLD_WITHIN_S = 300.0
"""How long a refused job is looked for until it can be held: Slurm requeues it first."""
FORGET_WITHIN_S = 300.0
"""How long ckptman may take to forget an image that does not fit the files of its job."""
CROWDED_LOOK_S = 60.0
"""How often Slurm is asked for a job that only waits for a place of its user."""
OUT_AT_ONCE, BACK_AT_ONCE = 16, 48
"""Jobs whose files are copied at a time. A try to copy back may wait for a lost machine."""
_NODES_AT_ONCE = 8
_TURN_WAIT_S = 20.0
"""How long a copy back waits in its thread for other copies of the same output."""
GO = ""
_RunKey = tuple[int, int, str]
"""A run by job, restarts and node."""
_T = TypeVar("_T")
_R = TypeVar("_R")


def is_on_nodes(job: JobFiles) -> bool:
    """Whether the run of the job is on its nodes, or is about to start there."""
    # Slurm shows nodes of completing and ended jobs, too, for as long as it has them. Slurm 22.05
    # may show a pending job as STOPPED, without nodes.
    return bool(job.nodes and job.states & ON_NODES) and "COMPLETING" not in job.states


def _is_waiting(job: SlurmJob) -> bool:
    # A requeued job is PENDING and COMPLETING until its last run has left the nodes.
    return "PENDING" in job.states and "COMPLETING" not in job.states


class CopyRequest(Struct, frozen=True, kw_only=True):
    """A job whose prolog (``back`` False) or epilog waits. ``nodes``: its nodes. ``until``: when
    (``time.monotonic``) its prolog must have its answer.
    """

    job: int
    nodes: tuple[str, ...]
    back: bool
    until: float = math.inf


def _key(row: JobCopy) -> _RunKey:
    return row.job, row.restarts, row.node


class _Turn:
    """The lock of a job, and how many threads have or want it."""

    guarded_by: ClassVar[GuardedBy] = {"lock": "to copy the files of one job"}

    def __init__(self) -> None:
        self.lock, self.users = threading.Lock(), 0


class Copies:
    """Serves each request, in a thread of its caller, one try at a time. ``read``: asks Slurm for a
    job's files.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_busy", "_crowded", "_tries", "_unfit_since")
    }

    def __init__(
        self, site: Site, run: CopyRun, read: Callable[[int], JobFiles | None],
        *, pause: float = RETRY_S,
    ) -> None:  # fmt: skip
        self._site, self._run, self._read, self.pause = site, run, read, pause
        self._settings = site.config.copy
        self._retries = ReportOnce[int]()
        self._shared = SharedOutputs(site)
        # A run whose end has an impossible age gets its full time from our first look on.
        self._ages = CopyAges(site, 2 * self._settings.back_within)
        self._lock = threading.Lock()
        self._busy: dict[int, _Turn] = {}
        self._tries = Counter[tuple[int, bool]]()
        self._busy_since: dict[_RunKey, float] = {}
        """When (monotonic s) a copy of a run's files first found another one in its directory."""
        self._unfit_since: dict[int, float] = {}
        self._crowded: dict[int, tuple[int, float]] = {}
        """The jobs whose user had no place free, with the user's uid and when (monotonic s) we last
        asked Slurm for the job. An array of hundreds of tasks may wait so for an hour.
        """
        self._late_outputs: dict[_RunKey, frozenset[str]] = {}
        """By run and node, the outputs that a job on another machine writes, too. A copy before the
        last copy brings them in vain. After a restart the next copy finds them again.
        """
        self._restored_outputs: dict[_RunKey, frozenset[str]] = {}
        """By run and node, the outputs of a restored run, which begin where the outputs of the
        saved run begin. If the run then writes another text than the saved run wrote, its text is
        appended once.
        """

    def attempt(self, request: CopyRequest, cancelled: threading.Event) -> str | None:
        """Try once to copy what the request asks for. Return GO, why the job must not start, or
        None: try again after ``pause``. Between two tries other jobs get the thread.
        """
        # Only one thread at a time works for a job: a restarted slurmctld runs the prolog of a job
        # again.
        with self.claim(request.job) as turn, turn.lock:
            if request.back:
                return GO if self.bring_back(request.job) else None
            return GO if cancelled.is_set() else self._bring_out(request, cancelled)

    @contextlib.contextmanager
    def claim(self, job: int) -> Iterator[_Turn]:
        """Count the job among ``busy_jobs``."""
        with self._lock:
            turn = self._busy.setdefault(job, _Turn())
            turn.users += 1
        try:
            yield turn
        finally:
            with self._lock:
                turn.users -= 1
                if not turn.users:
                    del self._busy[job]
                    self._retries.clear(job)
                    self._unfit_since.pop(job, None)
                    self._crowded.pop(job, None)

    @contextlib.contextmanager
    def _share(self, uid: int, *, back: bool) -> Iterator[bool]:
        """Whether the user may have a further thread. A user can make copies take long, such as by
        a directory that does not answer, so no user gets more than half of the threads.
        """
        key, most = (uid, back), (BACK_AT_ONCE if back else OUT_AT_ONCE) // 2
        with self._lock:
            self._tries[key] += 1
            has_place = self._tries[key] <= most
        try:
            yield has_place
        finally:
            with self._lock:
                self._tries[key] -= 1
                if not self._tries[key]:
                    del self._tries[key]

    @property
    def busy_jobs(self) -> frozenset[int]:
        """The jobs that a thread or a waiting client works for now."""
        with self._lock:
            return frozenset(self._busy)

    # To the machine.

    def _bring_out(self, request: CopyRequest, cancelled: threading.Event) -> str | None:
        if self._is_crowded(request):
            return None
        files = self._files_of(request)
        if files is None:
            return None
        if not files.nodes:
            return GO  # it has been cancelled or requeued: nothing may hold its prolog
        # Before the first try: slurmctld may kill the prolog in the middle of a copy.
        if not self._allow_requeue(files):
            return None
        if not self.bring_back(request.job, before=files.restarts):
            return None
        try:
            unfit = reason_against_image(self._site, files)
            begins = saved_outputs(self._site, files)
        except READ_ERRORS as error:
            log.warning("images of job %d are unknown: %s", files.job, error)
            return None
        if unfit and self._may_be_forgotten(files):
            return None
        if unfit:
            return self._refuse(files, CopyResult(reason=unfit, final=True))
        with self._share(files.uid, back=False) as has_place:
            if has_place or time.monotonic() >= request.until:
                return self._try_out(files, begins, request.until, cancelled)
        with self._lock:
            self._crowded[request.job] = files.uid, time.monotonic()
        return None

    def _is_crowded(self, request: CopyRequest) -> bool:
        """Whether the job still waits for a place of its user, as far as we know without Slurm."""
        with self._lock:
            uid, asked_at = self._crowded.get(request.job, (-1, -math.inf))
        now = time.monotonic()
        if now - asked_at >= CROWDED_LOOK_S or now >= request.until:
            return False
        with self._share(uid, back=False) as has_place:
            return not has_place

    def _allow_requeue(self, files: JobFiles) -> bool:
        """Lift ``--no-requeue`` (or the site's ``JobRequeue=0``) of a job that has not started, as
        slurmctld would cancel it if its prolog fails. ``ExpectedRequeues`` puts the setting back
        when the job runs, or waits again. Return False if Slurm does not answer.
        """
        if files.requeue or "CONFIGURING" not in files.states:
            return True
        site = self._site
        try:
            requeue_setting.lift_until_it_runs(
                site.slurm, site.ledger, files.job, files.restarts, site.now()
            )
        except SlurmError as error:
            log.warning("job may not be requeued job=%s error=%s", files.label, error)
            # If Slurm refuses, the copy may still succeed.
            return not error.unanswered
        finally:
            # Also after an error: Slurm may have carried the order out.
            site.requeues.expect_lifted(files.job, files.restarts, site.monotonic())
        return True

    def _may_be_forgotten(self, files: JobFiles) -> bool:
        """Whether ckptman may still forget the image that does not fit the files of the job."""
        now = time.monotonic()
        with self._lock:
            return now - self._unfit_since.setdefault(files.job, now) < FORGET_WITHIN_S

    def _try_out(
        self, files: JobFiles, begins: Mapping[str, int], until: float, cancelled: threading.Event
    ) -> str | None:
        """Copy the files to all nodes. Return GO, why the job is held, or None: try again."""
        nodes = [node for node in files.nodes if self._is_copying(node)]
        results = self._on_all(
            nodes, lambda node: self._out_to(node, files, begins, until, cancelled)
        )
        failed = sorted((r for r in results if r.reason), key=lambda r: not r.final)
        if not failed or cancelled.is_set():
            return GO
        if failed[0].final or time.monotonic() >= until:
            return self._refuse(files, failed[0])
        cause = FilesRetried(directory=files.directory, error=failed[0].reason)
        if self._retries.is_news(files.job, failed[0].reason):
            self._record(files.job, files.nodes, "copy-retried", cause)
        return None

    def _files_of(self, request: CopyRequest) -> JobFiles | None:
        """Return Slurm's record of the job, without nodes if the job is not about to start; None if
        Slurm does not answer.
        """
        try:
            files = self._read(request.job)
        except SlurmError as error:
            log.warning("job's files unknown job=%d error=%s", request.job, error)
            return None
        if files is None or not is_on_nodes(files) or set(files.nodes) != set(request.nodes):
            return replace(files or self._nothing_of(request), nodes=())
        return files

    @staticmethod
    def _nothing_of(request: CopyRequest) -> JobFiles:
        return JobFiles(job=request.job, label="", uid=-1, restarts=0, states=frozenset(),
                        nodes=(), directory="its directory", outputs=())  # fmt: skip

    def _is_copying(self, node: str) -> bool:
        pool = self._site.pool_of.get(node)
        return pool is not None and self._site.clouds[pool.cloud].data is Data.COPY

    def _machine_of(self, node: str) -> Machine | None:
        """The machine that serves the node; None if none does, or if it is not clear which."""
        machines = [
            machine for machine in self._site.ledger.machines.live()
            if machine.instance.node == node and machine.is_wanted
        ]  # fmt: skip
        if len(machines) > 1:
            # A double, late or adopted machine may stand beside the machine that slurmctld uses.
            slurm_node = self._site.slurm.nodes([node]).get(node)
            address = slurm_node.address if slurm_node is not None else None
            machines = [m for m in machines if m.instance.address == address]
        return machines[0] if len(machines) == 1 else None

    def _serves(self, machine: Machine) -> bool:
        """Whether the node still has this machine. A copy may take an hour."""
        with contextlib.suppress(SlurmError):
            serving = self._machine_of(machine.instance.node)
            return serving is not None and serving.instance.id == machine.instance.id
        return False

    def _out_to(
        self, node: str, files: JobFiles, begins: Mapping[str, int], until: float,
        cancelled: threading.Event,
    ) -> CopyResult:  # fmt: skip
        try:
            machine = self._machine_of(node)
        except SlurmError as error:
            return CopyResult(reason=str(error))
        if machine is None:
            return CopyResult(reason=f"{node} has no machine at the address that Slurm has")
        row = JobCopy(
            job=files.job, restarts=files.restarts, node=node, machine=machine.instance.id,
            uid=files.uid, directory=files.directory, outputs=dict.fromkeys(files.outputs, 0),
            state=CopyState.OUT, since=self._site.now(),
        )  # fmt: skip
        present = self._row(row)
        if present is not None and (present.uid, present.directory) != (row.uid, row.directory):
            # Slurm gives numbers again, such as after a loss of its state: this is another job.
            if not present.state.is_over:
                self._lose(present, "another job has got its number")
        elif present is not None and present.state is CopyState.THERE:
            return CopyResult()
        self._site.ledger.copies.put(row)
        earlier = self._site.ledger.copies.open()
        result = self._copy(machine, row, "out", until, cancelled)
        if not result.reason and not self._serves(machine):
            return CopyResult(reason=f"another machine serves {node} now")
        if not result.reason:
            cause = FilesSent(machine=row.machine, files=result.files, bytes=result.bytes,
                              notes=result.notes)  # fmt: skip
            self._record(row.job, (node,), "copied-out", cause)
            there = replace(row, state=CopyState.THERE, since=self._site.now())
            outputs = {path: begins.get(path, base) for path, base in result.bases.items()}
            joined = self._shared.put(replace(there, outputs=outputs), result.joined, earlier)
            self._restored_outputs[_key(row)] = frozenset(begins).difference(joined)
        return result

    def _row(self, row: JobCopy) -> JobCopy | None:
        key = (row.restarts, row.node, row.machine)
        rows = self._site.ledger.copies.of(row.job)
        return next((r for r in rows if (r.restarts, r.node, r.machine) == key), None)

    def refuse(self, request: CopyRequest, reason: str) -> str:
        """Hold the job, for which no time is left. Return why, for its prolog."""
        try:
            files = self._read(request.job)
        except SlurmError as error:
            log.warning("job's files unknown job=%d error=%s", request.job, error)
            files = self._nothing_of(request)
        if files is None:
            return reason  # it has been cancelled
        self._allow_requeue(files)
        return self._refuse(replace(files, nodes=request.nodes), CopyResult(reason=reason))

    def _refuse(self, files: JobFiles, result: CopyResult) -> str:
        """Hold the job, which Slurm requeues when its prolog fails, and say why."""
        cause = FilesNotSent(directory=files.directory, error=result.reason)
        rows = [r for r in self._site.ledger.copies.of(files.job) if r.restarts == files.restarts]
        for row in rows:
            if not row.state.is_over:
                self._put(row, CopyState.UNSENT, reason=result.reason)
        if not rows:
            # Nothing has been copied yet. After a restart only this row says that the job is to be
            # held.
            self._site.ledger.copies.put(
                JobCopy(
                    job=files.job, restarts=files.restarts, node=compress(files.nodes), machine="",
                    uid=files.uid, directory=files.directory, outputs={}, state=CopyState.UNSENT,
                    since=self._site.now(), reason=result.reason,
                )
            )  # fmt: skip
        self._record(files.job, files.nodes, "copy-refused", cause)
        name = f"hold-{files.job}"
        in_background(name, self._hold_when_pending, files.job, cause)
        return str(cause)

    def _hold_when_pending(self, number: int, cause: FilesNotSent) -> None:
        until = time.monotonic() + HOLD_WITHIN_S
        while time.monotonic() < until and not self._site.wait(1.0):
            with contextlib.suppress(SlurmError):
                files = self._read(number)
                if files is None:
                    return
                # Slurm shows the reason of a job only in its list of jobs, which takes longer.
                queue = self._site.slurm.jobs() if "PENDING" in files.states else ()
                job = next((job for job in queue if job.id == number), None)
                if job is not None and _is_waiting(job):
                    self._hold(job, cause)
                    return

    def hold_unsent(self) -> None:
        """Hold the waiting jobs whose files could not be sent for their last run, and which no
        thread has held, such as after a restart. SlurmError if Slurm does not answer.
        """
        unsent = {row.job: row for row in self._site.ledger.copies.unsent()}
        queue = {job.id: job for job in self._site.slurm.jobs()} if unsent else {}
        for number, row in unsent.items():
            job = queue.get(number)
            if job is None or job.restarts > row.restarts + 1:
                self._end_unsent(number)  # it has been cancelled, or has had another run
            elif _is_waiting(job):
                self._try_to_hold(job, FilesNotSent(directory=row.directory, error=row.reason))

    def _try_to_hold(self, job: SlurmJob, cause: FilesNotSent) -> None:
        try:
            self._hold(job, cause)
        except SlurmError as error:
            if error.unanswered:
                raise
            log.warning("job not held job=%s error=%s", job.label, error)

    def _hold(self, job: SlurmJob, cause: FilesNotSent) -> None:
        """Hold the waiting job, and note why. We do so once, because its user may release it."""
        slurm = self._site.slurm
        if not hold_until_released(self._site, job.id):
            return  # it does not wait any more
        self._end_unsent(job.id)
        comment = slurm.admin_comments([job.id]).get(job.id, "")
        text = admin_comment.with_note(comment, NoteKind.DATA, str(cause))
        slurm.set_admin_comment(job.id, text)

    def _end_unsent(self, job: int) -> None:
        for row in self._site.ledger.copies.of(job):
            if row.state is CopyState.UNSENT:
                self._put(row, CopyState.REFUSED, reason=row.reason)

    # From the machine.

    def owe(self, job: int, ended: Container[int] | None = None) -> None:
        """Note that runs of the job have ended (``ended``: their restarts; None: all runs), before
        any thread has time for their files: from now on their machines are kept.
        """
        for row in self._site.ledger.copies.of(job):
            if ended is None or row.restarts in ended:
                if row.state is CopyState.OUT:
                    self._put(row, CopyState.BACK, reason="its run did not begin")
                elif row.state is CopyState.THERE:
                    self._put(row, CopyState.OWED)

    def bring_back(self, job: int, *, before: int | None = None) -> bool:
        """Try once to bring back the owed files; with ``before``, also of all runs before that one.
        Return False if a copy must be tried again.
        """
        # A try may begin long after the run's end, when the next run is on its machine. So a try
        # never decides that a run has ended: ``owe`` does, when Slurm says so.
        if before is not None:
            self.owe(job, range(before))
        rows = self._owed_rows(job)
        if not rows:
            return True
        with self._share(rows[0].uid, back=True) as has_place:
            if has_place:
                self._on_all(rows, self._back_from)
        return not self._owed_rows(job)

    def _owed_rows(self, job: int) -> Sequence[JobCopy]:
        return [row for row in self._site.ledger.copies.of(job) if row.state is CopyState.OWED]

    def _back_from(self, row: JobCopy) -> None:
        remaining_s = self._settings.back_within - self._ages.age_s(row)
        machine = self._find_machine(row)
        if machine is None:
            self._lose(row, "its machine has ended")
            return
        until = time.monotonic() + max(remaining_s, MIN_TRY_S)
        result = self._copy(machine, row, "back", until, threading.Event())
        if not result.reason:
            self._put(row, CopyState.BACK)
            cause = FilesReturned(machine=row.machine, files=result.files, bytes=result.bytes,
                                  notes=result.notes)  # fmt: skip
            self._record(row.job, (row.node,), "copied-back", cause)
            return
        log.info("copy back failed job=%d node=%s reason=%s", row.job, row.node, result.reason)
        if result.busy and self._is_busy_in_time(row):
            # Large files of another job are on their way into the directory. That may take
            # out_within, and machine and network are well: the time for our files begins anew.
            self._put(row, CopyState.OWED)
        elif result.final or remaining_s <= self.pause:
            self._lose(row, result.reason)

    def _is_busy_in_time(self, row: JobCopy) -> bool:
        """Whether another copy may still be busy in the directory. What is busy for longer than a
        copy may take hangs, or is a program of the user's that keeps our lock.
        """
        key, now = _key(row), self._site.monotonic()
        return now - self._busy_since.setdefault(key, now) < self._settings.out_within

    def _find_machine(self, row: JobCopy) -> Machine | None:
        machines = self._site.ledger.machines.live()
        return next((m for m in machines if m.instance.id == row.machine), None)

    def _lose(self, row: JobCopy, reason: str) -> None:
        self._put(row, CopyState.LOST, reason=reason)
        cause = FilesLost(directory=row.directory, machine=row.machine, error=reason)
        self._record(row.job, (row.node,), "copy-lost", cause)

    def pull_outputs(self, row: JobCopy) -> None:
        """Bring the output of a running job, so that it is there if the machine is lost."""
        machine = self._find_machine(row)
        if machine is not None and row.outputs:
            until = time.monotonic() + OUTPUTS_TIMEOUT_S
            result = self._copy(machine, row, "outputs", until, threading.Event())
            if result.late:
                key = _key(row)
                late = self._late_outputs.get(key, frozenset())
                self._late_outputs[key] = late.union(result.late)
            if result.reason and not result.busy and self._retries.is_news(row.job, result.reason):
                log.info("output not copied job=%d node=%s reason=%s",
                         row.job, row.node, result.reason)  # fmt: skip

    # Both.

    def _copy(
        self, machine: Machine, row: JobCopy, way: str, until: float, cancelled: threading.Event
    ) -> CopyResult:
        if way == "out":
            return self._copy_alone(machine, row, way, until, cancelled)
        # A pull need not wait: the next pull brings the output, too.
        timeout = _TURN_WAIT_S if way == "back" else 0.0
        with self._shared.turn(row, timeout) as is_free:
            if not is_free:
                reason = "another copy brings the output that this job writes, too"
                return CopyResult(reason=reason, busy=True)
            # The other copy may have changed where the output begins.
            row = self._row(row) or row
            return self._copy_alone(machine, row, way, until, cancelled)

    def _copy_alone(
        self, machine: Machine, row: JobCopy, way: str, until: float, cancelled: threading.Event
    ) -> CopyResult:
        settings, key = self._settings, _key(row)
        late = self._late_outputs.get(key, frozenset())
        restored = self._restored_outputs.get(key, frozenset())
        try:
            user = order_of(row.uid)
        except CopierRefusalError as error:
            # A directory service that restarts knows no user, so this answer is not final.
            return CopyResult(reason=str(error), final=row.uid <= 0)
        remaining_s = until - time.monotonic()
        has_time = remaining_s >= END_WAIT_S + MIN_TRY_S
        within_s = settings.out_within if way == "out" else settings.back_within
        order = user | {
            "groups_doubt": min(GROUPS_DOUBT_S, within_s / 2),
            # In the last try better a copy without the last words of the job than none.
            "end_wait": END_WAIT_S if has_time else int(remaining_s / 2),
            "do": way, "job": row.job, "restarts": row.restarts, "directory": row.directory,
            # Before the rows are read: a later run must not look like a run that was given up.
            "made_at": int(self._site.now() * 1e9),
            "live": [(r.job, r.restarts) for r in self._site.ledger.copies.open()
                     if r.machine == row.machine],
            "exclude": list(settings.exclude), "size_limit": settings.size_limit << 20,
            "outputs": [
                {"path": path, "base": base, "late": way == "outputs" and path in late,
                 "restored": path in restored}
                for path, base in row.outputs.items()
            ],
        }  # fmt: skip
        result = self._run(machine.instance, order, until, cancelled)
        moved = {path for path, base in result.bases.items() if row.outputs.get(path) != base}
        if moved and way != "out":
            self._restored_outputs[key] = restored - moved
            self._shared.move(row, result.bases)
        return result

    def _put(self, row: JobCopy, state: CopyState, *, reason: str = "") -> None:
        changed = replace(row, state=state, since=self._site.now(), reason=reason)
        self._site.ledger.copies.set_state(changed)
        if state is CopyState.OWED:
            self._ages.age_s(changed)  # from now on no change of the clock counts
        elif state.is_over:
            self._ages.forget_finished()
            self._busy_since.pop(_key(row), None)
            self._late_outputs.pop(_key(row), None)
            self._restored_outputs.pop(_key(row), None)

    def _record(self, job: int, nodes: Sequence[str], kind: str, cause: AnyCause) -> None:
        is_usual = isinstance(cause, FilesSent | FilesReturned)
        level = logging.INFO if is_usual else logging.WARNING
        log.log(level, "%s job=%d nodes=%s cause=%s", kind, job, ",".join(nodes), cause)
        self._site.record(CORRELATION, kind, (job_subject(job), *nodes), cause)

    def _on_all(self, items: Sequence[_T], work: Callable[[_T], _R]) -> list[_R]:
        if len(items) <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(len(items), _NODES_AT_ONCE), "copy") as pool:
            return list(pool.map(work, items))
