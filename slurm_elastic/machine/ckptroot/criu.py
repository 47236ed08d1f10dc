"""Method ``criu``: transparent checkpoints by CRIU, of all processes of a job on one node.

A dump leaves the tasks stopped until its image was checked: what cannot be saved goes on.
Measured with CRIU 4.1.1 and 4.2.1, Slurm 24.11 and 26.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_elastic.machine.ckptroot import (
    binding,
    capabilities,
    clock,
    dump,
    images,
    interrupted,
    inventory,
    keeper,
    locks,
    onwards,
    robust,
    sockets,
    steps,
    sysv,
    unfit,
)
from slurm_elastic.machine.ckptroot.baggage import Baggage
from slurm_elastic.machine.ckptroot.caller import CLEAN, Caller
from slurm_elastic.machine.ckptroot.manifest import Manifest
from slurm_elastic.machine.ckptroot.ownplaces import OwnPlaces
from slurm_elastic.machine.ckptroot.payload import Payload, calm
from slurm_elastic.machine.ckptroot.proc import is_apart, is_dead, memory_of, shared_of, status_of
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.machine.ckptroot.scratch import Scratch
from slurm_elastic.machine.ckptroot.site import Refused, Site

_NEEDED = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_MOST_GROUPS = 128
"""CRIU compares no more before it calls setgroups(2) (criu/pie/restorer.c, groups_match)."""
_KNOWN_KERNEL = Path("/run/criu.kdat")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_FILTER = "2"  # proc(5), Seccomp in status: SECCOMP_MODE_FILTER
_CLOSES = ("--tcp-close", "--skip-in-flight")
"""Only where that is asked for: a job with a connection is refused else, and goes on with it."""
_KEEPS = ("--tcp-established",)
"""Only where all connections are between processes of the job, by the loopback address."""
_BOTH = (
    "--ext-unix-sk", "--evasive-devices", "--manage-cgroups=ignore", "--file-locks",
    "--ghost-limit", "1000G", "-v2",
)  # fmt: skip
"""``--file-locks``: the locks of the job's own tasks; ``inventory.check_locked`` sees to it that
nobody used the file meanwhile. ``--ghost-limit``: an open file that was deleted is in the image,
which has no more than there is room for.
"""


class Criu:
    """One job's processes under CRIU."""

    name = "criu"
    stands_still = True

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._identity = images.Identity(caller.uid, caller.gid, frozenset(caller.groups))
        self._scratch = Scratch(site.scratch, caller.job)
        record = site.jobs / str(caller.job) / f"left-{os.uname().nodename}.json"
        self._places = OwnPlaces(site, caller)
        self._baggage = Baggage(caller, site.directory, record, self._places.take(payload))
        given = {**payload.environment, **self._baggage.prepare()}
        payload = replace(payload, environment=given)
        self.pid = 0
        self._own_clocks = clock.offsets()
        self._clocks: clock.Clocks | None = None
        self._clockless = ""
        self._stopped = frozenset[int]()
        self._reused: frozenset[str] | None = None
        self._ended: int | None = None
        try:
            self._way, self._middle = keeper.start(payload)
            message = self._wait(30.0)
            self._keeper = int(message["keeper"])
            self._mounts, self._processes = _namespaces(self._middle)
        except BaseException:
            self._places.close()
            raise

    def start(self) -> None:
        """Start the payload."""
        self._baggage.withdraw()
        keeper.send(self._way, {"do": "start"})
        self._begun(self._wait(30.0))

    def lay_out(self, image: Path, /) -> None:
        """The files that the job has in temporary directories."""
        self._baggage.unpack(image)

    def restore(self, image: Path, manifest: Manifest) -> None:
        """Bring the image's processes back; Refused where that failed, nothing is left of them.

        CRIU opens every file of the job again by its path, so it does that with the user's own
        rights on files: whatever he has put there since is what he could open himself.
        """
        groups = images.check(image, self._identity)
        images.show(image)
        log, has_sysv = self._work() / "restore.log", images.has_sysv(image)
        has_streams = manifest.closed is None and images.has_streams(image)
        held = images.locks(image) if locks.can_take() else {}
        command = [
            *capabilities.restorer(self._identity, groups, has_sysv, has_streams), self._site.criu,
            "restore", "--unprivileged", "-D", "/proc/self/fd/0", "-W", "/", "-d", "-S", *_BOTH,
            *(("--leave-stopped",) if held else ()),
            *(() if manifest.closed is None else _CLOSES), *(_KEEPS if has_streams else ()),
        ]  # fmt: skip
        order = {"command": command, "images": str(image), "log": str(log), "pid": manifest.pid}
        order |= {"clocks": manifest.clocks, "sysv": has_sysv}
        keeper.send(self._way, {"do": "restore", **order})
        try:
            self._begun(self._wait(3600.0))
        except Refused as error:
            raise Refused(f"{error}: {dump.last_error(log)}") from error
        if held:
            self._take_locks(held, images.stopped(image))
        self._baggage.take_back()
        if manifest.bound:
            with as_user(self._caller.uid, self._caller.gid, self._caller.groups):
                binding.bind(self._tasks(), manifest.bound, os.sched_getaffinity(0))

    def _take_locks(self, held: locks.Locks, stopped: frozenset[int]) -> None:
        """The restored tasks, which are left stopped, take their locks and go on, but for those
        that somebody ``stopped`` before the save. Refused, and nothing is left of them, where
        another process has such a lock.
        """
        if path := locks.take(self._tasks(), held):
            self._end()
            raise Refused(f"{path}: its lock could not be taken again")
        self._continue(stopped)

    def _begun(self, told: Mapping[str, Any]) -> None:
        """The payload runs as the keeper has ``told``."""
        self.pid = int(told["pid"])
        self._clocks, self._clockless = told.get("clocks"), told.get("clockless", "")

    def alone(self, image: Path, /) -> frozenset[str]:
        """The files that the tasks of a verified image write, but do not append to."""
        return frozenset(file.path for file in images.writing(image) if not file.appends)

    def need(self) -> int:
        """The memory of all tasks, found before anything is stopped; Refused for what cannot be
        brought back.
        """
        if self._clockless:
            raise Refused(f"its node gives it no clocks of its own: {self._clockless}")
        with self._namespace("ipc") as namespace:
            held = sysv.held(namespace)
        if held and held.semaphores:
            sysv.check_undone(self._tasks(), self._keeper)
        gone = inventory.deleted(self._tasks())
        return self._check_inventory() + self._check_rights() + gone + (held.beyond if held else 0)

    def clocks(self) -> clock.Clocks | None:
        """The time by the job's own clocks."""
        return None if self._clocks is None else clock.now(self._own_clocks, self._clocks)

    def locked(self) -> dict[str, inventory.State]:
        """The files that the job keeps locked, as they are now; its own copies of what is on this
        node alone are nobody else's.
        """
        found = inventory.locked_files(self._tasks())
        return {path: state for path, state in found.items() if not self._baggage.holds(path)}

    def bound(self) -> binding.Bound:
        """The threads that have not all of their step's CPUs."""
        return binding.bound(self._tasks(), os.sched_getaffinity(0))

    def connections(self) -> list[str]:
        """The far ends of the job's TCP connections."""
        return sockets.connections(self._tasks())

    def partners(self) -> list[str]:
        """The same, unless all are between its own processes."""
        tasks = self._tasks()
        return [] if sockets.are_its_own(tasks) else sockets.connections(tasks)

    def dump(self, image: Path, within: float, most: int, closes: bool = False) -> dict[str, int]:
        """Save all processes into ``image`` and leave them stopped: ``go_on`` or ``stop`` is next.

        Returns the files that they have open for writing, with sizes. Refused: they go on as if
        nothing had been. CRIU is never killed: its victims would not survive that. So it may end
        after ``within``, and what it may write is bounded as by a full disk (``dumping``).
        """
        if within <= 0:
            raise Refused("the deadline has passed")
        self._stopped = frozenset()
        with self._namespace("ipc") as namespace, self._namespace("time") as clocks:
            held = sysv.held(namespace)
            if held:
                self._check_sysv()
            inside = {"mount": self._mounts, "pid": self._processes, "time": clocks}
            if not held:
                inside["ipc"] = namespace
            try:
                self._save(image, most, closes, inside)
            except OSError:  # CRIU had done its part: where that fails, it lets them go on itself
                self.go_on()
                raise
            try:
                self._baggage.lend(images.links(image))
                images.check(image, self._identity)
                self._stopped = images.stopped(image)
                interrupted.wait_again(image)
                if self._reused is not None:
                    sockets.check_streams(images.streams(image))
                sockets.check_datagrams(self._tasks())
                self._check_inventory()  # again: they ran until CRIU stopped them
                self._check_rights()
                self._check_held(held, sysv.held(namespace))
                return {file.path: file.size for file in images.writing(image)}
            except BaseException:
                self.go_on()
                raise

    def _save(self, image: Path, most: int, closes: bool, inside: Mapping[str, int]) -> None:
        """CRIU's part."""
        self._know_kernel()
        log, tasks = self._work() / "dump.log", self._tasks()
        keeps = not closes and sockets.are_its_own(tasks)
        self._reused = sockets.reused(tasks) if keeps else None
        one = dump.Dump(
            self._site.criu, self._caller, self.pid, inside,
            (*_BOTH, *(_CLOSES if closes else ()), *(_KEEPS if keeps else ())),
        )  # fmt: skip
        if self._baggage.has_renamed(inventory.gone_names(tasks), tasks):
            one.run_as_user(image, log, most)
        else:
            one.run(image, log, most)

    def gather(self, image: Path, most: int, /) -> None:
        """With what they have in this node's temporary directories."""
        self._baggage.pack(image, most, self._tasks())

    def go_on(self) -> None:
        """After a dump: the processes run on, but for those that somebody had stopped before."""
        try:
            interrupted.go_back(self._tasks())
            if self._reused is not None:
                sockets.wake(self._tasks(), self._reused)
        finally:
            self._continue(self._stopped)
            self._baggage.take_back()

    def _continue(self, stopped: frozenset[int]) -> None:
        others = stopped
        with contextlib.suppress(OSError):
            others |= onwards.quietly(self._tasks(), stopped)
        keeper.send(self._way, {"do": "continue", "but": sorted(others)})

    def stop(self) -> None:
        """After a dump: the processes end here."""
        self._end()
        self._baggage.take_back()
        self._baggage.leave()

    def _end(self) -> None:
        """An image has the tasks, which end here: what they keep in files is to stay as it is."""
        robust.keep(self._tasks())
        keeper.send(self._way, {"do": "kill"})
        self._wait(60.0)
        self._ended = None

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        keeper.send(self._way, {"do": "signal", "number": number})

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended; SIGKILL's if its keeper was killed."""
        while self._ended is None and (message := keeper.receive(self._way, 0)) is not None:
            if "ended" in message:
                self._ended = int(message["ended"])
            elif "gone" in message:
                self._ended = int(signal.SIGKILL)
        return self._ended

    def versions(self) -> dict[str, str]:
        """The versions of the programs that made the image."""
        done = subprocess.run(
            [self._site.criu, "--version"], env=CLEAN, capture_output=True, text=True, check=False
        )
        found = re.search(r"Version: (\S+)", done.stdout)
        return {"criu": found[1] if found else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """The keeper and all that is left of the job end; the scratch directory goes."""
        self._way.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._middle, 0)
        os.close(self._mounts)
        os.close(self._processes)
        self._baggage.discard()
        self._places.close()
        self._scratch.close()

    def _wait(self, timeout: float) -> dict[str, Any]:
        """The keeper's next answer; a payload that ends meanwhile is remembered."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            message = keeper.receive(self._way, left)
            if message is None:
                continue
            if "ended" in message:
                self._ended = int(message["ended"])
            elif "failed" in message:
                raise Refused(str(message["failed"]))
            elif "gone" in message:
                self._ended = int(signal.SIGKILL)
                raise Refused("the job's processes were killed")
            else:
                return message
        raise Refused(f"no answer from the job's process 1 in {timeout:.0f} s")

    def _work(self) -> Path:
        """Where CRIU writes its logs: of root's, on this machine."""
        return self._scratch.path()

    @contextlib.contextmanager
    def _namespace(self, kind: str) -> Iterator[int]:
        """A descriptor of a namespace that a restore makes anew, the job's System V IPC or clocks.
        It may be another's, should its process end just then: then CRIU refuses.
        """
        for pid in self._tasks():
            with contextlib.suppress(OSError):
                found = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                break
        else:
            raise Refused("the job has no process any more")
        try:
            yield found
        finally:
            os.close(found)

    def _check_held(self, before: sysv.Held | None, now: sysv.Held | None) -> None:
        """Refused where the image may lack something of what there is ``now``."""
        if now and not before:
            raise Refused("it has begun to use System V IPC just now")
        if now and now.semaphores:
            sysv.check_undone(self._tasks(), self._keeper)

    def _check_sysv(self) -> None:
        """Refused where this kernel lets no user choose the numbers of System V IPC. With the job's
        own /proc, where a container's may not be written.
        """
        words = capabilities.restorer(self._identity, self._caller.groups, has_sysv=True)
        enter = ["/usr/bin/nsenter", f"--mount=/proc/self/fd/{self._mounts}", "--"]
        tried = [*enter, *words, "/bin/sh", "-c", f": >>{sysv.NUMBERS}"]
        if _run(tried, self._mounts) != 0:
            raise Refused("it uses System V IPC, which this kernel lets only root bring back")

    def _know_kernel(self) -> None:
        """CRIU's own check of the kernel has to come first, as plain root: it keeps what it finds
        in /run, makes a network namespace for it, and asks libnftables.
        """
        if not _KNOWN_KERNEL.exists():
            _run([self._site.criu, "check"])

    def _tasks(self) -> list[int]:
        """The job's processes, by their numbers out here; the keeper is not one of them."""
        own = os.fstat(self._processes)
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != self._keeper:
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{entry}/ns/pid"), own):
                        found.append(int(entry))
        return found

    def _check_inventory(self) -> int:
        """That nothing of the job would be left behind; the bytes of its files on this node."""
        tasks = self._tasks()
        steps.check(self._site, self._caller.job, tasks, self.name)
        found = self._baggage.found(tasks)
        why = inventory.stray(tasks, self._keeper, self.pid) or inventory.terminal(tasks)
        why = why or sockets.stays_here(tasks) or unfit.why(tasks, self._caller.uid)
        if why := why or inventory.local_files(tasks, self._baggage, found):
            raise Refused(why)
        return sum(seen.st_blocks * 512 for seen in found.values())

    def _check_rights(self) -> int:
        """That the job's user may restore every task; the memory of all of them (bytes)."""
        memory = 0
        for pid in self._tasks():
            owner = _owner(pid)  # before the status: what ends meanwhile has no memory there
            status = status_of(pid)
            why = self._obstacle(pid, owner, status)
            if why:
                raise Refused(f"process {status.get('Name', pid)} {why}")
            memory += memory_of(status) + shared_of(pid, status)
        return memory

    def _obstacle(self, pid: int, owner: int | None, status: dict[str, str]) -> str:
        """The reason that keeps a task from being brought back with the rights of ``restorer``."""
        if is_dead(status):
            return ""  # it has those that it was brought back with
        if is_apart(pid):
            return "runs in a user namespace of its own, which CRIU cannot restore as a user"
        uids = set(status.get("Uid", "").split()) - {str(self._caller.uid)}
        gids = set(status.get("Gid", "").split()) - {str(self._caller.gid)}
        if uids or gids or any(int(status.get(name, "0"), 16) for name in _NEEDED):
            return "has other rights than the job's user"
        if len(status.get("Groups", "").split()) > _MOST_GROUPS:
            return f"has more than {_MOST_GROUPS} groups, which CRIU cannot restore as a user"
        # /proc/PID/fd of a task that is not dumpable is root's (proc(5)); so is that of a zombie.
        if "RssAnon" in status and owner not in (None, self._caller.uid):
            return (
                "is not dumpable (prctl(2), PR_SET_DUMPABLE), as agents of keys are:"
                " CRIU cannot restore it as a user"
            )
        # Set before no_new_privs comes back (seccomp(2)).
        if capabilities.is_whole() and _filtered(pid):
            return "has a seccomp filter, which CRIU cannot restore as a user"
        return ""


def available(site: Site) -> None:
    """Refused where this host cannot do it."""
    with contextlib.suppress(FileNotFoundError):
        scope = _YAMA.read_text().strip()
        if scope != "0":
            raise Refused(
                f"kernel.yama.ptrace_scope is {scope}, and CRIU could restore nothing as a user:"
                " set it to 0 (sysctl -w kernel.yama.ptrace_scope=0, and in /etc/sysctl.d)"
            )
    for program in (site.criu, "/usr/bin/nsenter", "/usr/bin/setpriv"):
        if not os.access(program, os.X_OK):
            raise Refused(f"{program} is not installed")


def _namespaces(middle: int) -> tuple[int, int]:
    """The job's mounts and process numbers. By the middle process, which is our own child and not
    reaped: the keeper's number may be anybody's once that has reaped it.
    """
    mounts = os.open(f"/proc/{middle}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mounts, os.open(f"/proc/{middle}/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(mounts)
        raise


def _run(command: list[str], *handed: int) -> int:
    return subprocess.run(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False, preexec_fn=calm, pass_fds=handed,
    ).returncode  # fmt: skip


def _owner(pid: int) -> int | None:
    """Whose /proc/PID/fd is; None where the process is gone."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/fd").st_uid
    return None


def _filtered(pid: int) -> bool:
    """Whether a thread of the process has a seccomp filter."""
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
        return any(status_of(int(thread)).get("Seccomp") == _FILTER for thread in threads)
    return False
