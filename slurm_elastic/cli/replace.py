"""``slurm-elastic replace``: machines leave, and others may start in their place."""

from __future__ import annotations

import argparse

from slurm_elastic.cli.directing import WHO_MAY, add_options
from slurm_elastic.cli.drain import add_leaving, leave
from slurm_elastic.cli.helptext import examples


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "replace",
        description="Have the machines that a cloud, a pool or some nodes have now leave when "
        "their jobs have ended, a few at a time with --max-unavailable. New ones start whenever "
        f"they are needed, from the image that the configuration names by then. {WHO_MAY}",
        epilog=examples(
            "slurm-elastic replace burst --max-unavailable 2 --reason 'new image'",
            "slurm-elastic replace pub3 --aggressive",
        ),
    )
    add_leaving(parser)
    add_options(parser, ends=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Say what will be done, and do it; 2 for what is not ours."""
    return leave("replace", args, None)
