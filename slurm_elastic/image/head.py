"""A throw-away head for one machine: munged and slurmctld of the image's release.

This host's own Slurm where that is of the release; else one in a tree of that Debian, which is made
once and kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import brief
from slurm_elastic.image import apt
from slurm_elastic.image.build import head_release
from slurm_elastic.image.commands import ENVIRONMENT, remove, run, started
from slurm_elastic.image.network import HEAD

KEPT = Path("/var/cache/slurm-elastic")
_PACKAGES = ("slurmctld", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_ANSWER = 60.0
_CONF = """\
ClusterName=check
SlurmctldHost=head({head})
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation={work}/state
SlurmctldPidFile={work}/state/slurmctld.pid
SlurmctldLogFile={work}/state/slurmctld.log
SlurmctldParameters=enable_configless
ReturnToService=2
ProctrackType=proctrack/cgroup
MpiDefault=none
MailProg=/bin/true
SlurmdTimeout=60
SelectType=select/cons_tres
NodeName={node} NodeAddr={address} CPUs=1 RealMemory=400 State=UNKNOWN
PartitionName=check Nodes={node} Default=YES State=UP
"""

_CGROUPS = "CgroupMountpoint=/sys/fs/cgroup\n"
"""Without a cgroup.conf slurmstepd 22.05 of a configless slurmd knows no mount point, and no job
starts.
"""


def tree_for(slurm: str, debian: str, say: Callable[[str], None]) -> Path | None:
    """Where the head's / is: None for this host's own, of the same release. As root."""
    if head_release() == slurm:
        return None
    tree = KEPT / f"head-{debian}"
    if tree.is_dir():
        return tree
    say(f"this host has no Slurm {slurm}: Debian {debian} with slurmctld, once, in {tree}")
    KEPT.mkdir(parents=True, exist_ok=True)
    draft = KEPT / f".head-{debian}-{os.getpid()}"
    try:
        apt.bootstrap(debian, draft, _PACKAGES)
        # Whole or not at all: what is there is taken as it is.
        draft.rename(tree)
    finally:
        remove(draft)
    return tree


class Head:
    """In the network namespace of its machine; ``work`` is a directory that it may fill, ``more``
    are further lines of slurm.conf.
    """

    def __init__(
        self, work: Path, tree: Path | None, node: str, address: str, more: Sequence[str] = ()
    ) -> None:
        self._work, self._node, self._address = work, node, address
        self._more = more
        self._before = () if tree is None else ("chroot", str(tree))
        self._tree = tree
        self.key = work / "munge.key"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Returns at once; whether slurmctld answers ``says`` tells."""
        self.key.touch(mode=0o400)
        self.key.write_bytes(secrets.token_bytes(128))
        state = self._work / "state"
        state.mkdir()
        user, group = (int(run([*self._before, "id", flag, "slurm"])) for flag in ("-u", "-g"))
        os.chown(state, user, group)
        text = _CONF.format(head=HEAD, work=self._work, node=self._node, address=self._address)
        (self._work / "cgroup.conf").write_text(_CGROUPS)
        (self._work / "slurm.conf").write_text(text + "".join(f"{line}\n" for line in self._more))
        self._mount()
        run(["hostname", "head"])
        self._munged()
        become = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")
        self._start([*become, "slurmctld", "-D", "-f", f"{self._work}/slurm.conf"], "slurmctld")

    def stop(self) -> None:
        """The head is gone, at once, as by a power cut."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()

    def node_state(self) -> str:
        """As ``sinfo`` has it: ``idle``; empty where slurmctld does not answer."""
        with contextlib.suppress(SlurmElasticError):
            return self.command(["sinfo", "-h", "-n", self._node, "-o", "%T"]).strip()
        return ""

    def submit(self, script: str) -> str:
        """Hand in a job of one node; its number."""
        words = ["sbatch", "--parsable", f"-w{self._node}", "-n1", "--chdir=/", "--time=10"]
        return self.command([*words, "--output=/dev/null"], text=script).strip()

    def shown(self, kind: str, name: str) -> dict[str, str]:
        """The fields of a job or node, as scontrol has them."""
        told = self.command(["scontrol", "--oneliner", "show", kind, name])
        return dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", told))

    def command(self, words: Sequence[str], text: str = "") -> str:
        """The output of a command of Slurm's; SlurmElasticError with its complaint."""
        try:
            done = subprocess.run(
                [*self._before, *words], capture_output=True, text=True, check=False,
                timeout=_ANSWER, input=text, cwd="/",
                env=ENVIRONMENT | {"SLURM_CONF": f"{self._work}/slurm.conf"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmElasticError(f"{words[0]}: no answer in {brief(_ANSWER)}") from None
        if done.returncode:
            raise SlurmElasticError(f"{words[0]}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _mount(self) -> None:
        """A /run of its own, for munge's usual socket, which machines are told of by slurm.conf; in
        a tree also the work directory and the kernel's. All of it goes with the namespace.
        """
        root = self._tree or Path("/")
        run(["mount", "-t", "tmpfs", "tmpfs", root / "run"])
        (root / "run" / "munge").mkdir(mode=0o755)
        if self._tree is None:
            return
        place = self._tree / str(self._work).lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        run(["mount", "--bind", self._work, place])
        run(["mount", "--rbind", "/dev", self._tree / "dev"])
        run(["mount", "-t", "proc", "proc", self._tree / "proc"])

    def _munged(self) -> None:
        work = self._work
        self._start(
            ["munged", "--foreground", "--force", f"--key-file={self.key}",
             f"--pid-file={work}/munged.pid",
             f"--seed-file={work}/munged.seed", f"--log-file={work}/munged.log"], "munged",
        )  # fmt: skip

    def _start(self, words: Sequence[str], name: str) -> None:
        self._running.append(started([*self._before, *words], self._work / f"{name}.out"))
