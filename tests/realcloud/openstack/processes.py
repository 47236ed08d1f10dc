"""The processes of a control plane: started in its directory, waited for, ended by pid."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from patience import patience, pause

from .settings import Place

READY = 300.0
"""Seconds a service may take; far more than it needs, as the machine may be busy."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class BrokenError(AssertionError):
    """Something did not come up although the machine has all that it needs."""


class Processes:
    """By name; each is a session of its own and writes to the log of its name."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def names(self) -> list[str]:
        """The services that were started, in this order."""
        return list(self._running)

    def start(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> None:
        """Start one that stays; ``more`` goes into its environment."""
        with (self._place.log / f"{name}.log").open("ab") as out:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env(more),
                cwd=self._place.dir,
                start_new_session=True,
            )

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Until it is; BrokenError where it ends or does not get there."""
        began = time.monotonic()
        until = began + patience(READY)
        while not ready():
            if self._running[name].poll() is not None:
                raise BrokenError(f"{name} ended at once\n{self.tails()}")
            if time.monotonic() > until:
                raise BrokenError(f"{name} does not answer after {READY:g} s\n{self.tails()}")
            pause(began, 0.2)

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run one that ends by itself; BrokenError with its words where it fails."""
        done = subprocess.run(
            command,
            env=self._env({}),
            cwd=self._place.dir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READY,
            check=False,
        )
        (self._place.log / f"{name}.log").write_bytes(done.stdout + done.stderr)
        if done.returncode != 0:
            text = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise BrokenError(f"{name} ended with {done.returncode}: {text[-1500:]}")

    def manage(self, program: str, *words: str, config: str) -> None:
        """Run a service's program for administrators, with a file of its configuration."""
        name = "-".join([program, *words[:2]])
        self.run(name, [program, "--config-file", str(self._place.etc / config), *words])

    def end(self, names: Iterable[str]) -> list[int]:
        """SIGTERM to each and its children, SIGKILL to those that stay; what they ended with."""
        some = [self._running.pop(name) for name in names if name in self._running]
        for process in some:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + patience(15.0)
        for process in some:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait(patience(30))
            # What a service has started itself and did not take along.
            _signal(process, signal.SIGKILL)
        return [process.returncode for process in some]

    def tails(self, lines: int = 15) -> str:
        """The last lines of each log."""
        logs = sorted(self._place.log.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            for log in logs
        )

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        base = {
            "PATH": f"{self._place.venv / 'bin'}:{PATH}",
            "LANG": "C.UTF-8",
            "HOME": str(self._place.dir),
        }
        return base | {"PYTHONWARNINGS": "ignore"} | dict(more)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
