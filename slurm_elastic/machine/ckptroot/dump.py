"""Run CRIU for one save: its options, the size limit, and the reason of a failure.

CRIU enters the job's mounts, process numbers and clocks. It enters the job's System V IPC only if
that is empty, because CRIU saves the namespaces that it is not in itself. We never kill CRIU,
because the tasks would not survive that. We limit its image by errors that look to it like a full
disk; CRIU then lets the tasks continue.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import capabilities, files, image_access
from .caller import CLEAN, Caller
from .payload import calm
from .proc import family
from .quota import allocated
from .site import RequestRefused

_MAX_LOG_CHARACTERS = 16 << 20
"""How many characters of CRIU's log we search."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
KNOWN_KERNEL = Path("/run/criu.kdat")
CHECK_EVERY_S = 0.1
"""Seconds between two checks of the image's size. A fast disk writes some hundred MiB in this
time.
"""
_CHECK_SHARE = 0.1
"""The share of the time that these checks may take."""


@dataclass(frozen=True)
class Dump:
    """A save of the process ``pid``, as numbered in the namespaces ``inside``.

    ``inside``: descriptors by their option names in nsenter(1).
    """

    program: str
    caller: Caller
    pid: int
    inside: Mapping[str, int]
    options: tuple[str, ...]

    @property
    def has_sysv(self) -> bool:
        """Whether CRIU must save the job's System V IPC."""
        return "ipc" not in self.inside

    def run(self, image: Path, log: Path, max_bytes: int) -> None:
        """Save as root, without opening a file by a path of the job. RequestRefused if
        that fails.
        """
        rights = capabilities.dumper(self.caller, self.has_sysv)
        where = ("-D", str(image), "-W", str(log.parent), "-o", log.name)
        self._run([*rights, *self._command(), *where], image, log, max_bytes)

    def run_as_user(self, image: Path, log: Path, max_bytes: int) -> None:
        """Save as the job's user, for files whose names have changed since they were opened.

        For these files CRIU creates links at paths of the job. As the user, it can create only
        links that the user could.
        """
        caller = self.caller
        rights = capabilities.own_dumper(caller, self.has_sysv)
        with files.held(log, _NEW) as log_file, image_access.handed(image, caller.uid) as place:
            where = ("--unprivileged", "--link-remap", "-D", f"/proc/self/fd/{place}", "-W", "/")
            command = [*rights, *self._command(), *where]
            self._run(command, image, log, max_bytes, handed=(place,), log_file=log_file)

    def _command(self) -> list[str]:
        return [self.program, "dump", "-t", str(self.pid), "--network-lock", "skip",
                "--leave-stopped", *self.options]  # fmt: skip

    def _run(
        self, command: list[str], image: Path, log: Path, max_bytes: int,
        handed: tuple[int, ...] = (), log_file: int | None = None,
    ) -> None:  # fmt: skip
        enter = [f"--{kind}=/proc/self/fd/{number}" for kind, number in self.inside.items()]
        full_command = ["/usr/bin/nsenter", *enter, "--", *command]
        code, is_too_large = run(
            full_command, (*self.inside.values(), *handed), image, max_bytes, log_file
        )
        if code != 0 and is_too_large:
            raise RequestRefused(f"no room: the image would have more than {max_bytes >> 20} MiB")
        if code != 0:
            raise RequestRefused(f"criu dump: exit {code}: {last_error(log)}")


def last_error(log: Path) -> str:
    """Return the first error in CRIU's log, which is the cause of the later ones."""
    with (
        contextlib.suppress(OSError, RequestRefused),
        open(files.opened(log), errors="replace") as file,
    ):
        for line in file.read(_MAX_LOG_CHARACTERS).splitlines():
            # The error about CRIU's own limit of open files is harmless, and comes first.
            if "Error (" in line and "RLIMIT_NOFILE" not in line:
                return line.partition("Error ")[2][:300]
    return "no error in its log"


def know_kernel(program: str) -> None:
    """Have CRIU check the kernel first, as plain root.

    It stores the result in /run, makes a network namespace for the check, and asks libnftables.
    """
    if not KNOWN_KERNEL.exists():
        # During a save the real user may be another, and libnftables would end CRIU at once.
        run_silently([program, "check"])


def run_silently(command: list[str], *handed: int) -> int:
    """Run a program without output and return its exit code."""
    return subprocess.run(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False, preexec_fn=calm, pass_fds=handed,
    ).returncode  # fmt: skip


def run(
    command: list[str],
    pass_fds: tuple[int, ...],
    image: Path,
    max_bytes: int,
    log_file: int | None = None,
) -> tuple[int, bool]:
    """Run CRIU; return its exit code, and whether it was stopped because ``image`` exceeds
    ``max_bytes``.

    Its messages go to the descriptor ``log_file``, if there is one.
    """

    def before() -> None:
        calm()
        # Ignore the signal, which would kill CRIU. Then the limit on each file's length
        # (setrlimit(2)) looks to CRIU like a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done, over = threading.Event(), threading.Event()
    with subprocess.Popen(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if log_file is None else log_file, preexec_fn=before,
        pass_fds=pass_fds,
    ) as process:  # fmt: skip
        # The limit holds for each file, but a job may have thousands of processes with files of
        # their own in the image. The watcher checks the total, and stops all growth when it is too
        # large.
        watcher = threading.Thread(
            target=watch, args=(process.pid, image, max_bytes, done, over), daemon=True
        )
        watcher.start()
        code = process.wait()
    done.set()
    watcher.join()
    return code, over.is_set()


def watch(
    pid: int, image: Path, max_bytes: int, done: threading.Event, over: threading.Event
) -> None:
    """Stop CRIU's writing when the image exceeds ``max_bytes``."""
    pause = CHECK_EVERY_S
    while not done.wait(pause):
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            # An error here is harmless: the size is checked again when the image is complete.
            if allocated(image) > max_bytes:
                over.set()
        if over.is_set():  # at each check: CRIU may have started more processes
            for process in family(pid):
                # EPERM without CAP_SYS_RESOURCE, as in containers. The limit of each file still
                # holds.
                with contextlib.suppress(OSError, ValueError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, 0))
        pause = max(CHECK_EVERY_S, (time.monotonic() - begun) / _CHECK_SHARE)
