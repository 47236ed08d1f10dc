"""``slurm-elastic replace``: empty machines after their jobs, and start new ones when needed."""

from __future__ import annotations

import functools

from slurm_elastic.cli.orders.departure_orders import add_leaving, add_subject, leave
from slurm_elastic.cli.orders.giving_orders import Subparsers, add_command, add_options


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "replace",
        "End the current machines of a cloud, a pool or some nodes when their jobs have ended, a "
        "few at a time with --max-unavailable. New machines start when they are needed, from the "
        "image in the configuration.",
        "slurm-elastic replace burst --max-unavailable 2 --reason 'new image'",
        "slurm-elastic replace pub3 --aggressive",
        run=functools.partial(leave, "replace"),
    )
    add_subject(parser)
    add_leaving(parser)
    add_options(parser, ends=False)
