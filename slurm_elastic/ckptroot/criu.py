"""Method ``criu``: transparent checkpoints by CRIU, of all processes of a job on one node.

A dump leaves the tasks stopped until the image was verified: what cannot be saved goes on unharmed.
Measured with CRIU 4.1.1 and 4.2.1, Slurm 24.11 and 26.05.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_elastic.ckptroot import dumping, files, images, inventory, keeper
from slurm_elastic.ckptroot.baggage import Baggage
from slurm_elastic.ckptroot.caller import CLEAN, Caller
from slurm_elastic.ckptroot.manifest import Manifest
from slurm_elastic.ckptroot.payload import Payload, calm
from slurm_elastic.ckptroot.proc import memory_of, shared_of, status_of
from slurm_elastic.ckptroot.scratch import Scratch
from slurm_elastic.ckptroot.site import Refused, Site

_CAP_SETPCAP, _CAP_SYS_ADMIN, _CAP_SYS_RESOURCE, _CAP_CHECKPOINT_RESTORE = 8, 21, 24, 40
_DUMPS = (1, 2, 5, 12, 19, _CAP_SYS_RESOURCE)
"""The capabilities that a dump takes besides (capabilities(7)): CAP_DAC_OVERRIDE,
CAP_DAC_READ_SEARCH, CAP_KILL, CAP_NET_ADMIN (sockets' states), CAP_SYS_PTRACE.
"""
_NEEDED = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_MOST_GROUPS = 128
"""CRIU compares no more before it calls setgroups(2) (criu/pie/restorer.c, groups_match)."""
_LOG = 16 << 20
"""Characters of CRIU's log that are looked through."""
_KNOWN_KERNEL = Path("/run/criu.kdat")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_FILTER = "2"  # proc(5), Seccomp in status: SECCOMP_MODE_FILTER
_CLOSES = ("--tcp-close", "--skip-in-flight")
"""Only where that is asked for: a job with a connection is refused else, and goes on with it."""
_BOTH = (
    "--ext-unix-sk", "--evasive-devices", "--manage-cgroups=ignore", "--file-locks",
    "--ghost-limit", "256M", "-v2",
)  # fmt: skip
"""``--file-locks``: the locks of the job's own tasks; ``inventory.check_locked`` sees to it that
nobody used the file meanwhile. ``--ghost-limit``: an open file that was deleted is in the image.
"""


class Criu:
    """One job's processes under CRIU."""

    name = "criu"

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._identity = images.Identity(caller.uid, caller.gid, frozenset(caller.groups))
        self._scratch = Scratch(site, caller.job)
        record = site.jobs / str(caller.job) / f"left-{os.uname().nodename}.json"
        self._baggage = Baggage(caller, site.directory, record)
        given = {**payload.environment, **self._baggage.prepare()}
        payload = replace(payload, environment=given)
        self._way, self._middle = keeper.start(payload)
        self.pid = 0
        self._ended: int | None = None
        message = self._wait(30.0)
        self._keeper = int(message["keeper"])
        self._mounts, self._processes = _namespaces(self._middle)

    def start(self) -> None:
        """Start the payload."""
        self._baggage.withdraw()
        keeper.send(self._way, {"do": "start"})
        self.pid = int(self._wait(30.0)["pid"])

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
        log = self._work() / "restore.log"
        command = [
            *restorer(self._identity, groups), self._site.criu, "restore", "--unprivileged",
            "-D", "/proc/self/fd/0", "-W", "/", "-d", "-S", *_BOTH,
            *(() if manifest.closed is None else _CLOSES),
        ]  # fmt: skip
        order = {"command": command, "images": str(image), "log": str(log), "pid": manifest.pid}
        keeper.send(self._way, {"do": "restore", **order})
        try:
            self.pid = int(self._wait(3600.0)["pid"])
        except Refused as error:
            raise Refused(f"{error}: {_last_error(log)}") from error

    def alone(self, image: Path, /) -> frozenset[str]:
        """The files that the tasks of a verified image write, but do not append to."""
        return frozenset(file.path for file in images.writing(image) if not file.appends)

    def need(self) -> int:
        """The memory of all tasks, found before anything is stopped; Refused for what cannot be
        brought back.
        """
        return self._check_inventory() + self._check_rights()

    def locked(self) -> dict[str, inventory.State]:
        """The files that the job keeps locked, as they are now; its own copies of what is on this
        node alone are nobody else's.
        """
        found = inventory.locked_files(self._tasks())
        return {path: state for path, state in found.items() if not self._baggage.holds(path)}

    def connections(self) -> list[str]:
        """The far ends of the job's TCP connections."""
        return inventory.connections(self._tasks())

    def dump(self, image: Path, within: float, most: int, closes: bool = False) -> dict[str, int]:
        """Save all processes into ``image`` and leave them stopped: ``go_on`` or ``stop`` is next.

        What they have open for writing, with sizes. Refused: they go on as if nothing had been.
        CRIU is never killed: its victims would not survive that. So it may end after ``within``,
        and what it may write is bounded as by a full disk (``dumping``).
        """
        if within <= 0:
            raise Refused("the deadline has passed")
        work = self._work()
        command = [
            "/usr/bin/nsenter", f"--mount=/proc/self/fd/{self._mounts}",
            f"--pid=/proc/self/fd/{self._processes}", "--", *self._rights(),
            self._site.criu, "dump", "-t", str(self.pid), "-D", str(image), "-W", str(work),
            "-o", "dump.log", "--network-lock", "skip", "--leave-stopped", *_BOTH,
            *(_CLOSES if closes else ()),
        ]  # fmt: skip
        done, over = dumping.run(command, (self._mounts, self._processes), image, most)
        if done != 0 and over:
            raise Refused(f"no room: the image would have more than {most >> 20} MiB")
        if done != 0:
            raise Refused(f"criu dump: exit {done}: {_last_error(work / 'dump.log')}")
        try:
            images.check(image, self._identity)
            self._check_inventory()  # again: they ran until CRIU stopped them
            self._check_rights()
            return {file.path: file.size for file in images.writing(image)}
        except BaseException:
            self.go_on()
            raise

    def gather(self, image: Path, most: int, /) -> None:
        """With what they have in this node's temporary directories."""
        self._baggage.pack(image, most, self._tasks())

    def go_on(self) -> None:
        """After a dump: the processes run on."""
        keeper.send(self._way, {"do": "continue"})

    def stop(self) -> None:
        """After a dump: the processes end here."""
        keeper.send(self._way, {"do": "kill"})
        self._wait(60.0)
        self._ended = None
        self._baggage.leave()

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

    def _rights(self) -> list[str]:
        """The words that keep a dump from more than it takes: CRIU reads what the job's processes
        hold.

        prlimit(2) goes by the real user where root lacks CAP_SYS_RESOURCE, as in containers. CRIU's
        own check of the kernel has to come first, as plain root: it keeps what it finds in /run,
        makes a network namespace for it, which takes CAP_SYS_ADMIN, and asks libnftables.
        """
        have, words = _capabilities(os.getpid(), "CapEff"), list[str]()
        if not _KNOWN_KERNEL.exists():
            _run([self._site.criu, "check"])
        if not have >> _CAP_SYS_RESOURCE & 1:
            user = ("--ruid", str(self._caller.uid), "--rgid", str(self._caller.gid))
            words += [*user, "--keep-groups"]
        if have >> _CAP_SETPCAP & 1:
            keeps = [number for number in (*_DUMPS, _restores()) if have >> number & 1]
            words += ["--bounding-set", ",".join(["-all", *(f"+cap_{n}" for n in keeps)])]
        return ["/usr/bin/setpriv", *words] if words else []

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
        found = self._baggage.found(tasks)
        why = inventory.stray(tasks, self._keeper, self.pid) or inventory.terminal(tasks)
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
        if _is_apart(pid):
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
        if _restores() == _CAP_CHECKPOINT_RESTORE and _filtered(pid):
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


def restorer(identity: images.Identity, groups: tuple[int, ...]) -> list[str]:
    """The words that make CRIU the job's user for good, with no right on files but his
    (capabilities(7)).

    What stays is what restoring takes: process numbers and memory maps (checkpoint_restore, else
    sys_admin, which included it before Linux 5.9), smaller bounding sets (setpcap), limits above
    the present ones (sys_resource). Nobody of that user can look into such a process (ptrace(2),
    "Ptrace access mode checking"), and it can become nobody else.
    """
    have = _capabilities(os.getpid(), "CapEff")
    wanted = (_CAP_SETPCAP, _CAP_SYS_RESOURCE, _restores())
    keeps = [number for number in wanted if have >> number & 1]
    capabilities = ",".join(["-all", *(f"+cap_{number}" for number in keeps)])
    listed = ("--groups", ",".join(map(str, groups))) if groups else ("--clear-groups",)
    return [
        "/usr/bin/setpriv", "--reuid", str(identity.uid), "--regid", str(identity.gid), *listed,
        "--inh-caps", capabilities, "--ambient-caps", capabilities,
    ]  # fmt: skip


def _restores() -> int:
    """The capability that lets a user restore process numbers and memory maps."""
    have = _capabilities(os.getpid(), "CapEff")
    return _CAP_CHECKPOINT_RESTORE if have >> _CAP_CHECKPOINT_RESTORE & 1 else _CAP_SYS_ADMIN


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


def _run(command: list[str]) -> None:
    subprocess.run(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False, preexec_fn=calm,
    )  # fmt: skip


def _last_error(log: Path) -> str:
    """The first error in CRIU's log is the cause; the others follow from it."""
    with contextlib.suppress(OSError, Refused), open(files.opened(log), errors="replace") as file:
        for line in file.read(_LOG).splitlines():
            if "Error (" in line and "RLIMIT_NOFILE" not in line:
                return line.partition("Error ")[2][:300]
    return "no error in its log"


def _owner(pid: int) -> int | None:
    """Whose /proc/PID/fd is; None where the process is gone."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/fd").st_uid
    return None


def _is_apart(pid: int) -> bool:
    """Whether the process has made a user namespace, and with it rights of its own there."""
    with contextlib.suppress(OSError):
        return not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user"))
    return False


def _filtered(pid: int) -> bool:
    """Whether a thread of the process has a seccomp filter."""
    with contextlib.suppress(OSError):
        threads = os.listdir(f"/proc/{pid}/task")
        return any(status_of(int(thread)).get("Seccomp") == _FILTER for thread in threads)
    return False


def _capabilities(pid: int, name: str) -> int:
    return int(status_of(pid).get(name, "0"), 16)
