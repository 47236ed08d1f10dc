"""Method ``dmtcp``: DMTCP's own commands (dmtcp_launch(1), dmtcp_command(1), dmtcp_restart(1)).

All of them run as the user, as does what they restore: nothing here needs root but the directories.
Each run has a coordinator of its own, on a port that others cannot reach (guard).
DMTCP saves into a directory of the user's, in the job's own; root copies that from there. So nobody
but root ever has one of root's files open for writing, and what is read is a bounded number of
plain files.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_elastic.machine.ckptroot import binding, child, clock, files, images, inventory, steps
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.child import Child
from slurm_elastic.machine.ckptroot.guard import Guard, guarded
from slurm_elastic.machine.ckptroot.manifest import Manifest
from slurm_elastic.machine.ckptroot.payload import HANDED, Payload, become
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.machine.ckptroot.scratch import Scratch
from slurm_elastic.machine.ckptroot.site import Refused, Site

_PROCESSES = 10_000
"""Files in a directory that DMTCP saved into: one for each process, and some more."""
UNGUARDED = (
    "nft cannot set rules here, and anybody could end the job by DMTCP's coordinator: install "
    "nftables on the node (in a container with CAP_NET_ADMIN), or use criu"
)
_PORT = 32
"""Bytes of the file with the coordinator's port."""


class Dmtcp:
    """One job's processes under a DMTCP coordinator."""

    name = "dmtcp"
    stands_still = False

    def __init__(self, site: Site, caller: Caller, payload: Payload) -> None:
        self._site = site
        self._caller = caller
        self._payload = payload
        self._scratch = Scratch(site.scratch, caller.job)
        self._saved = Path(payload.directory) / f".slurm-elastic-{caller.job}.ckpt"
        self._own_clocks = clock.offsets()
        self._clocks: clock.Clocks | None = None
        self._child: Child | None = None
        self._guard: Guard | None = None

    @property
    def pid(self) -> int:
        """The payload's first process; 0 where there is none."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        """Start the payload under dmtcp_launch."""
        self._run([self._program("dmtcp_launch"), *self._coordinator(), *self._payload.argv])

    def lay_out(self, _image: Path, /) -> None:
        """Files of this node alone do not travel with this method."""

    def restore(self, image: Path, manifest: Manifest) -> None:
        """dmtcp_restart of the image's files, which were verified. It gets their directory open, as
        the way there is closed to users.
        """
        names = [name for name in sorted(manifest.files) if name.endswith(".dmtcp")]
        if not names:
            raise Refused("the image has no file of DMTCP")
        images.show(image)
        directory = os.open(image, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
        try:
            saved = [f"/proc/self/fd/{HANDED}/{name}" for name in names]
            command = [self._program("dmtcp_restart"), *self._coordinator(), *saved]
            self._run(command, handed=directory, clocks=manifest.clocks)
        finally:
            os.close(directory)

    def alone(self, _image: Path, /) -> frozenset[str]:
        """Nothing is known of other files than the outputs."""
        return frozenset()

    def need(self) -> int:
        """Not known before DMTCP has compressed it; it is told when that is to be copied. Refused
        while a step runs, whose srun could not be brought back.
        """
        steps.check(self._site, self._caller.job, (), self.name)
        return 0

    def clocks(self) -> clock.Clocks | None:
        """Later than in the image, as the tasks have run on: they never go back."""
        return None if self._clocks is None else clock.now(self._own_clocks, self._clocks)

    def locked(self) -> dict[str, inventory.State]:
        """DMTCP saves no locks."""
        return {}

    def partners(self) -> list[str]:
        """DMTCP refuses no connections."""
        return []

    def bound(self) -> binding.Bound:
        """DMTCP's threads have the CPUs of the step that they come back in."""
        return {}

    def connections(self) -> list[str]:
        """DMTCP says nothing of them."""
        return []

    def dump(self, _image: Path, within: float, _most: int, _closes: bool, /) -> dict[str, int]:
        """Save into the user's directory. Refused: they go on."""
        self._discard()
        try:
            with self._as_user():
                os.mkdir(self._saved, 0o700)
            self._command(within, "--ckptdir", str(self._saved), "--bcheckpoint")
        except OSError as error:
            raise Refused(f"{self._saved}: {error.strerror}") from error
        except Refused:
            self._discard()
            raise
        return {}

    def gather(self, image: Path, most: int) -> None:
        """Copy what was saved into the image, as files of root's."""
        try:
            with self._as_user():
                directory = os.open(self._saved, os.O_RDONLY | os.O_DIRECTORY | files.SAFE)
            try:
                self._copy_all(directory, image, most)
            finally:
                os.close(directory)
        finally:
            self._discard()

    def _copy_all(self, directory: int, image: Path, most: int) -> None:
        names = [name for name in files.names(directory, _PROCESSES) if name.endswith(".dmtcp")]
        if not names:
            raise Refused("dmtcp_command: no image was written")
        for name in names:
            with self._as_user():
                source = files.opened(name, owners=(self._caller.uid,), most=most, at=directory)
            try:
                target = files.opened(image / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                try:
                    most -= files.copy(source, target, 0, os.fstat(source).st_size, most=most)
                    os.fchmod(target, 0o640)
                finally:
                    os.close(target)
            finally:
                os.close(source)

    def _discard(self) -> None:
        """The files that were saved into the user's directory go, with his rights; what he keeps us
        from removing is his.
        """
        with contextlib.suppress(OSError, Refused), self._as_user():
            files.remove(self._saved, _PROCESSES)

    def go_on(self) -> None:
        """After a dump they run already."""
        self._discard()

    def stop(self) -> None:
        """After a dump: the processes end here, and with them their coordinator."""
        with contextlib.suppress(Refused):
            self._command(30.0, "--quit")
        self._kill()

    def signal(self, number: int) -> None:
        """Send a signal to the payload's first process."""
        if self._child:
            self._child.signal(number)

    def ended(self) -> int | None:
        """The payload's wait status, once it has ended."""
        return self._child.status() if self._child else None

    def versions(self) -> dict[str, str]:
        """The versions of the programs that made the image."""
        said = ""
        with contextlib.suppress(Refused):
            _, said = self._ask([self._program("dmtcp_launch"), "--version"], 10.0)
        found = re.search(r"(\d+\.\d+\S*)", said)
        return {"dmtcp": found[1] if found else "unknown", "kernel": os.uname().release}

    def close(self) -> None:
        """All that is left of the job ends; the scratch directory goes."""
        if self._child:
            with contextlib.suppress(Refused):
                self._command(10.0, "--quit")
            self._kill()
        if self._guard:
            self._guard.close()
        self._discard()
        self._scratch.close()

    def _run(
        self, argv: Sequence[str], handed: int | None = None, clocks: clock.Clocks | None = None
    ) -> None:
        """The payload, as our child and the leader of a session; its ``clocks`` go on."""
        port = self._port_file()
        with self._as_user():
            files.remove(port)
        payload = replace(self._payload, argv=tuple(argv))
        with self._with_clocks(clocks):
            pid = os.fork()
            if pid == 0:
                become(payload, bound=True, handed=handed)
        self._child = Child(pid)
        try:
            self._await_port(argv[0])
        except Refused:
            self._kill()
            raise

    @contextlib.contextmanager
    def _with_clocks(self, saved: clock.Clocks | None) -> Iterator[None]:
        """A child that is started has clocks of its own, where this node can give it any. A job
        that was saved with its own is not brought back without.
        """
        self._clocks = None
        with contextlib.ExitStack() as stack:
            try:
                self._clocks = stack.enter_context(clock.begun(self._own_clocks, saved))
            except OSError as error:
                if saved:
                    raise Refused(f"its clocks cannot go on here: {error.strerror}") from error
            yield

    def _await_port(self, program: str) -> None:
        until = time.monotonic() + 60
        while self._port() is None:
            if self.ended() is not None or time.monotonic() > until:
                raise Refused(f"{program}: it started no coordinator")
            time.sleep(0.05)

    def _coordinator(self) -> list[str]:
        """It asks nobody who they are, so its port is for the user and root alone, or there is
        none.
        """
        self._guard = self._guard or guarded(self._caller.uid)
        if self._guard is None:
            raise Refused(UNGUARDED)
        port = str(self._guard.port)
        return ["--new-coordinator", "--coord-port", port, "--port-file", str(self._port_file()),
                "--interval", "0", "--ckptdir", str(self._port_file().parent)]  # fmt: skip

    def _port_file(self) -> Path:
        """In a small file system of the user's on this machine."""
        return self._scratch.of_user(self._caller.uid, self._caller.gid) / "port"

    def _port(self) -> str | None:
        """The coordinator's port; None where there is none yet."""
        path = self._port_file()
        try:
            with self._as_user():
                text = files.read(path, _PORT).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(f"the coordinator's port: {error.strerror}") from error
        return text if text.isdecimal() else None

    def _command(self, within: float, *arguments: str) -> None:
        port = self._port()
        if port is None:
            raise Refused("the coordinator's port is no number")
        address = ("--coord-host", "127.0.0.1", "--coord-port", port)
        command = [self._program("dmtcp_command"), *address, *arguments]
        code, said = self._ask(command, within)
        if code != 0:
            raise Refused(f"dmtcp_command: exit {code}: {said.strip()[:200]}")

    def _ask(self, command: list[str], timeout: float) -> tuple[int, str]:
        user = (self._caller.uid, self._caller.gid, self._caller.groups)
        return child.run(command, max(timeout, 1.0), user)

    def _as_user(self) -> contextlib.AbstractContextManager[None]:
        return as_user(self._caller.uid, self._caller.gid, self._caller.groups)

    def _kill(self) -> None:
        """The payload leads a session; what left that is the coordinator's to end."""
        if self._child:
            self._child.end()
            self._child = None

    def _program(self, name: str) -> str:
        return f"{self._site.dmtcp}/{name}"


def available(site: Site) -> None:
    """Refused where this host cannot do it."""
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        if not os.access(f"{site.dmtcp}/{name}", os.X_OK):
            raise Refused(f"{site.dmtcp}/{name} is not installed")
    guard = guarded(0)
    if guard is None:
        raise Refused(UNGUARDED)
    guard.close()
