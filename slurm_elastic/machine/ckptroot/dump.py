"""Runs CRIU for one save: its options, how much it may write, and why it failed.

CRIU enters the job's mounts, process numbers and clocks, and its System V IPC if that is empty:
CRIU saves those namespaces that it is not in itself. We never kill it, as its victims would not
survive that. Its image is bounded by what looks to it like a full disk: then it lets the tasks go
on.
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
from .site import Refused

_LOG = 16 << 20
"""How many characters of CRIU's log we look through."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
KNOWN_KERNEL = Path("/run/criu.kdat")
LOOK = 0.1
"""Seconds between two looks at the image; a fast disk takes some hundred MiB meanwhile."""
_PART = 0.1
"""The share of the time that looks may take."""


@dataclass(frozen=True)
class Dump:
    """A save of the process that has the number ``pid`` in the namespaces ``inside``: descriptors,
    by their names in nsenter(1).
    """

    program: str
    caller: Caller
    pid: int
    inside: Mapping[str, int]
    options: tuple[str, ...]

    @property
    def has_sysv(self) -> bool:
        """Whether CRIU is to save the job's System V IPC."""
        return "ipc" not in self.inside

    def run(self, image: Path, log: Path, most: int) -> None:
        """Save as root, which opens nothing by the job's paths; Refused if that fails."""
        rights = capabilities.dumper(self.caller, self.has_sysv)
        where = ("-D", str(image), "-W", str(log.parent), "-o", log.name)
        self._run([*rights, *self._words(), *where], image, log, most)

    def run_as_user(self, image: Path, log: Path, most: int) -> None:
        """Save as the job's user. CRIU makes links by the job's paths, for files whose names have
        changed since they were opened; it can make none that the user could not make himself.
        """
        caller = self.caller
        rights = capabilities.own_dumper(caller, self.has_sysv)
        with files.held(log, _NEW) as said, image_access.handed(image, caller.uid) as place:
            where = ("--unprivileged", "--link-remap", "-D", f"/proc/self/fd/{place}", "-W", "/")
            command = [*rights, *self._words(), *where]
            self._run(command, image, log, most, handed=(place,), said=said)

    def _words(self) -> list[str]:
        return [self.program, "dump", "-t", str(self.pid), "--network-lock", "skip",
                "--leave-stopped", *self.options]  # fmt: skip

    def _run(
        self, command: list[str], image: Path, log: Path, most: int,
        handed: tuple[int, ...] = (), said: int | None = None,
    ) -> None:  # fmt: skip
        enter = [f"--{kind}=/proc/self/fd/{number}" for kind, number in self.inside.items()]
        words = ["/usr/bin/nsenter", *enter, "--", *command]
        done, over = run(words, (*self.inside.values(), *handed), image, most, said)
        if done != 0 and over:
            raise Refused(f"no room: the image would have more than {most >> 20} MiB")
        if done != 0:
            raise Refused(f"criu dump: exit {done}: {last_error(log)}")


def last_error(log: Path) -> str:
    """The first error in CRIU's log, which is the cause of the others."""
    with contextlib.suppress(OSError, Refused), open(files.opened(log), errors="replace") as file:
        for line in file.read(_LOG).splitlines():
            # Its error about its own limit of open files does no harm, and comes first.
            if "Error (" in line and "RLIMIT_NOFILE" not in line:
                return line.partition("Error ")[2][:300]
    return "no error in its log"


def know_kernel(program: str) -> None:
    """Have CRIU check the kernel first, as plain root: it keeps what it finds in /run, makes a
    network namespace for it, and asks libnftables.
    """
    if not KNOWN_KERNEL.exists():
        # Under the rights of a save the real user may be another, and libnftables would end it at
        # once.
        quietly([program, "check"])


def quietly(command: list[str], *handed: int) -> int:
    """The exit code of a program whose output nobody reads."""
    return subprocess.run(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False, preexec_fn=calm, pass_fds=handed,
    ).returncode  # fmt: skip


def run(
    command: list[str], pass_fds: tuple[int, ...], image: Path, most: int, said: int | None = None
) -> tuple[int, bool]:
    """Its exit code, and whether it was stopped because ``image`` has more than ``most`` bytes. Its
    messages go to the descriptor ``said``, if there is one.
    """

    def before() -> None:
        calm()
        # Without the signal, which would kill CRIU, the limit on each file's length (setrlimit(2))
        # looks to it like a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done, over = threading.Event(), threading.Event()
    with subprocess.Popen(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if said is None else said, preexec_fn=before,
        pass_fds=pass_fds,
    ) as process:  # fmt: skip
        # A job may have thousands of processes with files of their own in the image, each of them
        # below that limit: once all are too large, no file may grow any more.
        looks = threading.Thread(
            target=watch, args=(process.pid, image, most, done, over), daemon=True
        )
        looks.start()
        code = process.wait()
    done.set()
    looks.join()
    return code, over.is_set()


def watch(pid: int, image: Path, most: int, done: threading.Event, over: threading.Event) -> None:
    """Stop CRIU's writing once the image is too large."""
    pause = LOOK
    while not done.wait(pause):
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            # Where this fails nothing is lost: the size is looked at once more when the image is
            # complete.
            if allocated(image) > most:
                over.set()
        if over.is_set():  # at each look, as CRIU may have started more processes since
            for one in family(pid):
                # EPERM without CAP_SYS_RESOURCE, as in containers; its files' limit stands.
                with contextlib.suppress(OSError, ValueError):
                    resource.prlimit(one, resource.RLIMIT_FSIZE, (0, 0))
        pause = max(LOOK, (time.monotonic() - begun) / _PART)
