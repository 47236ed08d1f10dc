"""A booted machine's gate and scratch, at its first boot and at one without cloud-init."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.image import head, label, machine
from slurm_elastic.image.check import NAMESPACES
from slurm_elastic.image.commands import ENVIRONMENT
from slurm_elastic.image.trial import TrialOrder

pytestmark = [pytest.mark.machines, pytest.mark.timeout(6000)]

REPO = Path(__file__).parents[2]
STEPS = ["booted", "a user's scratch is empty", "started again without cloud-init",
         "a user's scratch is empty", "drained by its check after a job"]  # fmt: skip


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory that SlurmUser may enter."""
    with tempfile.TemporaryDirectory(prefix="se-gate-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_machines_gate_and_scratch_at_its_first_boot_and_at_one_without_cloud_init(
    own_image: Path, work: Path
) -> None:
    about = label.read(own_image)
    order = TrialOrder(
        image=str(own_image), cloud="ec2", accel=machine.accelerator(own_image, work),
        tree=str(head.tree_for(about.slurm, about.codename, print) or ""),
        heartbeat=5000.0, timeout=2400.0, saves=False,
    )  # fmt: skip
    (work / "order.json").write_bytes(msgspec.json.encode(order))
    paths = {"PYTHONPATH": os.pathsep.join([str(REPO), *sys.path])}
    done = subprocess.run(
        [*NAMESPACES, sys.executable, "-m", "tests.machines.gated", work], text=True, check=False,
        env=ENVIRONMENT | paths, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert [line.split("s  ", 1)[1] for line in done.stdout.splitlines()] == STEPS
