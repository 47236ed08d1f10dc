"""Slurm through its own commands, mostly with JSON answers. This is the default client.

It runs ``scontrol``, ``squeue``, ``sinfo``, ``scancel --signal`` and, with ``admin_comment``,
``sacct`` and ``sacctmgr``: with a list of arguments, a time limit and nearly no environment.
Updates name nodes by compressed hostlist, so a thousand nodes cost one call.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from signal import Signals
from typing import TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import UNKNOWN_JOB, SlurmError
from slurm_elastic.base.hostlist import chunks, compress
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import JobMail, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.slurm.client import answers, queue_text
from slurm_elastic.slurm.client.array_labels import ArrayLabels
from slurm_elastic.slurm.client.command import CallTimeout, run
from slurm_elastic.slurm.client.command import environment as command_environment
from slurm_elastic.slurm.client.commands.batches import MAX_HOSTLIST_CHARS, batches
from slurm_elastic.slurm.client.commands.comment_commands import CommentCommands
from slurm_elastic.slurm.client.commands.partition_commands import PartitionCommands
from slurm_elastic.slurm.client.commands.reservation_commands import ReservationCommands
from slurm_elastic.slurm.client.json_form import choose_form
from slurm_elastic.slurm.client.queue_text import QueueText
from slurm_elastic.slurm.client.records import Records
from slurm_elastic.slurm.client.shared_reading import SharedReading
from slurm_elastic.slurm.client.update_errors import (
    is_left_over,
    is_made_for_the_rest,
    only_started,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
Raw = TypeVar("Raw", bound=Struct)

_JSON_SINCE = (23, 2)  # this release brought data_parser; 22.05 has only forms of its own
_MISSHAPEN = (AttributeError, KeyError, TypeError, ValueError)
"""The errors that ``answers`` raises for an answer of an unknown shape."""
_MAX_ERROR_BYTES = 1 << 16  # of a failed command's output
OPTION_TTL_S = 600.0
RETRY_FOR_S = 5.0
_RETRY_PAUSE_S = 0.2
_FAILED = re.compile(r"^slurm_\w+ error:|Unable to contact slurm controller", re.MULTILINE)
"""A text on standard error that shows a failure even if the exit status is 0."""


class SlurmCli(CommentCommands, PartitionCommands, ReservationCommands):
    """``model.protocols.Slurm`` by commands. ``calls`` counts the commands. Once ``stop`` is set,
    each command has little time (``CallTimeout``).
    """

    def __init__(self, settings: SlurmSettings, stop: threading.Event | None = None) -> None:
        self._settings = settings
        self._version: tuple[int, int] | None = None
        self._json_option: str | None = None
        self._labels = ArrayLabels()
        self._options = TtlCache[str, float]()
        self._timeout = CallTimeout(settings.command_timeout, stop)
        self._queue, self._history = SharedReading(self._jobs), SharedReading(self._all_jobs)
        self._dependencies = SharedReading(self._read_dependencies)
        self.calls: dict[str, int] = defaultdict(int)

    def version(self) -> tuple[int, int]:
        """Slurm's version, asked for once, and again after a reading that failed."""
        version = self._version
        if version is None:
            text = self._run("scontrol", "--version")
            try:
                self._version = version = answers.version(text)
            except ValueError as error:
                raise SlurmError(("scontrol", "--version"), 0, str(error)) from error
        return version

    def close(self) -> None:
        """Do nothing, because no connection stays open between two commands."""

    def slurmd_timeout(self) -> float:
        """SlurmdTimeout (s) of the running slurmctld, read again every ten minutes."""
        return self._options.get("SlurmdTimeout", self._slurmd_timeout, ttl_s=OPTION_TTL_S)

    def _slurmd_timeout(self) -> float:
        return answers.slurmd_timeout(self._run("scontrol", "show", "config"))

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or those of ``names`` that Slurm shows. 22.05 hides powered-down cloud nodes
        unless PrivateData has ``cloud``, which our fragment sets. ``--all`` also shows nodes whose
        partitions are hidden from this user.
        """
        with self._upgrade_noticed():
            form = self._form()
            # Since 23.02 ``sinfo --json`` gives rows of equal nodes instead of nodes.
            command = ("scontrol", "--all", "show", "nodes") if form else ("sinfo", "--all")
            nodes = self._read("nodes", answers.RawNode, answers.node, *command, form or "--json")
        requested = None if names is None else set(names)
        return {node.name: node for node in nodes if requested is None or node.name in requested}

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        """All jobs, array tasks apart. With ``ended`` also jobs that ended within MinJobAge."""
        return self._history.get() if ended else self._queue.get()

    def _jobs(self) -> Sequence[SlurmJob]:
        return tuple(job for job in self._records() if not job.has_ended)

    def _all_jobs(self) -> Sequence[SlurmJob]:
        return self._records("--states=all", is_whole=True)

    def job(self, number: int) -> SlurmJob | None:
        """``squeue --jobs=NUMBER``, which for the first task of an array lists all its tasks."""
        try:
            jobs = self._records("--states=all", f"--jobs={number}")
        except SlurmError as error:
            if not error.is_of_unknown_job:
                raise
            return None
        return next((job for job in jobs if job.id == number), None)

    def _records(self, *options: str, is_whole: bool = False) -> Sequence[SlurmJob]:
        """The jobs of squeue with these options. ``is_whole``: these are all jobs of Slurm."""
        jobs = self._read_records(*options)
        self._labels.learn(jobs, is_whole=is_whole)
        return jobs

    def _read_records(self, *options: str) -> Sequence[SlurmJob]:
        with self._upgrade_noticed():
            form = self._form()
            if not form:
                return self._queue_text(*options)
            command = ("squeue", "--all", *options, form)
            return self._read("jobs", answers.RawJob, answers.job, *command)

    def _form(self) -> str:
        """The option for a form of JSON that we know. Empty if Slurm has no data_parser."""
        option = self._json_option
        if option is None:
            offered = self._offered() if self.version() >= _JSON_SINCE else None
            self._json_option = option = "" if offered is None else choose_form(offered)
        return option

    @contextlib.contextmanager
    def _upgrade_noticed(self) -> Iterator[None]:
        """If the block fails to read, let the next reading ask for Slurm's release again.

        An upgrade of Slurm may have taken away the form that we know.
        """
        try:
            yield
        except SlurmError as error:
            if not (error.unanswered or error.is_of_unknown_job):
                self._version = self._json_option = None
            raise

    def _offered(self) -> str:
        chunks: list[bytes] = []
        try:
            error_text = self._hand_on(chunks.append, "scontrol", "show", "nodes", "--json=list")
        except SlurmError as error:
            if error.unanswered:
                raise
            return ""  # this release offers no choice
        return b"".join(chunks).decode(errors="replace") + error_text

    def owners(self, jobs: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """``squeue --jobs=... --format='%A|%u|%a'``: %A is a number even for an array's task."""
        owners: dict[int, Mapping[str, str]] = {}
        for batch in batches((str(job), "") for job in jobs):
            ids = ",".join(job for job, _ in batch)
            for job, names in self._rows("%u|%a", f"--jobs={ids}").items():
                user, _, account = names.partition("|")
                values = {"user": user, "account": "" if account == "(null)" else account}
                # Slurm takes any text for an account if it enforces none. Clouds refuse such tags.
                owners[job] = {k: name for k, name in values.items() if name and name.isprintable()}
        return owners

    def _rows(self, fields: str, *options: str) -> dict[int, str]:
        """The fields of ``squeue --format`` by job."""
        mark = f"<{os.urandom(8).hex()}>"
        command = ("squeue", "--all", "--noheader", *options, f"--format={mark}%A|{fields}")
        return self._table(lambda text: answers.rows_by_job(text, mark), *command)

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """One scontrol for each 60,000 characters of compressed hostlist or of addresses."""
        fields = [f"state={state}"] if state else []
        if reason is not None:
            fields.append(f"reason={reason}")
        if address is None:
            for hostlist in chunks(names, MAX_HOSTLIST_CHARS):
                self._run("scontrol", "update", f"nodename={hostlist}", *fields)
            return
        for batch in batches((name, address) for name in dict.fromkeys(names)):
            # One address for each node, even if all are the same: NodeAddr takes no fewer.
            addresses = ",".join(value for _, value in batch)
            hostlist = compress(name for name, _ in batch)
            self._run(
                "scontrol", "update", f"nodename={hostlist}", f"nodeaddr={addresses}", *fields
            )

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """One scontrol for all nodes of the same weight."""
        by_weight: dict[int, list[str]] = defaultdict(list)
        for name, weight in weights.items():
            by_weight[weight].append(name)
        for weight, names in sorted(by_weight.items()):
            for hostlist in chunks(names, MAX_HOSTLIST_CHARS):
                self._run("scontrol", "update", f"nodename={hostlist}", f"weight={weight}")

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """One scontrol for each 60,000 characters of names or of addresses."""
        for batch in batches(addresses.items()):
            # Not compressed: that sorts the names, and the addresses follow them (scontrol(1)).
            names = ",".join(name for name, _ in batch)
            values = ",".join(address for _, address in batch)
            self._run("scontrol", "update", f"nodename={names}", f"nodeaddr={values}")

    def requeue(self, job: int) -> None:
        """``scontrol requeue JOB``. A task of an array is named as in the last list of jobs."""
        self._run("scontrol", "requeue", self._label(job))

    def start_now(self, job: int) -> None:
        # Lifts the wait of a requeued job, 121 s by default (measured on 22.05 to 26.05).
        self._update_job(self._label(job), "starttime=now")

    def change_pending(
        self,
        jobs: Sequence[int],
        *,
        partitions: Sequence[str] = (),
        begin_in: float | None = None,
    ) -> None:
        """``scontrol update jobid=JOB,JOB partition=... starttime=now+SECONDS``."""
        fields = [f"partition={','.join(partitions)}"] if partitions else []
        # Not a time of day, because scontrol may run in another time zone.
        if begin_in is not None:
            fields.append(
                f"starttime=now+{math.ceil(begin_in)}" if begin_in > 0 else "starttime=now"
            )
        for batch in batches((self._label(job), "") for job in jobs):
            try:
                self._update_job(",".join(k for k, _ in batch), *fields)
            except SlurmError as error:
                # "Job is no longer pending execution" (22.05): a job that starts needs no change.
                if not only_started(error):
                    raise

    def set_partitions(self, job: int, partitions: Sequence[str]) -> None:
        """``scontrol update jobid=JOB partition=...``. SlurmError if the job has started."""
        self._update_job(self._label(job), f"partition={','.join(partitions)}")

    def set_requeue(self, job: int, *, requeue: bool) -> None:
        self._update_job(self._label(job), f"requeue={int(requeue)}")

    def signal(self, job: int, name: str, *, full: bool) -> None:
        """``scancel --signal=NUMBER --batch|--full JOB``."""
        # By its number: scancel refuses the names of WINCH, CHLD and some others.
        number, scope = int(Signals[f"SIG{name}"]), "--full" if full else "--batch"
        self._run("scancel", f"--signal={number}", scope, self._label(job))

    def batch_script(self, job: int) -> str:
        return self._run("scontrol", "write", "batch_script", str(job), "-")

    def dependencies(self) -> Mapping[int, str]:
        """``squeue --format=%E``, in one form for all releases."""
        return self._dependencies.get()

    def _read_dependencies(self) -> Mapping[int, str]:
        return answers.dependencies(self._rows("%E", "--states=PENDING"))

    def any_nodes(self, job: int) -> None:
        # A job with --nodelist would wait for its drained node (measured on 24.11 and 26.05).
        self._update_job(self._label(job), "reqnodelist=")

    def excluded_nodes(self, job: int) -> tuple[str, ...]:
        if self._form():
            return self._existing(job).excluded
        rows = self._rows("%x", "--states=all", f"--jobs={job}")
        return answers.excluded_nodes(rows).get(job, ())

    def exclude_nodes(self, job: int, nodes: Sequence[str]) -> None:
        self._update_job(self._label(job), f"excnodelist={compress(nodes)}")

    def hold(self, job: int) -> None:
        """``scontrol uhold JOB``, so that its user may release it."""
        self._run_repeatable("scontrol", "uhold", self._label(job))

    def release(self, job: int) -> None:
        self._run_repeatable("scontrol", "release", self._label(job))

    def suspend(self, job: int) -> None:
        self._run_repeatable("scontrol", "suspend", self._label(job))

    def resume(self, job: int) -> None:
        self._run_repeatable("scontrol", "resume", self._label(job))

    def excluded_by_job(self) -> Mapping[int, tuple[str, ...]]:
        """``squeue --format=%x``, because 22.05's ``squeue --Format`` has no such field."""
        if self._form():
            return {}  # ``jobs`` has them
        return answers.excluded_nodes(self._rows("%x", "--states=PENDING"))

    def free_licenses(self) -> Mapping[str, int]:
        return self._table(answers.free_licenses, "scontrol", "--oneliner", "show", "licenses")

    def _table(self, read: Callable[[str], T], *command: str) -> T:
        """The value of ``read(answer)``. SlurmError if the text has an unknown form."""
        try:
            return read(self._run(*command))
        except (KeyError, ValueError) as error:
            raise SlurmError(command, 0, f"answered text of an unknown form: {error}") from error

    def slurmctld_started(self) -> float:
        return self._table(answers.slurmctld_started, "scontrol", "show", "config")

    def suspend_exclusions(self) -> SuspendExclusions:
        return self._table(answers.suspend_exclusions, "scontrol", "show", "config")

    def tell(self, job: int, text: str) -> None:
        self._run_repeatable("scontrol", "notify", str(job), text)

    def finished(self, days: int) -> Sequence[tuple[str, str, int, int, int]]:
        """Ask ``sacct``, which gives the limit in minutes. A job without a limit is left out."""
        output = self._run(
            "sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
            f"--starttime=now-{days}days", "--endtime=now",
            "--state=CD,F,TO,OOM,DL", "--format=User,Account,AllocCPUS,TimelimitRaw,ElapsedRaw,End",
        )  # fmt: skip
        rows = [line.split("|") for line in output.splitlines()]
        # TimelimitRaw is a word such as UNLIMITED for a job without a limit.
        rows = [r for r in rows if len(r) == 6 and all(n.isdecimal() for n in r[2:5])]
        rows.sort(key=lambda row: row[5])
        return [(r[0], r[1], int(r[2]), int(r[3]) * 60, int(r[4])) for r in rows]

    def _existing(self, job: int) -> SlurmJob:
        record = self.job(job)
        if record is None:
            raise SlurmError(("squeue", f"--jobs={job}"), 1, UNKNOWN_JOB)
        return record

    def mail_of(self, job: int) -> JobMail | None:
        """Ask ``scontrol show job`` for the mail that the job wants, because squeue cannot print
        these fields. They end the record, and only its user's own mail depends on them: everything
        else about a job comes from ``job`` and ``jobs``, because this text may imitate any field.
        """
        try:
            text = self._run("scontrol", "--oneliner", "show", "job", self._label(job))
        except SlurmError as error:
            if not error.is_of_unknown_job:
                raise
            return None
        return answers.job_mail(text, job)

    def _label(self, job: int) -> str:
        """The id of an array's task as Slurm writes it. The base id would mean all its tasks."""
        return self._labels.label(job)

    def _update_job(self, jobs: str, *fields: str) -> None:
        self._run_repeatable("scontrol", "update", f"jobid={jobs}", *fields)

    def _run_repeatable(self, *command: str) -> None:
        """Run a command that may be repeated. Retry it for some seconds after a left-over errno.

        Tasks of an array that have started or ended need no change, so they are no refusal.
        Slurm's own refusals are no system errors, and count at once.
        """
        deadline = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                self._run(*command)
            except SlurmError as error:
                if is_made_for_the_rest(error):
                    return
                # Now and then 24.11 answers "Resource temporarily unavailable" although nothing
                # prevents the change, and accepts the same command the next time (measured).
                if not is_left_over(error) or time.monotonic() > deadline:
                    raise
                log.info("asked again command=%s error=%s", " ".join(command), error)
            else:
                return
            time.sleep(_RETRY_PAUSE_S)

    def _queue_text(self, *which: str) -> tuple[SlurmJob, ...]:
        """22.05's queue, read without ``--json``. ``which``: options that choose jobs."""
        # Random, because users may write anything else into names and comments, even line breaks.
        mark = f"<{os.urandom(8).hex()}>"
        text, command = QueueText(mark), ("squeue", "--all", "--Format")
        try:
            options = (*which, *queue_text.options(mark))
            self._hand_on(text.take, "squeue", "--all", *options, **queue_text.ENVIRONMENT)
            text.close()
        except SlurmError as error:
            if error.command[0] != "squeue":
                raise
            # The command without its fields, which explain nothing.
            raise SlurmError(command, error.code, error.stderr) from error
        except (TypeError, ValueError) as error:
            raise SlurmError(command, 0, f"answered text of an unknown form: {error}") from error
        return tuple(text.values)

    def _read(
        self, key: str, record_type: type[Raw], read: Callable[[Raw], T], *command: str
    ) -> tuple[T, ...]:
        """The values of a list in a JSON answer. SlurmError if the answer has an unknown shape."""
        records = Records(key, record_type, read)
        try:
            self._hand_on(records.take, *command)
            error_text = answers.errors(records.close())
        except json.JSONDecodeError as error:
            raise SlurmError(command, 0, f"answered no JSON: {error}") from error
        except _MISSHAPEN as error:
            text = f"answered JSON of an unknown form: {type(error).__name__}: {error}"
            raise SlurmError(command, 0, text) from error
        # If slurmctld is stopped or hangs, 22.05 says so beside an empty list and exits with 0
        # (measured). Such a list must not pass for an empty cluster.
        if error_text:
            raise SlurmError(command, 0, f"answered with an error: {error_text}")
        return tuple(records.values)

    def _timeout_of(self, command: tuple[str, ...]) -> CallTimeout:  # noqa: ARG002 - others differ
        return self._timeout

    def _run(self, *command: str) -> str:
        chunks: list[bytes] = []
        self._hand_on(chunks.append, *command)
        return b"".join(chunks).decode(errors="replace")

    def _hand_on(self, take: Callable[[bytes], object], *command: str, **environment: str) -> str:
        """Run the command; ``take`` gets its output. Return standard error, or raise SlurmError."""
        self.calls[command[0]] += 1
        if not os.path.exists(self._settings.conf):
            # Without the file Slurm's commands would look for it for a minute.
            raise SlurmError(command, 1, f"there is no {self._settings.conf}")
        path = os.path.join(self._settings.bin_dir, command[0])
        env = command_environment(self._settings) | environment
        output: list[bytes] = []

        def both(data: bytes) -> None:
            if sum(map(len, output)) < _MAX_ERROR_BYTES:  # an error may be on standard output
                output.append(data[:_MAX_ERROR_BYTES])
            take(data)

        try:
            code, error_text = run([path, *command[1:]], env, self._timeout_of(command), both)
        except TimeoutError as error:
            raise SlurmError(command, None, str(error)) from error
        except OSError as error:
            raise SlurmError(command, 127, str(error)) from error
        log.debug("ran command=%s code=%d", " ".join(command), code)
        if code != 0 or _FAILED.search(error_text):
            printed = b"".join(output).decode(errors="replace")
            raise SlurmError(command, code, error_text.strip() or printed)
        return error_text
