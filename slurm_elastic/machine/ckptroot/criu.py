"""Method ``criu``: CRIU saves all processes of a job on one node; the processes need no
preparation.

A dump leaves the tasks stopped until its image was checked. If the image is unusable, the tasks
continue. Measured with CRIU 4.1.1 and 4.2.1, Slurm 24.11 and 26.05.
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
from .manifest import ImageManifest
from .method import Method
from .payload import Payload
from .private_tmp import PrivateTmp
from .rights import as_user
from .scratch import Scratch
from .site import HelperSite, RequestRefused
from .tempfiles import TempFiles

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_CLOSES = ("--tcp-close", "--skip-in-flight")
"""Only if the job or the site asks for it. Otherwise a job with a connection to another host is
refused, and continues with its connection.
"""
_KEEPS = ("--tcp-established",)
"""Only if all connections are between the job's own processes, by the loopback address."""
_BOTH = (
    "--ext-unix-sk", "--evasive-devices", "--manage-cgroups=ignore", "--file-locks",
    "--ghost-limit", "1000G", "-v2",
)  # fmt: skip
"""Options of saves and restores.

``--file-locks``: save the locks of the job's own tasks; ``inventory.check_locked`` makes sure that
no other process has used the file since. ``--ghost-limit``: the image contains deleted files if a
task has them open; the limit of the image bounds their size.
"""


class Criu(Method):
    """One job's processes under CRIU."""

    name = "criu"
    stands_still = True
    pid = 0

    def __init__(self, site: HelperSite, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._scratch = Scratch(site.scratch, caller.job)
        record = site.jobs / str(caller.job) / f"left-{os.uname().nodename}.json"
        self._tmp = PrivateTmp(site, caller)
        self._tempfiles = TempFiles(caller, site.directory, record, self._tmp.take(payload))
        environment = {**payload.environment, **self._tempfiles.prepare()}
        self._clocks: clock.Clocks | None = None
        self._clockless = ""
        self._stopped = frozenset[int]()
        self._reused: frozenset[str] | None = None
        try:
            self.inside = JobNamespaces(replace(payload, environment=environment))
        except BaseException:
            self._tmp.close()
            raise

    def start(self) -> None:
        """Start the payload."""
        self._tempfiles.withdraw()
        self._note_payload(self.inside.ask("start", 30.0))

    def put_back_files(self, image: Path, /) -> None:
        """Put the job's files back into the temporary directories."""
        self._tempfiles.unpack(image)

    def restore(self, image: Path, manifest: ImageManifest) -> None:
        """Restore the image's processes. If it raises RequestRefused, it leaves none of them
        running.
        """
        groups = images.check(image, self._caller)
        image_access.show(image)
        log, has_sysv = self._scratch.path() / "restore.log", images.has_sysv(image)
        has_streams = manifest.closed is None and images.has_streams(image)
        held_locks = images.locks(image) if locks.can_take() else {}
        command = [
            # CRIU opens every file of the job by its path. So it runs with the user's rights on
            # files: whatever the user has put there since, the user could open it anyway. Its
            # standard input is the image's directory (``job_init.restore``), because that is
            # root's.
            *capabilities.restorer(self._caller, groups, has_sysv, has_streams), self._site.criu,
            "restore", "--unprivileged", "-D", "/proc/self/fd/0", "-W", "/", "-d", "-S", *_BOTH,
            *(("--leave-stopped",) if held_locks else ()),
            *(() if manifest.closed is None else _CLOSES), *(_KEEPS if has_streams else ()),
        ]  # fmt: skip
        try:
            answer = self.inside.ask(
                "restore", 3600.0, command=command, images=str(image), log=str(log),
                pid=manifest.pid, clocks=manifest.clocks, sysv=has_sysv,
            )  # fmt: skip
            self._note_payload(answer)
        except RequestRefused as error:
            raise RequestRefused(f"{error}: {dump.last_error(log)}") from error
        if held_locks:
            self._take_locks(held_locks, images.stopped(image))
        self._tempfiles.take_back()
        if manifest.bound:
            with as_user(self._caller):
                cpu_binding.bind(self.inside.tasks(), manifest.bound, os.sched_getaffinity(0))

    def _take_locks(self, held: locks.Locks, stopped: frozenset[int]) -> None:
        """Have the restored tasks, which are still stopped, take their locks, then continue them.

        Tasks that were ``stopped`` before the save stay stopped. If another process holds such a
        lock, end the tasks and raise RequestRefused.
        """
        if path := locks.take(self.inside.tasks(), held, self.inside.owner):
            self._end()
            raise RequestRefused(f"{path}: its lock could not be taken again")
        self._continue(stopped)

    def _note_payload(self, answer: Mapping[str, Any]) -> None:
        """Store the payload's pid and clocks from the answer of process 1."""
        self.pid = int(answer["pid"])
        self._clocks, self._clockless = answer.get("clocks"), answer.get("clockless", "")

    def unappended_files(self, image: Path, /) -> frozenset[str]:
        """Return the files that the tasks of a verified image write without appending."""
        return frozenset(file.path for file in images.writing(image) if not file.appends)

    def estimate_size(self) -> int:
        """Return the bytes of the memory of all tasks, counted before they are stopped.

        RequestRefused if a part of the job could not be restored.
        """
        if self._clockless:
            raise RequestRefused(f"its node gives it no clocks of its own: {self._clockless}")
        with self.inside.made_anew("ipc") as namespace:
            held = sysv.held(namespace)
        tasks = self.inside.tasks()
        if held and held.semaphores:
            sysv.check_undone(tasks, self.inside.init)
        memory = self._check() + inventory.deleted(tasks)
        return memory + (held.beyond if held else 0)

    def clocks(self) -> clock.Clocks | None:
        """Return the time on the job's own clocks."""
        return None if self._clocks is None else clock.now(clock.offsets(), self._clocks)

    def locked(self) -> dict[str, inventory.State]:
        """Return the files that the job keeps locked, with their states now.

        The job's copies of this node's temporary files are left out, because no other process uses
        the copies.
        """
        states = inventory.locked_files(self.inside.tasks(), self.inside.owner)
        return {path: state for path, state in states.items() if not self._tempfiles.holds(path)}

    def cpu_bindings(self) -> cpu_binding.Bound:
        """Return the bindings of threads that may use fewer CPUs than the step has."""
        return cpu_binding.bound(self.inside.tasks(), os.sched_getaffinity(0))

    def connections(self) -> list[str]:
        """Return the far ends of the job's TCP connections."""
        return sockets.connections(self.inside.tasks())

    def outside_connections(self) -> list[str]:
        """Return the far ends of connections that leave the job, or [] if all are between its own
        processes.
        """
        tasks = self.inside.tasks()
        return [] if sockets.are_its_own(tasks) else sockets.connections(tasks)

    def dump(
        self, image: Path, within: float, max_bytes: int, closes: bool = False
    ) -> dict[str, int]:
        """Save all processes into ``image`` and leave them stopped. Call ``resume`` or ``stop``
        next.

        Return the files that they have open for writing, with sizes. If it raises RequestRefused,
        they continue as if nothing had happened. CRIU is never killed, because the tasks would not
        survive that. A save may therefore take longer than ``within`` seconds, and its size is
        limited by an error like a full disk (``dump``).
        """
        if within <= 0:
            raise RequestRefused("the deadline has passed")
        self._stopped = frozenset()
        with self.inside.made_anew("ipc") as ipc, self.inside.made_anew("time") as clocks:
            sysv_objects = sysv.held(ipc)
            if sysv_objects:
                self._check_sysv()
            namespaces = {"mount": self.inside.mounts, "pid": self.inside.numbers, "time": clocks}
            if not sysv_objects:
                # CRIU saves the namespaces that it is not in itself.
                namespaces["ipc"] = ipc
            try:
                self._save(image, max_bytes, closes, namespaces)
            except OSError:
                # Not an error of CRIU itself, which would have continued the tasks.
                self.resume()
                raise
            try:
                self._tempfiles.lend(images.links(image))
                images.check(image, self._caller)
                self._stopped = images.stopped(image)
                poll_again.wait_again(image)
                if self._reused is not None:
                    sockets.check_streams(images.streams(image))
                sockets.check_datagrams(self.inside.tasks())
                self._check()  # again, because the tasks ran until CRIU stopped them
                self._check_held(sysv_objects, sysv.held(ipc))
                return {file.path: file.size for file in images.writing(image)}
            except BaseException:
                self.resume()
                raise

    def _save(
        self, image: Path, max_bytes: int, closes: bool, namespaces: Mapping[str, int]
    ) -> None:
        dump.know_kernel(self._site.criu)
        log, tasks = self._scratch.path() / "dump.log", self.inside.tasks()
        keeps = not closes and sockets.are_its_own(tasks)
        self._reused = sockets.reused(tasks, self.inside.owner) if keeps else None
        save = dump.Dump(
            self._site.criu, self._caller, self.pid, namespaces,
            (*_BOTH, *(_CLOSES if closes else ()), *(_KEEPS if keeps else ())),
        )  # fmt: skip
        has_renamed = self._tempfiles.has_renamed(inventory.gone_names(tasks), tasks)
        (save.run_as_user if has_renamed else save.run)(image, log, max_bytes)

    def gather(self, image: Path, max_bytes: int, /) -> None:
        """Add the job's files in this node's temporary directories to the image."""
        self._tempfiles.pack(image, max_bytes, self.inside.tasks())

    def resume(self) -> None:
        """After a dump: continue the tasks, except tasks that somebody stopped before it."""
        try:
            poll_again.go_back(self.inside.tasks(), self.inside.owner)
            if self._reused is not None:
                sockets.wake(self.inside.tasks(), self._reused, self.inside.owner)
        finally:
            # No task may stay stopped because an earlier step failed.
            self._continue(self._stopped)
            self._tempfiles.take_back()

    def _continue(self, stopped: frozenset[int]) -> None:
        continued = stopped
        with contextlib.suppress(OSError):
            # If this fails, the remaining tasks get a visible SIGCONT below and continue all the
            # same.
            continued |= quiet_continue.continue_quietly(
                self.inside.tasks(), stopped, self.inside.owner
            )
        self.inside.send_order("continue", but=sorted(continued))

    def stop(self) -> None:
        """After a dump: end the processes on this node."""
        self._end()
        self._tempfiles.take_back()
        self._tempfiles.leave()

    def _end(self) -> None:
        """End the tasks, which are saved in an image. The data that they keep in files must stay
        unchanged.
        """
        # Before the kill: a dying thread marks its mutexes as left by a dead owner.
        robust_mutexes.keep(self.inside.tasks(), self.inside.owner)
        self.inside.kill()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        self.inside.send_order("signal", number=number)

    def wait_status(self) -> int | None:
        """Return the payload's wait status after it has ended, or None."""
        return self.inside.wait_status()

    def versions(self) -> dict[str, str]:
        """Return the versions of the programs that made the image."""
        result = subprocess.run(
            [self._site.criu, "--version"], env=CLEAN, capture_output=True, text=True, check=False
        )
        version = re.search(r"Version: (\S+)", result.stdout)
        return {"criu": version[1] if version else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """End the rest of the job; remove its temporary directories and the scratch directory."""
        self.inside.close()
        self._tempfiles.discard()
        self._tmp.close()
        self._scratch.close()

    def _check_held(self, before: sysv.HeldObjects | None, now: sysv.HeldObjects | None) -> None:
        """RequestRefused if the image may lack System V objects that exist ``now``."""
        if now and not before:
            raise RequestRefused("it has begun to use System V IPC just now")
        if now and now.semaphores:
            sysv.check_undone(self.inside.tasks(), self.inside.init)

    def _check_sysv(self) -> None:
        """RequestRefused if on this kernel the user may not choose the numbers of System V IPC."""
        rights = capabilities.restorer(self._caller, self._caller.groups, has_sysv=True)
        # Try it in the job's own /proc, because a container's /proc may be read-only.
        enter = ["/usr/bin/nsenter", f"--mount=/proc/self/fd/{self.inside.mounts}", "--"]
        command = [*enter, *rights, "/bin/sh", "-c", f": >>{sysv.NUMBERS}"]
        if dump.run_silently(command, self.inside.mounts) != 0:
            raise RequestRefused(
                "it uses System V IPC, which this kernel lets only root bring back"
            )

    def _check(self) -> int:
        """RequestRefused if a save would leave out a part of the job, or if the user may not
        restore a task.

        Return the bytes of the job's memory and of its files on this node.
        """
        tasks = self.inside.tasks()
        steps.check(self._site, self._caller.job, tasks, self.name)
        temp_files = self._tempfiles.own_files(tasks)
        obstacle = inventory.stray(tasks, self.inside.init, self.pid) or inventory.terminal(tasks)
        obstacle = (
            obstacle or sockets.stays_here(tasks) or unrestorable.why(tasks, self._caller.uid)
        )
        if obstacle := obstacle or self._tempfiles.obstacle(tasks, temp_files):
            raise RequestRefused(obstacle)
        files = sum(status.st_blocks * 512 for status in temp_files.values())
        return files + task_rights.check(tasks, self._caller)


def available(site: HelperSite) -> None:
    """RequestRefused if this host cannot run the method."""
    with contextlib.suppress(FileNotFoundError):
        scope = YAMA.read_text().strip()
        if scope != "0":
            raise RequestRefused(
                f"kernel.yama.ptrace_scope is {scope}, and CRIU could restore nothing as a user:"
                " set it to 0 (sysctl -w kernel.yama.ptrace_scope=0, and in /etc/sysctl.d)"
            )
    for program in (site.criu, "/usr/bin/nsenter", "/usr/bin/setpriv"):
        if not os.access(program, os.X_OK):
            raise RequestRefused(f"{program} is not installed")
