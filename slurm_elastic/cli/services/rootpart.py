"""``slurm-elastic rootpart``: write the program that nodes need for criu and dmtcp checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.pages import page
from slurm_elastic.cli.helptext import examples
from slurm_elastic.machine.ckptroot.bundle import build
from slurm_elastic.machine.ckptroot.site import CONFIG
from slurm_elastic.slurm.hooks.launcher import PROGRAM

NEXT = f"""\
on the nodes ({page("checkpoint-criu")}): install it as {PROGRAM}, owner root, mode 0755;
  etc/sudoers.d-slurm-elastic as /etc/sudoers.d/slurm-elastic, mode 0440;
  etc/ckpt-root.conf as {CONFIG}, and a key beside it, the same on all nodes"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "rootpart",
        description="Write the program that nodes run as root for checkpoints by criu and dmtcp: "
        "one file. On the nodes it needs Python 3.11 or later and nothing else of slurm-elastic.",
        epilog=examples("slurm-elastic rootpart slurm-elastic-ckpt-root"),
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="write the program to this file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    file: Path = args.file
    writing.as_told(file, build(), executable=True)
    print(f"wrote {file}: {file.stat().st_size} bytes\n{NEXT}")
    return 0
