"""Using the cluster of a sandbox: commands, submissions, and waiting for what they lead to."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from slurm_elastic.base.errors import SandboxError, SlurmElasticError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.slurm.client.cli import SlurmCli

T = TypeVar("T")
BUSY = 60.0
"""Seconds for which a read is repeated while slurmctld is too busy to answer."""
PATIENCE_SHARE, LONGEST_PAUSE = 0.1, 1.0
"""The share of the time waited already that may pass until the next look (s, at most)."""
_NO_ANSWER = ("timed out", "no answer in", "Zero Bytes were transmitted")
_FIELD = re.compile(r"(?:^|\s)(\w[\w:/]*)=")


class Shell:
    """The commands of a user or an admin of the sandbox's cluster."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.slurm = SlurmCli(SlurmSettings(conf=str(layout.slurm_conf)))

    @property
    def work(self) -> Path:
        """A directory in which everybody may write: where jobs are submitted from."""
        return self.layout.dir / "work"

    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands and ours speak to this sandbox."""
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
        """Run a command in ``env`` and ``work``, output captured.

        SandboxError if it does not end in ``timeout`` seconds or, with ``check``, if it fails.
        """
        words = " ".join(command)
        try:
            done = subprocess.run(
                [*_as(user), *command],
                env=self.env(),
                cwd=self.work,
                input=stdin or "",
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{words}: no answer in {timeout:g} s") from None
        if check and done.returncode != 0:
            raise SandboxError(f"{words}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def submit(self, script: str, *options: str, user: str = "nobody") -> int:
        """``sbatch`` as that user; the job's id. A ``script`` without ``#!`` is one command."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        done = self.run(["sbatch", "--parsable", *options], user=user, stdin=text)
        return int(done.stdout.strip().partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """``scontrol show job``, field by field; finished jobs are known for MinJobAge."""
        command = ["scontrol", "--oneliner", "show", "job", str(job)]
        return fields(_answered(lambda: self.run(command)).stdout)

    def jobs(self) -> Sequence[SlurmJob]:
        """All jobs of the queue."""
        return _answered(self.slurm.jobs)

    def nodes(self) -> Mapping[str, SlurmNode]:
        """All nodes by name."""
        return _answered(self.slurm.nodes)

    def wait_for(
        self, condition: Callable[[], T], timeout: float, what: str, period: float = 0.2
    ) -> T:
        """Poll until ``condition`` is true; its value. SandboxError after ``timeout`` seconds.

        First every ``period`` seconds, then more rarely.
        """
        began = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - began
            if waited >= timeout:
                raise SandboxError(f"not within {timeout:g} s: {what}")
            # By and by more rarely: most looks start a command.
            time.sleep(max(period, min(waited * PATIENCE_SHARE, LONGEST_PAUSE)))
        return value

    def wait_job(self, job: int, *states: str, timeout: float = 180.0) -> dict[str, str]:
        """Wait until the job is in one of ``states`` (COMPLETED if none is named); its fields."""
        wanted = states or ("COMPLETED",)

        def reached() -> dict[str, str] | None:
            now = self.job(job)
            return now if now["JobState"] in wanted else None

        return self.wait_for(reached, timeout, f"job {job} is {' or '.join(wanted)}") or {}

    def log_tails(self, lines: int = 15) -> str:
        """The last lines of every log, for an error report."""
        parts = []
        for path in sorted(self.layout.log.glob("*")):
            text = path.read_text(errors="replace").splitlines()[-lines:]
            # Slurm's daemons in the foreground say everything twice, once they can write their log.
            own = path.with_suffix(".log")
            twice = path.suffix == ".out" and own.exists() and own.stat().st_size > 0
            if text and not twice:
                parts.append("\n".join([f"--- {path.name}", *text]))
        return "\n".join(parts)


def fields(line: str) -> dict[str, str]:
    """One line of ``scontrol --oneliner``: ``Name=value Name=value with blanks``."""
    starts = list(_FIELD.finditer(line))
    ends = [m.start() for m in starts[1:]] + [len(line)]
    return {m[1]: line[m.end() : end].strip() for m, end in zip(starts, ends, strict=True)}


def _answered(read: Callable[[], T]) -> T:
    """Read from Slurm; again for up to BUSY seconds where the answer was late, no refusal."""
    until = time.monotonic() + BUSY
    while True:
        try:
            return read()
        except SlurmElasticError as error:
            late = any(words in str(error) for words in _NO_ANSWER)
            if not late or time.monotonic() >= until:
                raise
        time.sleep(0.5)


def _as(user: str | None) -> list[str]:
    if user is None:
        return []
    try:
        who = pwd.getpwnam(user)
    except KeyError:
        raise SandboxError(f"there is no user {user!r} on this host") from None
    return ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
