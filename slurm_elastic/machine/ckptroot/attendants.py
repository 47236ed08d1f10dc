"""The first node's side of the processes of ours on the job's other nodes (``attendant``).

One step of the job runs an attendant on each other node for the whole run. srun, our child, which
runs as the user, carries our orders to all of them and their reports back, as lines of JSON. The
user may read and write there, too, so an order can do nothing that the user could not do himself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from . import files
from .caller import Caller
from .job_nodes import JobNodes
from .payload import calm
from .site import HelperSite, RequestRefused
from .store import JobStore

FACTS = "nodes.json"
"""In the job's directory, root's alone: what the attendants must not take from the user."""
_START_TIMEOUT_S = 90.0
_LOOK_TIMEOUT_S = 20.0
"""Seconds for the answer of all attendants to a question."""
_END_TIMEOUT_S = 10.0
_BLOCK_BYTES = 65536
_MAX_LINE_BYTES = 1 << 20
_POLL_EVERY_S = 0.05
_OURS = (b"srun: ", b"slurmstepd: ", b"slurm-elastic: ", b"sudo: ")
"""The beginnings of lines that no program of the job wrote."""
_SRUN = (
    "--overlap", "--mpi=none", "--ntasks-per-node=1", "--cpu-bind=none", "--mem=0", "--wait=0",
    "--kill-on-bad-exit=0", "--unbuffered", "--job-name=slurm-elastic", "--chdir=/",
)  # fmt: skip


class Attendants:
    """Our processes on the ``others``, the job's other nodes, by number: 1 is the second node of
    the job.
    """

    def __init__(self, site: HelperSite, caller: Caller, nodes: JobNodes) -> None:
        self._site = site
        self._caller = caller
        self._nodes = nodes
        self._srun: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._errors = b""
        self._absent = 1
        self._reports: list[dict[str, Any]] = []
        self._asked = 0
        self._last_error = ""

    @property
    def numbers(self) -> range:
        return range(1, len(self._nodes.others) + 1)

    def start(self, port: int) -> list[dict[str, Any]]:
        """Start the attendants and return their first reports. RequestRefused if one does not
        answer in time.
        """
        self.close()
        facts = {
            "address": self._nodes.first.address, "port": port,
            "nodes": [node.name for node in self._nodes.others],
        }  # fmt: skip
        JobStore(self._site, self._caller.job).replace(FACTS, json.dumps(facts).encode(), 0o600)
        self._unread, self._errors, self._last_error = b"", b"", ""
        self._reports, self._asked = [], 0
        self._srun = self._started()
        for pipe in (self._srun.stdin, self._srun.stdout, self._srun.stderr):
            if pipe:
                # A node that stands still must not block the save of the others.
                os.set_blocking(pipe.fileno(), False)
        return self._answers("hello", _START_TIMEOUT_S)

    def _started(self) -> subprocess.Popen[bytes]:
        names = ",".join(node.name for node in self._nodes.others)
        count = str(len(self._nodes.others))
        srun = [
            self._site.program("srun"), f"--jobid={self._caller.job}",
            f"--nodes={count}", f"--ntasks={count}", f"--nodelist={names}", *_SRUN,
            self._site.sudo, "-n", os.path.realpath(sys.argv[0]), "attend",
        ]  # fmt: skip
        try:
            # ``calm``: srun would inherit our blocked signals and could not be ended by them.
            return subprocess.Popen(
                srun, env=self._environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, preexec_fn=calm, start_new_session=True,
                user=self._caller.uid, group=self._caller.gid, extra_groups=self._caller.groups,
                cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise RequestRefused(f"{srun[0]}: {error.strerror}") from error

    def _environment(self) -> dict[bytes, bytes]:
        """Return srun's variables: the job's, without its options for steps."""
        # Others, such as SLURM_NTASKS or SLURM_CPU_BIND, are options for srun (srun(1)).
        kept = {b"SLURM_CONF", b"SLURM_JOB_ID", b"SLURM_JOBID"}
        pairs = self._caller.environment.items()
        environment = {k: v for k, v in pairs if not k.startswith(b"SLURM_") or k in kept}
        if self._site.slurm_conf:
            environment[b"SLURM_CONF"] = os.fsencode(self._site.slurm_conf)
        return environment

    def send(self, order: Mapping[str, object]) -> None:
        """Give all attendants an order. RequestRefused if they cannot be reached."""
        line = json.dumps({"id": self._asked, **order}).encode() + b"\n"
        if self._srun is None or self._srun.stdin is None:
            raise RequestRefused("the job's other nodes do not answer")
        try:
            _write(self._srun.stdin.fileno(), line)
        except OSError as error:
            raise RequestRefused(f"the job's other nodes do not answer: {self._why()}") from error

    def ask(self, order: Mapping[str, object]) -> list[dict[str, Any]]:
        """Give an order and return the answers of all. RequestRefused if one does not come in time,
        or is a refusal.
        """
        self._asked += 1
        self.send(order)
        return self._answers("done", _LOOK_TIMEOUT_S)

    def _answers(self, event: str, within: float) -> list[dict[str, Any]]:
        until = time.monotonic() + within
        answers: dict[int, dict[str, Any]] = {}
        while True:
            for report in self._read():
                if report["event"] == event and report.get("id") == self._asked:
                    answers[report["node"]] = report
                else:
                    self._reports.append(report)
            if len(answers) == len(self._nodes.others):
                break
            # After the answers, because a suspended job reads them late.
            if self.has_ended or time.monotonic() > until:
                self._absent = next(n for n in self.numbers if n not in answers)
                raise RequestRefused(f"{self.name(self._absent)} does not answer: {self._why()}")
            time.sleep(_POLL_EVERY_S)
        for number, answer in sorted(answers.items()):
            if answer.get("refused"):
                raise RequestRefused(f"{self.name(number)}: {answer['refused']}")
        return [answers[number] for number in self.numbers]

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports that came without a question since the last call."""
        reports, self._reports = [*self._reports, *self._read()], []
        return reports

    @property
    def has_ended(self) -> bool:
        """Whether the step has ended, as with the loss of all of its nodes."""
        return self._srun is None or self._srun.poll() is not None

    def lost(self) -> str:
        """Return the name of a node that does not answer now; "" if all do."""
        if self._srun is None:
            return ""
        try:
            self.ask({"do": "answer"})
        except RequestRefused:
            return self.name(self._absent)
        return ""

    def name(self, number: int) -> str:
        """Return the Slurm name of a node by its number."""
        return self._nodes.others[number - 1].name

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield new reports; pass on the lines that programs of the job write there."""
        if self._srun is None or self._srun.stdout is None or self._srun.stderr is None:
            return
        *lines, self._unread = (self._unread + _available(self._srun.stdout.fileno())).split(b"\n")
        *errors, self._errors = (self._errors + _available(self._srun.stderr.fileno())).split(b"\n")
        self._pass_on(errors)
        if max(len(self._unread), len(self._errors)) > _MAX_LINE_BYTES:
            # A program that writes without a newline must not take our memory.
            self._unread = self._errors = b""
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                report = dict(files.json_of(line))
                number, _ = int(report["node"]), str(report["event"])
                if number in self.numbers:
                    yield report | {"node": number}

    def _pass_on(self, lines: list[bytes]) -> None:
        """Write the programs' lines to the job's standard error; keep srun's and sudo's."""
        for line in lines:
            if line.startswith(_OURS):
                self._last_error = line.decode(errors="replace")
            else:
                with contextlib.suppress(OSError):
                    os.write(2, line + b"\n")

    def _why(self) -> str:
        return self._last_error or ("its step has ended" if self.has_ended else "no answer in time")

    def close(self) -> None:
        """End the attendants, and all processes that they started."""
        if self._srun is None:
            return
        srun, self._srun = self._srun, None
        with contextlib.suppress(OSError):
            if srun.stdin:
                # Its end is the attendants' sign to end by themselves.
                srun.stdin.close()
        try:
            rest = _wait(srun, _END_TIMEOUT_S)
            *lines, last = (self._errors + rest).split(b"\n")
            self._errors = b""
            self._pass_on([*lines, last] if last else lines)
        finally:
            srun.kill()
            srun.wait()
            for pipe in (srun.stdout, srun.stderr):
                if pipe:
                    pipe.close()


def _write(descriptor: int, content: bytes) -> None:
    """Write the whole content. OSError if the reader takes nothing for a long time."""
    until = time.monotonic() + _LOOK_TIMEOUT_S
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_EVERY_S)


def _available(descriptor: int) -> bytes:
    content = b""
    with contextlib.suppress(OSError):
        while block := os.read(descriptor, _BLOCK_BYTES):
            content += block
    return content


def _wait(srun: subprocess.Popen[bytes], within: float) -> bytes:
    """Wait for the end of ``srun``, at most ``within`` seconds. Return the end of its error output.

    The output is read all the time, because a full pipe would stop srun.
    """
    until, errors = time.monotonic() + within, b""
    while True:
        has_ended = srun.poll() is not None or time.monotonic() > until
        if srun.stdout:
            _available(srun.stdout.fileno())
        if srun.stderr:
            errors = (errors + _available(srun.stderr.fileno()))[-_MAX_LINE_BYTES:]
        if has_ended:
            return errors
        time.sleep(_POLL_EVERY_S)
