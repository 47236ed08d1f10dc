"""The inside of ``test_gate.py``: a virtual machine with a gate, booted, stopped and started.

``python -m tests.machines.gated DIR`` is the first process of namespaces of its own, as
``benchmarks.stopped_machine`` is. Each step is printed when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benchmarks.stopped_machine import Life
from slurm_elastic.config import Config
from slurm_elastic.image import machine, network
from slurm_elastic.image.cloud_metadata import NODE
from slurm_elastic.image.head import TrialHead
from slurm_elastic.image.trial import RAN, TrialOrder
from slurm_elastic.slurm.conf.fragment import EPILOG

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
CHECK = "sh -c 'date >>/run/checked; test ! -e /etc/sick || { echo disk sda fails; exit 3; }'"
PREPARE = """#!/bin/sh -e
mkdir -m 1777 /mnt/nvme
ln -s /mnt/nvme /scratch
exit 42
"""
LEAVE = """#!/bin/sh -e
mkdir /scratch/deep
echo secret >/scratch/deep/secret
test -s /mnt/nvme/deep/secret
exit 42
"""
LOOK = """#!/bin/sh -e
test -L /scratch
test -z "$(ls -A /mnt/nvme)"
test -s /run/checked
until [ -e /var/lib/slurm-elastic-node/machine ]; do sleep 1; done
exit 42
"""
SICKEN = "#!/bin/sh\ntouch /etc/sick; for n in $(seq 60); do sleep 0.5; done; exit 42\n"
"""The agent looks each 5 s whether a job runs. Many short sleeps: however long the machine stands still."""


class Gated(Life):
    """With ``join.check`` and ``join.wipe``, whose program is slurmd's Epilog."""

    def __init__(self, work: Path, order: TrialOrder) -> None:
        super().__init__(work, order)
        tree = Path(order.tree) if order.tree else None
        epilog = (f"Epilog={EPILOG}",)
        self._head = TrialHead(work, tree, NODE, network.address(0), extra_lines=epilog)

    def _configuration(self, key: Path) -> Config:
        config = super()._configuration(key)
        return replace(config, join=replace(config.join, check=CHECK, wipe=("/scratch",)))

    def through(self) -> None:
        self.fresh()
        self._say("booted")
        self.runs(PREPARE)
        self.wiped()
        said = machine.printed(self._console)
        assert "cloud-init schema" not in said, said
        self.off()
        assert self.again()["without"], machine.printed(self._console)
        self._say("started again without cloud-init")
        self.wiped()
        self.ends(SICKEN)  # no wait for an idle node: the check may drain it in the same second
        self._until(lambda: "DRAIN" in self._node()["State"], "its node drained")
        assert "slurm-elastic gate: exit 3: disk sda fails" in self._node()["Reason"], self._node()
        self._say("drained by its check after a job")

    def wiped(self) -> None:
        """A user's files are gone before the node is another job's."""
        self.runs(LEAVE, NOBODY)
        self.runs(LOOK)
        self._say("a user's scratch is empty")

    def runs(self, script: str, before: Sequence[str] = ()) -> None:
        self.ends(script, before)
        self._until(self._is_idle, "its Epilog's end")

    def ends(self, script: str, before: Sequence[str] = ()) -> None:
        words = ["sbatch", "--parsable", f"-w{NODE}", "-n1", "--chdir=/", "--output=/dev/null"]
        number = self._head.command([*before, *words], text=script).strip()
        ended: dict[str, str] = self._until(lambda: self._ended(number), f"the end of job {number}")
        assert ended["ExitCode"] == f"{RAN}:0", (script, ended)

    def _node(self) -> dict[str, str]:
        return self._head.shown("node", NODE)


if __name__ == "__main__":
    work = Path(sys.argv[1])
    Gated(work, msgspec.json.decode((work / "order.json").read_bytes(), type=TrialOrder)).through()
