"""A throw-away head for one machine: munged and slurmctld of the image's release.

If this host's own Slurm has another release, the head runs in a tree of the Debian release that the
image has. The tree is made once and kept.
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
_ANSWER_TIMEOUT_S = 60.0
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
"""slurmstepd 22.05 of a configless slurmd knows no mount point without a cgroup.conf, and no job
starts.
"""


def tree_for(slurm: str, debian: str, say: Callable[[str], None]) -> Path | None:
    """Return the root directory for the head, or None if this host's own Slurm has the release
    ``slurm``; as root.
    """
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
        # Rename only the complete tree: the next check uses whatever is there.
        draft.rename(tree)
    finally:
        remove(draft)
    return tree


class TrialHead:
    """slurmctld and munged in the network namespace of their machine.

    ``work``: a directory for their files. ``extra_lines``: further lines of slurm.conf.
    """

    def __init__(
        self,
        work: Path,
        tree: Path | None,
        node: str,
        address: str,
        extra_lines: Sequence[str] = (),
    ) -> None:
        self._work, self._node, self._address = work, node, address
        self._extra_lines = extra_lines
        self._chroot = () if tree is None else ("chroot", str(tree))
        self._tree = tree
        self.key = work / "munge.key"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start munged and slurmctld, and return at once. Poll ``node_state`` to see whether
        slurmctld answers.
        """
        # With the mode first, so that no other user can ever read the key.
        self.key.touch(mode=0o400)
        self.key.write_bytes(secrets.token_bytes(128))
        state = self._work / "state"
        state.mkdir()
        # Asked inside the tree, where the numbers may differ from this host's.
        user, group = (int(run([*self._chroot, "id", flag, "slurm"])) for flag in ("-u", "-g"))
        os.chown(state, user, group)
        text = _CONF.format(head=HEAD, work=self._work, node=self._node, address=self._address)
        (self._work / "cgroup.conf").write_text(_CGROUPS)
        (self._work / "slurm.conf").write_text(
            text + "".join(f"{line}\n" for line in self._extra_lines)
        )
        self._mount()
        run(["hostname", "head"])
        self._start_munged()
        become = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")
        self._start([*become, "slurmctld", "-D", "-f", f"{self._work}/slurm.conf"], "slurmctld")

    def stop(self) -> None:
        """Kill slurmctld and munged at once, as a power cut would."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()

    def node_state(self) -> str:
        """Return the node's state as sinfo shows it (``idle``), "" if slurmctld does not answer."""
        with contextlib.suppress(SlurmElasticError):
            return self.command(["sinfo", "-h", "-n", self._node, "-o", "%T"]).strip()
        return ""

    def submit(self, script: str) -> str:
        """Submit a job of one node and return its job id."""
        command = ["sbatch", "--parsable", f"-w{self._node}", "-n1", "--chdir=/", "--time=10"]
        return self.command([*command, "--output=/dev/null"], text=script).strip()

    def shown(self, kind: str, name: str) -> dict[str, str]:
        """Return the fields of a job or a node as scontrol shows them."""
        output = self.command(["scontrol", "--oneliner", "show", kind, name])
        return dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)", output))

    def command(self, command: Sequence[str], text: str = "") -> str:
        """Run a command of Slurm and return its output. SlurmElasticError if it fails, or gives no
        answer in 60 s.
        """
        try:
            result = subprocess.run(
                [*self._chroot, *command], capture_output=True, text=True, check=False,
                timeout=_ANSWER_TIMEOUT_S, input=text, cwd="/",
                env=ENVIRONMENT | {"SLURM_CONF": f"{self._work}/slurm.conf"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmElasticError(
                f"{command[0]}: no answer in {brief(_ANSWER_TIMEOUT_S)}"
            ) from None
        if result.returncode:
            raise SlurmElasticError(
                f"{command[0]}: exit {result.returncode}: {result.stderr.strip()}"
            )
        return result.stdout

    def _mount(self) -> None:
        """Mount a /run of the head's own for munge's default socket, because the machines know no
        other socket.

        A head in a tree also needs the work directory, /dev and /proc. All mounts end with the
        namespace.
        """
        root = self._tree or Path("/")
        run(["mount", "-t", "tmpfs", "tmpfs", root / "run"])
        (root / "run" / "munge").mkdir(mode=0o755)
        if self._tree is None:
            return
        work_in_tree = self._tree / str(self._work).lstrip("/")
        work_in_tree.mkdir(parents=True, exist_ok=True)
        run(["mount", "--bind", self._work, work_in_tree])
        run(["mount", "--rbind", "/dev", self._tree / "dev"])
        run(["mount", "-t", "proc", "proc", self._tree / "proc"])

    def _start_munged(self) -> None:
        work = self._work
        self._start(
            ["munged", "--foreground", "--force", f"--key-file={self.key}",
             f"--pid-file={work}/munged.pid",
             f"--seed-file={work}/munged.seed", f"--log-file={work}/munged.log"], "munged",
        )  # fmt: skip

    def _start(self, command: Sequence[str], name: str) -> None:
        self._running.append(started([*self._chroot, *command], self._work / f"{name}.out"))
