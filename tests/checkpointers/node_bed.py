"""A node's side of the launcher without Slurm: the root part's session, with a squeue of ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from patience import patience

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.protocols import Checkpointer
from slurm_elastic.slurm.hooks.launcher import launchers
from tests.machine.ckptroot.helpers import node_home
from tests.machine.ckptroot.squeue_stand_in import answer, write_squeue

USER = 65534
PATIENCE = 60.0

NODE = """
import sys
from pathlib import Path
from slurm_elastic.machine.ckptroot import starting
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.image_wait import RunEnded
from slurm_elastic.machine.ckptroot.session import finish
from slurm_elastic.machine.ckptroot.signals import block
from slurm_elastic.machine.ckptroot.site import HelperSite
import os, signal
home, job = Path(sys.argv[1]), int(sys.argv[2])
site = HelperSite(cluster="t", directory=home / "shared", key=b"k" * 64, reader=(0, 0), poll=0.05,
            hold=float(sys.argv[3]), dmtcp=sys.argv[4], scontrol=str(home / "bin" / "scontrol"),
            scratch=home / "run", slurmstepd="/none")
block()
environment = {b"PROGRESS": os.fsencode(home / "user" / f"progress-{job}"), b"PATH": b"/usr/bin:/bin"}
caller = Caller(job=job, uid=65534, gid=65534, user="nobody", groups=(65534,), environment=environment)
argv = [str(home / "slurm_script"), "a", "b c"]
os.chdir(home / "user")
try:
    status = starting.drive(*starting.begin(site, caller, 0o22, "dmtcp", argv))
except RunEnded:
    status = int(signal.SIGTERM)
sys.exit(finish(status))
"""

SCRIPT = """#!/usr/bin/python3
import os, time
from pathlib import Path
progress = Path(os.environ["PROGRESS"])
step = int(progress.read_text() or "0")
while not Path(os.environ["PROGRESS"] + ".end").exists():
    print("step", step, flush=True)
    step += 1
    new = Path(f"{progress}.{os.getpid()}")
    new.write_text(str(step))
    new.rename(progress)
    time.sleep(0.05)
raise SystemExit(7)
"""


class NodeBed:
    """Jobs 7 and 8 of user nobody under the launcher, by DMTCP's stand-in or the one in ``dmtcp``."""

    def __init__(
        self, hold: float = 600.0, *, ignored_children: bool = False, script: str = SCRIPT,
        dmtcp: Path | None = None,
    ) -> None:  # fmt: skip
        self.before = (
            (lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) if ignored_children else None
        )
        self.home = node_home()
        self.hold = hold
        self.dmtcp = dmtcp or self.home / "bin"
        self.jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.attempts: dict[int, int] = {}
        write_squeue(self.home / "bin" / "squeue", f"{self.home}/slurm-$job")
        launcher = launchers("/nowhere")["dmtcp"]
        (self.home / "slurm_script").write_text(launcher + script)
        (self.home / "slurm_script").chmod(0o755)
        self.checkpointer: Checkpointer = self.reopen()

    def stop(self) -> None:
        """Kill all jobs."""
        for job, process in self.jobs.items():
            self.say(job, "CANCELLED")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.jobs.clear()

    def close(self) -> None:
        self.stop()

        def removed() -> bool:  # a payload that is being killed may write its last step
            shutil.rmtree(self.home, ignore_errors=True)
            return not self.home.exists()

        self.wait(removed, "the directory is gone")

    def reopen(self) -> Checkpointer:
        return LaunchedCheckpointer("dmtcp", self.home / "shared/t", poll=0.05)

    def say(self, job: int, state: str) -> None:
        """Have slurmctld say this of the job from now on."""
        restarts = self.attempts.get(job, 0)
        new = self.home / f"slurm-{job}.new"
        new.write_text(answer(state, USER, restarts))
        new.rename(self.home / f"slurm-{job}")

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        """The job, started if it does not run; for another attempt it is requeued first."""
        if job in self.jobs and self.attempts[job] != attempt:
            self.requeue(job, attempt)
        if job not in self.jobs:
            self.attempts[job] = attempt
            self.say(job, "RUNNING")
            self.start(job)
        return JobRun(
            job=job, label=str(job), attempt=attempt, user="nobody", uid=USER, gid=USER,
            nodes=("n1",), partition="p", started=0.0,
        )  # fmt: skip

    def start(self, job: int) -> None:
        """As slurmstepd does: a fresh, empty output."""
        self.launch(job)
        attempt = self.attempts[job]
        self.wait(lambda: self.status(job).get("attempt") == attempt, "the launcher answers")

    def launch(self, job: int) -> None:
        """``start``, without waiting for the launcher."""
        command = [sys.executable, "-c", NODE, str(self.home), str(job)]
        command += [str(self.hold), str(self.dmtcp)]
        self.output_path(job).unlink(missing_ok=True)
        with open(self.output_path(job), "ab") as output:
            os.chown(self.output_path(job), USER, USER)
            self.jobs[job] = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, preexec_fn=self.before,
            )  # fmt: skip

    def requeue(self, job: int, attempt: int) -> None:
        self.attempts[job] = attempt
        self.say(job, "COMPLETING")
        self.jobs[job].send_signal(signal.SIGTERM)
        self.jobs.pop(job).wait(PATIENCE)

    def end(self, job: int) -> int:
        """Let the payload end by itself; the exit code of the batch step."""
        (self.home / "user" / f"progress-{job}.end").touch()
        return self.jobs[job].wait(PATIENCE)

    def terminate(self, job: int) -> None:
        """SIGTERM to the session and to its payload, as to all processes of a step or a machine."""
        pid = self.jobs[job].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            os.kill(one, signal.SIGTERM)

    def output_path(self, job: int) -> Path:
        return self.home / "user" / f"out-{job}"

    def steps(self, job: int) -> list[int]:
        lines = self.output_path(job).read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("step ")]

    def status(self, job: int) -> dict[str, object]:
        try:
            found: dict[str, object] = json.loads(
                (self.home / "shared" / "t" / str(job) / "status.json").read_text()
            )
        except OSError:
            return {}
        return found

    def works(self, run: JobRun) -> bool:
        """Whether it takes a step: seen within patience, or none in a good while."""
        before = len(self.steps(run.job))
        until = time.monotonic() + (
            patience(PATIENCE) if self.status(run.job)["state"] == "running" else 1.0
        )
        while time.monotonic() < until:
            if len(self.steps(run.job)) > before:
                return True
            time.sleep(0.05)
        return False

    def spoil(self, image: Image) -> None:
        path = next(Path(image.path).glob("ckpt_*"))
        os.truncate(path, path.stat().st_size - 1)

    def stick(self, run: JobRun) -> None:
        (self.home / "user" / f"progress-{run.job}.stuck").touch()

    def sabotage(self, job: int, python: str) -> None:
        """Have the user's processes run this in ``directory`` beside each image that is saved."""
        (self.home / "user" / f"progress-{job}.hostile").write_text(f"import os\n{python}")

    def payload(self, job: int) -> int:
        """The pid of its first process."""
        pid = self.jobs[job].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # nft is a child, too: it keeps the coordinator's port.
        found = (one for one in children if Path(f"/proc/{one}/comm").read_text() != "nft\n")
        return int(next(found))

    def wait(self, condition: object, what: str) -> None:
        until = time.monotonic() + patience(PATIENCE)
        assert callable(condition)
        while not condition():
            assert time.monotonic() < until, f"not in {PATIENCE:g} s: {what}"
            time.sleep(0.05)
