"""From power-on to a node of Slurm: a stopped machine that is started, beside a fresh boot.

A virtual machine of qemu's, of an image of this host's release, told who it is as by EC2: user
data by cloud-init, the munge key by SSH. It boots, is shut down, and is started from its disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.report import Report, compared, noted, report
from slurm_elastic.image import disk, head, label, machine, network
from slurm_elastic.image.build import build
from slurm_elastic.image.check import NAMESPACES
from slurm_elastic.image.commands import ENVIRONMENT, require
from slurm_elastic.image.recipe import Recipe
from slurm_elastic.image.trial import TrialOrder

GOAL = 1 / 3
"""A share of a fresh boot's time."""
HEARTBEAT = 3600.0
PATIENCE = 1800.0
"""Seconds for each step of a boot; without KVM they take minutes."""


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench stopped")
    parser.add_argument("--image", type=Path, help="boot this one (default: one is built)")
    parser.add_argument("--starts", type=int, default=1, help="of the stopped machine (default: 1)")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="put each boot's console here, with what took it so long",
    )
    options = parser.parse_args(arguments)
    require(disk.PROGRAMS | machine.PROGRAMS | network.PROGRAMS)
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-stopped-", dir="/var/tmp") as name:
        work = Path(name)
        work.chmod(0o755)
        image = options.image or _built(work)
        if options.keep:
            (work / "tells").touch()
        try:
            accel, boots = _measured(work, image, options.starts)
        finally:
            if options.keep:
                _keep(work, options.keep)
    return _rows(accel, boots)


def _keep(work: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for console in work.glob("console*"):
        (place / console.name).write_bytes(console.read_bytes())


def _built(work: Path) -> Path:
    image = work / "image.qcow2"
    build(Recipe(), image, _say)
    return image


def _measured(work: Path, image: Path, starts: int) -> tuple[str, list[dict[str, float]]]:
    """By which accelerator, and what each boot took, the fresh one first."""
    about = label.read(image)
    accel = machine.accelerator(image, work)
    tree = head.tree_for(about.slurm, about.codename, _say)
    order = TrialOrder(
        image=str(image.resolve()), cloud="ec2", accel=accel, tree=str(tree or ""),
        heartbeat=HEARTBEAT, timeout=PATIENCE, saves=False,
    )  # fmt: skip
    (work / "order.json").write_bytes(msgspec.json.encode(order))
    (work / "starts").write_text(str(starts))
    image.read_bytes()  # the first boot reads it from memory as the others do
    words = [*NAMESPACES, sys.executable, "-m", "benchmarks.stopped_machine", str(work)]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | paths
    ) as process:
        assert process.stdout is not None
        boots = [json.loads(_said(line)) for line in process.stdout]
    if process.returncode or len(boots) != starts + 1:
        sys.exit(f"the measurement broke off: exit {process.returncode}")
    return accel, boots


def _rows(accel: str, boots: Sequence[dict[str, float]]) -> Report:
    fresh, again = boots[0], boots[1:]
    rows = [
        compared(what, statistics.median(b[key] for b in again), fresh[key], "s", at_most=most)
        for what, key, most in (
            ("power-on to its node idle in Slurm", "joined", GOAL),
            ("processor time until its node is idle", "processor", None),
        )
    ]
    without = sum(b["without"] for b in again)
    return report(
        "stopped",
        [
            *rows,
            noted(f"starts, by {accel}", len(again), "starts"),
            noted("of these without cloud-init", without, "starts"),
        ],
    )


def _said(line: str) -> str:
    _say(line.rstrip())
    return line


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
