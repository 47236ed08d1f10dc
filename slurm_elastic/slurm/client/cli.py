"""Slurm through its own commands, mostly with JSON answers: the default client.

Only ``scontrol``, ``squeue``, ``sinfo`` and ``scancel --signal`` are run, with a list of arguments,
a time limit and nearly no environment; ``books.admin_comment`` adds ``sacct`` and
``sacctmgr``. Updates go out by compressed hostlist: a thousand nodes cost one call.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import chunks, compress, expand
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.slurm.client import answers, queue_text
from slurm_elastic.slurm.client.command import Patience, run
from slurm_elastic.slurm.client.json_form import known
from slurm_elastic.slurm.client.queue_text import QueueText
from slurm_elastic.slurm.client.records import Records
from slurm_elastic.slurm.client.shared_reading import SharedReading
from slurm_elastic.slurm.client.update_errors import is_left_over, only_started

log = logging.getLogger(__name__)
T = TypeVar("T")
Raw = TypeVar("Raw", bound=Struct)

MAX_HOSTLIST_CHARS = 60_000
"""The length of one argument; Linux takes 128 KiB (execve(2), MAX_ARG_STRLEN)."""
_JSON_SINCE = (23, 2)  # from this release on there is data_parser, before it only 22.05's own forms
_MISSHAPEN = (AttributeError, KeyError, TypeError, ValueError)
"""The errors that an answer of an unknown shape raises in ``answers``."""
_WORDS = 1 << 16  # bytes of what a failed command printed that its error has
_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
_EXCLUDED = ("squeue", "--all", "--noheader", "--states=PENDING", "--format=%A|%x")
OPTIONS_KEPT = 600.0  # seconds for which an option of slurm.conf holds once it was asked for
AGAIN_SECONDS = 5.0
_AGAIN_PAUSE = 0.2
_FAILED = re.compile(r"^slurm_\w+ error:|Unable to contact slurm controller", re.MULTILINE)
"""In what a command says beside its answer: it has failed, whatever its exit status is."""


class SlurmCli:
    """``model.protocols.Slurm`` by commands; ``calls`` counts them; no wait after ``stop``."""

    def __init__(self, settings: SlurmSettings, stop: threading.Event | None = None) -> None:
        self._settings = settings
        self._version: tuple[int, int] | None = None
        self._json: str | None = None
        self._labels: dict[int, str] = {}
        self._options = TtlCache[str, float]()
        self._patience = Patience(settings.command_timeout, stop)
        self._queue, self._history = SharedReading(self._jobs), SharedReading(self._all_jobs)
        self.calls: dict[str, int] = defaultdict(int)

    def version(self) -> tuple[int, int]:
        """Slurm's version, asked once."""
        if self._version is None:
            text = self._run("scontrol", "--version")
            try:
                self._version = answers.version(text)
            except ValueError as error:
                raise SlurmError(("scontrol", "--version"), 0, str(error)) from error
        return self._version

    def close(self) -> None:
        """Nothing is kept open between two commands."""

    def slurmd_timeout(self) -> float:
        """SlurmdTimeout (s) of the running slurmctld, asked again every ten minutes."""
        return self._options.get("SlurmdTimeout", self._slurmd_timeout, ttl_s=OPTIONS_KEPT)

    def _slurmd_timeout(self) -> float:
        return answers.slurmd_timeout(self._run("scontrol", "show", "config"))

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or those of ``names`` that Slurm shows (22.05 hides powered-down cloud nodes
        unless PrivateData has ``cloud``, which our fragment sets), also where their partitions are
        hidden from who asks.
        """
        form = self._form()
        # From 23.02 on sinfo gives rows of equal nodes, no nodes.
        command = ("scontrol", "--all", "show", "nodes") if form else ("sinfo", "--all")
        found = self._read("nodes", answers.RawNode, answers.node, *command, form or "--json")
        wanted = None if names is None else set(names)
        return {node.name: node for node in found if wanted is None or node.name in wanted}

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        """All jobs, array tasks apart. ``ended`` ones for MinJobAge, by 22.05 in any case."""
        return self._history.get() if ended else self._queue.get()

    def _jobs(self) -> Sequence[SlurmJob]:
        return tuple(job for job in self._queued() if not job.has_ended)

    def _all_jobs(self) -> Sequence[SlurmJob]:
        return self._queued("--states=all")

    def _queued(self, *states: str) -> Sequence[SlurmJob]:
        form = self._form()
        if form:
            command = ("squeue", "--all", *states, form)
            found = self._read("jobs", answers.RawJob, answers.job, *command)
        else:
            found = self._queue_text()
        self._labels = {job.id: job.label for job in found if job.task is not None}
        return found

    def _form(self) -> str:
        """The option for a form of JSON that we know; empty before there was data_parser."""
        if self._json is None:
            offered = self._offered() if self.version() >= _JSON_SINCE else None
            self._json = "" if offered is None else known(offered)
        return self._json

    def _offered(self) -> str:
        listed: list[bytes] = []
        try:
            said = self._hand_on(listed.append, "scontrol", "show", "nodes", "--json=list")
        except SlurmError as error:
            if error.unanswered:
                raise
            return ""  # a release that has no choice
        return b"".join(listed).decode(errors="replace") + said

    def owners(self, jobs: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """``squeue --jobs=... --format='%A|%u|%a'``: %A is a number also for an array's task."""
        found: dict[int, Mapping[str, str]] = {}
        for part in _batches((str(job), "") for job in jobs):
            wanted = ",".join(job for job, _ in part)
            rows = self._run(
                "squeue", "--all", "--noheader", f"--jobs={wanted}", "--format=%A|%u|%a"
            )
            for row in rows.splitlines():
                number, _, names = row.strip().partition("|")
                user, _, account = names.partition("|")
                told = {"user": user, "account": "" if account == "(null)" else account}
                if number.isdecimal():
                    found[int(number)] = {key: name for key, name in told.items() if name}
        return found

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """One scontrol for each 60,000 characters of compressed hostlist, or of addresses."""
        fields = [f"state={state}"] if state else []
        if reason is not None:
            fields.append(f"reason={reason}")
        if address is None:
            for hostlist in chunks(names, MAX_HOSTLIST_CHARS):
                self._run("scontrol", "update", f"nodename={hostlist}", *fields)
            return
        for part in _batches((name, address) for name in dict.fromkeys(names)):
            # As many as there are nodes, also where they are all the same: NodeAddr takes no fewer.
            addresses = ",".join(value for _, value in part)
            hostlist = compress(name for name, _ in part)
            self._run(
                "scontrol", "update", f"nodename={hostlist}", f"nodeaddr={addresses}", *fields
            )

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """One scontrol for all nodes of one weight."""
        by_weight: dict[int, list[str]] = defaultdict(list)
        for name, weight in weights.items():
            by_weight[weight].append(name)
        for weight, names in sorted(by_weight.items()):
            for hostlist in chunks(names, MAX_HOSTLIST_CHARS):
                self._run("scontrol", "update", f"nodename={hostlist}", f"weight={weight}")

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """One scontrol for each 60,000 characters of names, or of addresses."""
        for part in _batches(addresses.items()):
            # Not compressed, which would sort them: the addresses go by the order (scontrol(1)).
            names = ",".join(name for name, _ in part)
            values = ",".join(address for _, address in part)
            self._run("scontrol", "update", f"nodename={names}", f"nodeaddr={values}")

    def requeue(self, job: int) -> None:
        """``scontrol requeue JOB``; of an array the task that the last list of jobs had so."""
        self._run("scontrol", "requeue", self._label(job))

    def start_now(self, job: int) -> None:
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
        # No time of day, which scontrol and we might read in two time zones.
        if begin_in is not None:
            fields.append(
                f"starttime=now+{math.ceil(begin_in)}" if begin_in > 0 else "starttime=now"
            )
        for part in _batches((self._label(job), "") for job in jobs):
            try:
                self._update_job(",".join(k for k, _ in part), *fields)
            except SlurmError as error:
                if not only_started(error):
                    raise

    def set_partitions(self, job: int, partitions: Sequence[str]) -> None:
        """``scontrol update jobid=JOB partition=...``; one that has started is an error."""
        self._update_job(self._label(job), f"partition={','.join(partitions)}")

    def set_requeue(self, job: int, *, requeue: bool) -> None:
        self._update_job(self._label(job), f"requeue={int(requeue)}")

    def signal(self, job: int, name: str, *, full: bool) -> None:
        """``scancel --signal=NAME --batch|--full JOB``."""
        self._run("scancel", f"--signal={name}", "--full" if full else "--batch", self._label(job))

    def any_nodes(self, job: int) -> None:
        self._update_job(self._label(job), "reqnodelist=")

    def excluded_nodes(self, job: int) -> tuple[str, ...]:
        command = ("scontrol", "--oneliner", "show", "job", self._label(job))
        found = re.search(r"\sExcNodeList=(\S*)", self._run(*command))
        if found is None:
            raise SlurmError(command, 0, "answered no ExcNodeList")
        return () if found[1] in ("", "(null)") else tuple(expand(found[1]))

    def exclude_nodes(self, job: int, nodes: Sequence[str]) -> None:
        self._update_job(self._label(job), f"excnodelist={compress(nodes)}")

    def hold(self, job: int) -> None:
        """``scontrol uhold JOB``: its user may release it."""
        self._ask_again("scontrol", "uhold", self._label(job))

    def release(self, job: int) -> None:
        self._ask_again("scontrol", "release", self._label(job))

    def suspend(self, job: int) -> None:
        self._ask_again("scontrol", "suspend", self._label(job))

    def resume(self, job: int) -> None:
        self._ask_again("scontrol", "resume", self._label(job))

    def reservations(self) -> Sequence[Reservation]:
        """``scontrol show reservations``, as text: 22.05 has no JSON of it."""
        return self._table(answers.reservations, "scontrol", "--oneliner", "show", "reservations")

    def excluded_by_job(self) -> Mapping[int, tuple[str, ...]]:
        """``squeue --format=%x``: 22.05's ``squeue --Format`` has no word for it."""
        if self._form():
            return {}  # the list of jobs has them
        return self._table(answers.excluded_nodes, *_EXCLUDED)

    def default_times(self) -> Mapping[str, float | None]:
        return self._table(answers.default_times, *_PARTITIONS)

    def max_times(self) -> Mapping[str, float | None]:
        return self._table(answers.max_times, *_PARTITIONS)

    def free_licenses(self) -> Mapping[str, int]:
        return self._table(answers.free_licenses, "scontrol", "--oneliner", "show", "licenses")

    def _table(self, read: Callable[[str], T], *command: str) -> T:
        """What ``read`` makes of the answer; text of an unknown form is a SlurmError."""
        try:
            return read(self._run(*command))
        except (KeyError, ValueError) as error:
            raise SlurmError(command, 0, f"answered text of an unknown form: {error}") from error

    def partition_states(self) -> Mapping[str, str]:
        return self._table(answers.partition_states, *_PARTITIONS)

    def slurmctld_started(self) -> float:
        return self._table(answers.slurmctld_started, "scontrol", "show", "config")

    def suspend_exclusions(self) -> SuspendExclusions:
        return self._table(answers.suspend_exclusions, "scontrol", "show", "config")

    def tell(self, job: int, line: str) -> None:
        self._ask_again("scontrol", "notify", str(job), line)

    def finished(self, days: int) -> Sequence[tuple[str, str, int, int, int]]:
        """By ``sacct``: the limit is told in minutes; a job without one is left out."""
        shown = self._run(
            "sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
            f"--starttime=now-{days}days", "--endtime=now",
            "--state=CD,F,TO,OOM,DL", "--format=User,Account,AllocCPUS,TimelimitRaw,ElapsedRaw,End",
        )  # fmt: skip
        rows = [line.split("|") for line in shown.splitlines()]
        rows = [r for r in rows if len(r) == 6 and all(n.isdecimal() for n in r[2:5])]
        rows.sort(key=lambda row: row[5])
        return [(r[0], r[1], int(r[2]), int(r[3]) * 60, int(r[4])) for r in rows]

    def accounted_comment(self, job: int) -> str:
        return self._run(
            "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={self._label(job)}",
            "--format=AdminComment",
        ).rstrip("\n")  # fmt: skip

    def set_accounted_comment(self, cluster: str, job: int, text: str) -> None:
        """``sacctmgr modify job``: scontrol changes no job that has ended (22.05, measured)."""
        self._run(
            "sacctmgr", "--immediate", "--quiet", "modify", "job", "where",
            f"cluster={cluster}", f"jobid={self._label(job)}", "set", f"admincomment={text}",
        )  # fmt: skip

    def set_admin_comment(self, job: int, text: str) -> None:
        self._update_job(self._label(job), f"admincomment={text}")

    def output(self, job: int) -> str:
        command = ("scontrol", "--oneliner", "show", "job", self._label(job))
        found = re.search(r"\sStdOut=(.*?)(?: \w+=|\s*$)", self._run(*command))
        if found is None:
            raise SlurmError(command, 0, "answered no StdOut")
        return found[1]

    def _label(self, job: int) -> str:
        """The base id of an array would be all of its tasks."""
        return self._labels.get(job, str(job))

    def _update_job(self, jobs: str, *fields: str) -> None:
        self._ask_again("scontrol", "update", f"jobid={jobs}", *fields)

    def _ask_again(self, *command: str) -> None:
        """Run what may be repeated; for some seconds again where a left-over errno answers.

        Slurm's own reasons to refuse are no system errors and count at once.
        """
        deadline = time.monotonic() + AGAIN_SECONDS
        while True:
            try:
                self._run(*command)
            except SlurmError as error:
                # Now and then 24.11 says "Resource temporarily unavailable" of a job that it has
                # nothing against, and takes the same command when asked again (measured).
                if not is_left_over(error) or time.monotonic() > deadline:
                    raise
                log.info("asked again command=%s error=%s", " ".join(command), error)
            else:
                return
            time.sleep(_AGAIN_PAUSE)

    def _queue_text(self) -> tuple[SlurmJob, ...]:
        """22.05's queue, without ``--json``."""
        # New each time, as users may write anything else into names and comments, line breaks, too.
        mark = f"<{os.urandom(8).hex()}>"
        text, command = QueueText(mark), ("squeue", "--all", "--Format")
        try:
            options = queue_text.options(mark)
            self._hand_on(text.take, "squeue", "--all", *options, **queue_text.ENVIRONMENT)
            text.close()
        except SlurmError as error:
            if error.command[0] != "squeue":
                raise
            # The fields that are asked for say no more.
            raise SlurmError(command, error.code, error.stderr) from error
        except (TypeError, ValueError) as error:
            raise SlurmError(command, 0, f"answered text of an unknown form: {error}") from error
        return tuple(text.found)

    def _read(
        self, key: str, raw: type[Raw], read: Callable[[Raw], T], *command: str
    ) -> tuple[T, ...]:
        """The values of a list in a JSON answer; an answer of an unknown shape is a SlurmError."""
        records = Records(key, raw, read)
        try:
            self._hand_on(records.take, *command)
            said = answers.errors(records.close())
        except json.JSONDecodeError as error:
            raise SlurmError(command, 0, f"answered no JSON: {error}") from error
        except _MISSHAPEN as error:
            text = f"answered JSON of an unknown form: {type(error).__name__}: {error}"
            raise SlurmError(command, 0, text) from error
        # With slurmctld stopped or hanging 22.05 tells so beside an empty list, and exits 0
        # (measured): that list says nothing.
        if said:
            raise SlurmError(command, 0, f"answered with an error: {said}")
        return tuple(records.found)

    def _patience_of(self, command: tuple[str, ...]) -> Patience:  # noqa: ARG002 - others differ
        return self._patience

    def _run(self, *command: str) -> str:
        parts: list[bytes] = []
        self._hand_on(parts.append, *command)
        return b"".join(parts).decode(errors="replace")

    def _hand_on(self, take: Callable[[bytes], object], *command: str, **environment: str) -> str:
        """Run it; ``take`` gets what it prints. Returns the rest; SlurmError where it fails."""
        self.calls[command[0]] += 1
        if not os.path.exists(self._settings.conf):
            # Slurm's commands would look for it for a minute.
            raise SlurmError(command, 1, f"there is no {self._settings.conf}")
        path = os.path.join(self._settings.bin_dir, command[0])
        env = {
            "SLURM_CONF": self._settings.conf,
            "PATH": f"{self._settings.bin_dir}:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "standard",
            **environment,
        }
        parts: list[bytes] = []

        def both(data: bytes) -> None:
            if sum(map(len, parts)) < _WORDS:  # a failure's words may be there
                parts.append(data[:_WORDS])
            take(data)

        try:
            code, said = run([path, *command[1:]], env, self._patience_of(command), both)
        except TimeoutError as error:
            raise SlurmError(command, None, str(error)) from error
        except OSError as error:
            raise SlurmError(command, 127, str(error)) from error
        log.debug("ran command=%s code=%d", " ".join(command), code)
        if code != 0 or _FAILED.search(said):
            printed = b"".join(parts).decode(errors="replace")
            raise SlurmError(command, code, said.strip() or printed)
        return said


def _batches(items: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Pairs in parts, of which neither side fills an argument."""
    part: list[tuple[str, str]] = []
    filled = 0
    for pair in items:
        size = max(map(len, pair)) + 1
        if part and filled + size > MAX_HOSTLIST_CHARS:
            yield part
            part, filled = [], 0
        part.append(pair)
        filled += size
    if part:
        yield part
