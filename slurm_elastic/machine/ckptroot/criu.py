"""Method ``criu``: CRIU saves all processes of a job on one node, and they need not know of it.

A dump leaves the tasks stopped until its image was checked; if that cannot be used, they go on.
Measured with CRIU 4.1.1 and 4.2.1, Slurm 24.11 and 26.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import (
    capabilities,
    clock,
    cpu_binding,
    dump,
    image_access,
    images,
    inventory,
    locks,
    poll_again,
    quiet_continue,
    robust_mutexes,
    sockets,
    steps,
    sysv,
    task_rights,
    unrestorable,
)
from .caller import CLEAN, Caller
from .job_namespaces import JobNamespaces
from .manifest import Manifest
from .method import Method
from .payload import Payload
from .private_tmp import PrivateTmp
from .rights import as_user
from .scratch import Scratch
from .site import Refused, Site
from .tempfiles import TempFiles

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_CLOSES = ("--tcp-close", "--skip-in-flight")
"""Only where the job or the site asks for it. Otherwise a job with a connection to elsewhere is
refused, and goes on with it.
"""
_KEEPS = ("--tcp-established",)
"""Only where all connections are between the job's own processes, by the loopback address."""
_BOTH = (
    "--ext-unix-sk", "--evasive-devices", "--manage-cgroups=ignore", "--file-locks",
    "--ghost-limit", "1000G", "-v2",
)  # fmt: skip
"""``--file-locks``: the locks of the job's own tasks; ``inventory.check_locked`` makes sure that
nobody has used the file meanwhile. ``--ghost-limit``: the image contains open files that were
deleted; the room for the image bounds their size.
"""


class Criu(Method):
    """One job's processes under CRIU."""

    name = "criu"
    stands_still = True
    pid = 0

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._scratch = Scratch(site.scratch, caller.job)
        record = site.jobs / str(caller.job) / f"left-{os.uname().nodename}.json"
        self._tmp = PrivateTmp(site, caller)
        self._tempfiles = TempFiles(caller, site.directory, record, self._tmp.take(payload))
        given = {**payload.environment, **self._tempfiles.prepare()}
        self._clocks: clock.Clocks | None = None
        self._clockless = ""
        self._stopped = frozenset[int]()
        self._reused: frozenset[str] | None = None
        try:
            self.inside = JobNamespaces(replace(payload, environment=given))
        except BaseException:
            self._tmp.close()
            raise

    def start(self) -> None:
        """Start the payload."""
        self._tempfiles.withdraw()
        self._begun(self.inside.ask("start", 30.0))

    def lay_out(self, image: Path, /) -> None:
        """Put the job's files back into the temporary directories."""
        self._tempfiles.unpack(image)

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Bring the image's processes back. Raises Refused if that fails, and then none of them is
        left.
        """
        groups = images.check(image, self._caller)
        image_access.show(image)
        log, has_sysv = self._scratch.path() / "restore.log", images.has_sysv(image)
        has_streams = manifest.closed is None and images.has_streams(image)
        held = images.locks(image) if locks.can_take() else {}
        command = [
            # CRIU opens every file of the job by its path, so with the user's own rights on files:
            # he could open himself whatever he has put there since.
            *capabilities.restorer(self._caller, groups, has_sysv, has_streams), self._site.criu,
            "restore", "--unprivileged", "-D", "/proc/self/fd/0", "-W", "/", "-d", "-S", *_BOTH,
            *(("--leave-stopped",) if held else ()),
            *(() if manifest.closed is None else _CLOSES), *(_KEEPS if has_streams else ()),
        ]  # fmt: skip
        try:
            told = self.inside.ask(
                "restore", 3600.0, command=command, images=str(image), log=str(log),
                pid=manifest.pid, clocks=manifest.clocks, sysv=has_sysv,
            )  # fmt: skip
            self._begun(told)
        except Refused as error:
            raise Refused(f"{error}: {dump.last_error(log)}") from error
        if held:
            self._take_locks(held, images.stopped(image))
        self._tempfiles.take_back()
        if manifest.bound:
            with as_user(self._caller):
                cpu_binding.bind(self.inside.tasks(), manifest.bound, os.sched_getaffinity(0))

    def _take_locks(self, held: locks.Locks, stopped: frozenset[int]) -> None:
        """Have the restored tasks, which are still stopped, take their locks and go on, except
        those that somebody had ``stopped`` before the save. If another process has one of the
        locks, end the tasks and raise Refused.
        """
        if path := locks.take(self.inside.tasks(), held, self.inside.owner):
            self._end()
            raise Refused(f"{path}: its lock could not be taken again")
        self._continue(stopped)

    def _begun(self, told: Mapping[str, Any]) -> None:
        """Note what process 1 has ``told`` about the payload it started."""
        self.pid = int(told["pid"])
        self._clocks, self._clockless = told.get("clocks"), told.get("clockless", "")

    def alone(self, image: Path, /) -> frozenset[str]:
        """The files that the tasks of a verified image write, but do not append to."""
        return frozenset(file.path for file in images.writing(image) if not file.appends)

    def need(self) -> int:
        """The memory of all tasks, counted before anything is stopped. Raises Refused if something
        of the job could not be brought back.
        """
        if self._clockless:
            raise Refused(f"its node gives it no clocks of its own: {self._clockless}")
        with self.inside.made_anew("ipc") as namespace:
            held = sysv.held(namespace)
        tasks = self.inside.tasks()
        if held and held.semaphores:
            sysv.check_undone(tasks, self.inside.init)
        memory = self._check() + inventory.deleted(tasks)
        return memory + (held.beyond if held else 0)

    def clocks(self) -> clock.Clocks | None:
        """The time on the job's own clocks."""
        return None if self._clocks is None else clock.now(clock.offsets(), self._clocks)

    def locked(self) -> dict[str, inventory.State]:
        """The files that the job keeps locked, as they are now. Its copies of files of this node
        alone are left out: nobody else has those.
        """
        found = inventory.locked_files(self.inside.tasks(), self.inside.owner)
        return {path: state for path, state in found.items() if not self._tempfiles.holds(path)}

    def bound(self) -> cpu_binding.Bound:
        """The threads that are bound to fewer than all CPUs of the step."""
        return cpu_binding.bound(self.inside.tasks(), os.sched_getaffinity(0))

    def connections(self) -> list[str]:
        """The far ends of the job's TCP connections."""
        return sockets.connections(self.inside.tasks())

    def partners(self) -> list[str]:
        """The same, or nothing if all connections are between the job's own processes."""
        tasks = self.inside.tasks()
        return [] if sockets.are_its_own(tasks) else sockets.connections(tasks)

    def dump(self, image: Path, within: float, most: int, closes: bool = False) -> dict[str, int]:
        """Save all processes into ``image`` and leave them stopped; call ``go_on`` or ``stop``
        next.

        Returns the files that they have open for writing, with sizes. If it raises Refused, they go
        on as if nothing had happened. CRIU is never killed, as its victims would not survive that.
        So it may take longer than ``within``, and its output is bounded like by a full disk
        (``dump``).
        """
        if within <= 0:
            raise Refused("the deadline has passed")
        self._stopped = frozenset()
        with self.inside.made_anew("ipc") as ipc, self.inside.made_anew("time") as clocks:
            held = sysv.held(ipc)
            if held:
                self._check_sysv()
            inside = {"mount": self.inside.mounts, "pid": self.inside.numbers, "time": clocks}
            if not held:
                # CRIU saves those namespaces that it is not in itself.
                inside["ipc"] = ipc
            try:
                self._save(image, most, closes, inside)
            except OSError:  # CRIU has saved them; had it failed, it had let them go on itself
                self.go_on()
                raise
            try:
                self._tempfiles.lend(images.links(image))
                images.check(image, self._caller)
                self._stopped = images.stopped(image)
                poll_again.wait_again(image)
                if self._reused is not None:
                    sockets.check_streams(images.streams(image))
                sockets.check_datagrams(self.inside.tasks())
                self._check()  # again: they ran until CRIU stopped them
                self._check_held(held, sysv.held(ipc))
                return {file.path: file.size for file in images.writing(image)}
            except BaseException:
                self.go_on()
                raise

    def _save(self, image: Path, most: int, closes: bool, inside: Mapping[str, int]) -> None:
        dump.know_kernel(self._site.criu)
        log, tasks = self._scratch.path() / "dump.log", self.inside.tasks()
        keeps = not closes and sockets.are_its_own(tasks)
        self._reused = sockets.reused(tasks, self.inside.owner) if keeps else None
        one = dump.Dump(
            self._site.criu, self._caller, self.pid, inside,
            (*_BOTH, *(_CLOSES if closes else ()), *(_KEEPS if keeps else ())),
        )  # fmt: skip
        has_renamed = self._tempfiles.has_renamed(inventory.gone_names(tasks), tasks)
        (one.run_as_user if has_renamed else one.run)(image, log, most)

    def gather(self, image: Path, most: int, /) -> None:
        """Add what they have in this node's temporary directories."""
        self._tempfiles.pack(image, most, self.inside.tasks())

    def go_on(self) -> None:
        """After a dump, let the processes run on, except those that somebody had stopped before."""
        try:
            poll_again.go_back(self.inside.tasks(), self.inside.owner)
            if self._reused is not None:
                sockets.wake(self.inside.tasks(), self._reused, self.inside.owner)
        finally:
            # Whatever fails before, no task stays stopped for us.
            self._continue(self._stopped)
            self._tempfiles.take_back()

    def _continue(self, stopped: frozenset[int]) -> None:
        others = stopped
        with contextlib.suppress(OSError):
            # Where that fails they notice their SIGCONT, and go on all the same.
            others |= quiet_continue.quietly(self.inside.tasks(), stopped, self.inside.owner)
        self.inside.tell("continue", but=sorted(others))

    def stop(self) -> None:
        """After a dump, end the processes on this node."""
        self._end()
        self._tempfiles.take_back()
        self._tempfiles.leave()

    def _end(self) -> None:
        """End the tasks, which an image has; what they keep in files must stay as it is."""
        robust_mutexes.keep(self.inside.tasks(), self.inside.owner)
        self.inside.kill()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        self.inside.tell("signal", number=number)

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended."""
        return self.inside.ended()

    def versions(self) -> dict[str, str]:
        """The versions of the programs that made the image."""
        done = subprocess.run(
            [self._site.criu, "--version"], env=CLEAN, capture_output=True, text=True, check=False
        )
        found = re.search(r"Version: (\S+)", done.stdout)
        return {"criu": found[1] if found else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """End what is left of the job; remove its places and the scratch directory."""
        self.inside.close()
        self._tempfiles.discard()
        self._tmp.close()
        self._scratch.close()

    def _check_held(self, before: sysv.Held | None, now: sysv.Held | None) -> None:
        """Refused if the image may lack System V objects that there are ``now``."""
        if now and not before:
            raise Refused("it has begun to use System V IPC just now")
        if now and now.semaphores:
            sysv.check_undone(self.inside.tasks(), self.inside.init)

    def _check_sysv(self) -> None:
        """Refused if this kernel lets no user choose the numbers of System V IPC."""
        words = capabilities.restorer(self._caller, self._caller.groups, has_sysv=True)
        # In the job's own /proc, as a container's may be read-only.
        enter = ["/usr/bin/nsenter", f"--mount=/proc/self/fd/{self.inside.mounts}", "--"]
        tried = [*enter, *words, "/bin/sh", "-c", f": >>{sysv.NUMBERS}"]
        if dump.quietly(tried, self.inside.mounts) != 0:
            raise Refused("it uses System V IPC, which this kernel lets only root bring back")

    def _check(self) -> int:
        """Make sure that a save leaves nothing of the job behind and that its user may restore
        every task; returns the bytes of its memory and of its files on this node.
        """
        tasks = self.inside.tasks()
        steps.check(self._site, self._caller.job, tasks, self.name)
        found = self._tempfiles.found(tasks)
        why = inventory.stray(tasks, self.inside.init, self.pid) or inventory.terminal(tasks)
        why = why or sockets.stays_here(tasks) or unrestorable.why(tasks, self._caller.uid)
        if why := why or self._tempfiles.missed(tasks, found):
            raise Refused(why)
        files = sum(seen.st_blocks * 512 for seen in found.values())
        return files + task_rights.check(tasks, self._caller)


def available(site: Site) -> None:
    """Raises Refused if this host cannot run it."""
    with contextlib.suppress(FileNotFoundError):
        scope = YAMA.read_text().strip()
        if scope != "0":
            raise Refused(
                f"kernel.yama.ptrace_scope is {scope}, and CRIU could restore nothing as a user:"
                " set it to 0 (sysctl -w kernel.yama.ptrace_scope=0, and in /etc/sysctl.d)"
            )
    for program in (site.criu, "/usr/bin/nsenter", "/usr/bin/setpriv"):
        if not os.access(program, os.X_OK):
            raise Refused(f"{program} is not installed")
