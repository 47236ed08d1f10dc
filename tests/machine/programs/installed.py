"""The programs as ``conf install`` leaves them, and how slurmctld runs them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from patience import patience

from benchmarks.small_slurm import INSTALLED, PROGRAMS


class Installed:
    """A programs directory with its ``settings``, and a state directory."""

    def __init__(self, root: Path) -> None:
        self.programs = root / "programs"
        self.state = root / "state"
        self.programs.mkdir()
        (self.state / "requests").mkdir(parents=True)
        for name, source in INSTALLED.items():
            shutil.copy(PROGRAMS / source, self.programs / name)
            (self.programs / name).chmod(0o755)
        self.settings()

    def settings(self, *lines: str, keep: bool = True) -> None:
        """Write the settings: the usual ones (if ``keep``) and these."""
        usual = [
            f"state_dir={self.state}",
            "partitions=onprem cloud",
            "site_prolog=",
            "site_epilog=",
            "prolog_timeout=60",
            "python=/usr/bin/python3",
        ]
        text = "".join(f"{line}\n" for line in (*(usual if keep else ()), *lines))
        (self.programs / "settings").write_text(text)

    def start(
        self,
        program: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        blocked: Sequence[signal.Signals] = (),
    ) -> subprocess.Popen[bytes]:
        """Start one as slurmctld does: nearly no environment, no PATH, maybe signals blocked."""

        def block() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)

        return subprocess.Popen(
            [str(self.programs / program), *arguments],
            env=dict(env or {}),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=block if blocked else None,
        )

    def run(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run one to its end; its exit code and what it said on stderr."""
        process = self.start(program, *arguments, env=env)
        _, said = process.communicate(timeout=patience(60))
        return process.returncode, said.decode()


def job(number: int = 7, *, nodes: str = "pub[1-2]", partition: str = "cloud") -> dict[str, str]:
    """The variables by which slurmctld tells a prolog of a job."""
    return {
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_PARTITION": partition,
        "SLURM_SCRIPT_CONTEXT": "prolog_slurmctld",
    }


def modules_of(source: str) -> set[str]:
    """The modules that Debian's Python has loaded once it has loaded this program."""
    code = (
        f"import sys; names = {{'__name__': 'program'}}; "
        f"exec(open({str(PROGRAMS / source)!r}).read(), names); print(*sys.modules)"
    )
    command = ["/usr/bin/python3", "-IS", "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
