"""Uses the cluster of a sandbox: runs commands, submits jobs, and waits for their results."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from slurm_elastic.base.errors import SandboxError, SlurmElasticError, is_busy
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.slurm.client.cli import SlurmCli

T = TypeVar("T")
BUSY_S = 60.0
"""Seconds for which a read is retried while slurmctld is too busy to answer."""
PAUSE_SHARE, MAX_PAUSE_S = 0.1, 1.0
"""The pause before the next look, as a share of the time waited so far, and its maximum in s."""
_FIELD = re.compile(r"(?:^|\s)(\w[\w:/]*)=")


class Shell:
    """The commands of a user or an admin of the sandbox's cluster."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.slurm = SlurmCli(SlurmSettings(conf=str(layout.slurm_conf)))

    @property
    def work(self) -> Path:
        """The directory from which jobs are submitted. All users may write there."""
        return self.layout.dir / "work"

    def env(self) -> dict[str, str]:
        """Return the environment with which Slurm's commands and ours use this sandbox."""
        return self.layout.user_env(os.environ)

    def run(
        self,
        command: Sequence[str],
        *,
        user: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the directory ``work`` with ``env``, and capture its output.

        Raises SandboxError if it does not end in ``timeout`` seconds or, with ``check``, if it
        fails.
        """
        command_text = " ".join(command)
        try:
            done = subprocess.run(
                [*_as_user(user), *command],
                env=self.env(),
                cwd=self.work,
                input=stdin or "",
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{command_text}: no answer in {timeout:g} s") from None
        if check and done.returncode != 0:
            raise SandboxError(f"{command_text}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def submit(self, script: str, *options: str, user: str = "nobody") -> int:
        """Submit a job as that user. Returns its id. A ``script`` without ``#!`` is one command."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        done = self.run(["sbatch", "--parsable", *options], user=user, stdin=text)
        return int(done.stdout.strip().partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """Return the fields of ``scontrol show job``. Ended jobs are known for MinJobAge."""
        command = ["scontrol", "--oneliner", "show", "job", str(job)]
        return fields(_read_with_retries(lambda: self.run(command)).stdout)

    def jobs(self) -> Sequence[SlurmJob]:
        """Return all jobs of the queue."""
        return _read_with_retries(self.slurm.jobs)

    def nodes(self) -> Mapping[str, SlurmNode]:
        """Return all nodes by name."""
        return _read_with_retries(self.slurm.nodes)

    def wait_for(
        self, condition: Callable[[], T], timeout: float, what: str, period: float = 0.2
    ) -> T:
        """Poll until ``condition`` is true, and return its value. Polls every ``period`` seconds at
        first, and less often later. Raises SandboxError after ``timeout`` seconds.
        """
        started_at = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - started_at
            if waited >= timeout:
                raise SandboxError(f"not within {timeout:g} s: {what}")
            # Poll less often with time, because most conditions start a command.
            time.sleep(max(period, min(waited * PAUSE_SHARE, MAX_PAUSE_S)))
        return value

    def wait_job(self, job: int, *states: str, timeout: float = 180.0) -> dict[str, str]:
        """Wait until the job is in one of ``states`` (default: COMPLETED). Returns its fields.
        Raises SandboxError.
        """
        expected = states or ("COMPLETED",)

        def reached() -> dict[str, str] | None:
            now = self.job(job)
            return now if now["JobState"] in expected else None

        return self.wait_for(reached, timeout, f"job {job} is {' or '.join(expected)}") or {}

    def log_tails(self, lines: int = 15) -> str:
        """Return the last lines of every log, for an error report."""
        sections = []
        for path in sorted(self.layout.log.glob("*")):
            text = path.read_text(errors="replace").splitlines()[-lines:]
            # In the foreground, Slurm's daemons write all messages to their output and to their
            # log. Skip the output if the log exists.
            own_log = path.with_suffix(".log")
            is_duplicate = path.suffix == ".out" and own_log.exists() and own_log.stat().st_size > 0
            if text and not is_duplicate:
                sections.append("\n".join([f"--- {path.name}", *text]))
        return "\n".join(sections)


def fields(line: str) -> dict[str, str]:
    """Split a line of ``scontrol --oneliner``: ``Name=value Name=value with blanks``."""
    starts = list(_FIELD.finditer(line))
    ends = [m.start() for m in starts[1:]] + [len(line)]
    return {m[1]: line[m.end() : end].strip() for m, end in zip(starts, ends, strict=True)}


def _read_with_retries(read: Callable[[], T]) -> T:
    """Read from Slurm. Retry for up to BUSY_S seconds if slurmctld was too busy to answer."""
    give_up_at = time.monotonic() + BUSY_S
    while True:
        try:
            return read()
        except SlurmElasticError as error:
            if not is_busy(error) or time.monotonic() >= give_up_at:
                raise
        time.sleep(0.5)


def _as_user(user: str | None) -> list[str]:
    if user is None:
        return []
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise SandboxError(f"there is no user {user!r} on this host") from None
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
