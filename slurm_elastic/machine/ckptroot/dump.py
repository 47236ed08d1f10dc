"""One save by CRIU: the words that it is started with, and why it failed.

It enters the job's mounts, process numbers and clocks, and its System V IPC where there is nothing
in that: CRIU saves the namespaces that it is not in itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.machine.ckptroot import capabilities, dumping, files, images
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.site import Refused

_LOG = 16 << 20
"""Characters of CRIU's log that are looked through."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Dump:
    """A save of the process ``pid``, as it is called ``inside``: namespaces by their names in
    nsenter(1), as descriptors.
    """

    program: str
    caller: Caller
    pid: int
    inside: Mapping[str, int]
    options: tuple[str, ...]

    @property
    def has_sysv(self) -> bool:
        """Whether the image is to have the job's System V IPC."""
        return "ipc" not in self.inside

    def run(self, image: Path, log: Path, most: int) -> None:
        """As root, which opens nothing by the job's paths; Refused where that failed."""
        rights = capabilities.dumper(self.caller.uid, self.caller.gid, self.has_sysv)
        where = ("-D", str(image), "-W", str(log.parent), "-o", log.name)
        self._run([*rights, *self._words(), *where], image, log, most)

    def run_as_user(self, image: Path, log: Path, most: int) -> None:
        """As the job's user: CRIU makes links by the job's paths, for files that have another name
        by now than the one that they were opened by. Nobody could make more than he himself.
        """
        caller = self.caller
        identity = images.Identity(caller.uid, caller.gid, frozenset(caller.groups))
        rights = capabilities.own_dumper(identity, tuple(caller.groups), self.has_sysv)
        said = files.opened(log, _NEW)
        try:
            with images.handed(image, caller.uid) as place:
                where = (
                    "--unprivileged",
                    "--link-remap",
                    "-D",
                    f"/proc/self/fd/{place}",
                    "-W",
                    "/",
                )
                command = [*rights, *self._words(), *where]
                self._run(command, image, log, most, handed=(place,), said=said)
        finally:
            os.close(said)

    def _words(self) -> list[str]:
        return [self.program, "dump", "-t", str(self.pid), "--network-lock", "skip",
                "--leave-stopped", *self.options]  # fmt: skip

    def _run(
        self, command: list[str], image: Path, log: Path, most: int,
        handed: tuple[int, ...] = (), said: int | None = None,
    ) -> None:  # fmt: skip
        enter = [f"--{kind}=/proc/self/fd/{number}" for kind, number in self.inside.items()]
        words = ["/usr/bin/nsenter", *enter, "--", *command]
        done, over = dumping.run(words, (*self.inside.values(), *handed), image, most, said)
        if done != 0 and over:
            raise Refused(f"no room: the image would have more than {most >> 20} MiB")
        if done != 0:
            raise Refused(f"criu dump: exit {done}: {last_error(log)}")


def last_error(log: Path) -> str:
    """The first error in CRIU's log is the cause; the others follow from it."""
    with contextlib.suppress(OSError, Refused), open(files.opened(log), errors="replace") as file:
        for line in file.read(_LOG).splitlines():
            if "Error (" in line and "RLIMIT_NOFILE" not in line:
                return line.partition("Error ")[2][:300]
    return "no error in its log"
