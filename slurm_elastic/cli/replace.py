"""``slurm-elastic replace``: machines leave, and others may start in their place."""

from __future__ import annotations

import functools

from slurm_elastic.cli.departure_orders import add_leaving, add_subject, leave
from slurm_elastic.cli.giving_orders import Subparsers, add_command, add_options


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "replace",
        "Have the machines that a cloud, a pool or some nodes have now leave when their jobs have "
        "ended, a few at a time with --max-unavailable. New ones start whenever they are needed, "
        "from the image that the configuration names by then.",
        "slurm-elastic replace burst --max-unavailable 2 --reason 'new image'",
        "slurm-elastic replace pub3 --aggressive",
        run=functools.partial(leave, "replace"),
    )
    add_subject(parser)
    add_leaving(parser)
    add_options(parser, ends=False)
