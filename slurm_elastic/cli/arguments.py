"""Options: the one that all services have; and values, of which each type says what it expected."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DEFAULT_CONFIG = "/etc/slurm-elastic/slurm-elastic.yaml"
"""The configuration that the services' units name, too."""
CONFIG_VARIABLE = "SLURM_ELASTIC_CONFIG"  # the environment's word for another one
MOST = 10**9  # no number of an option is larger: 31 years, where it is seconds
_SHOWN = 24


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option ``--config`` of a service."""
    default = os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG
    parser.add_argument(
        "--config", type=Path, default=Path(default), metavar="FILE",
        help="read this configuration (default: %(default)s)",
    )  # fmt: skip


def seconds(text: str) -> int:
    """Whole seconds, 0 or more."""
    return _whole(text, 0, f"a number of seconds up to {MOST}")


def count(text: str) -> int:
    """A number from 1 on."""
    return _whole(text, 1, f"a positive number up to {MOST}")


def amount(text: str) -> float:
    """Dollars, 0 or more."""
    return _number(text, "an amount of dollars")


def pause(text: str) -> float:
    """Seconds and parts of them, 0 or more."""
    return _number(text, f"a number of seconds up to {MOST}")


def _whole(text: str, least: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is not {what}")
    return number


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MOST:  # nor is it NaN
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is not {what}")
    return number
