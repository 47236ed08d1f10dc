"""The option ``--config`` of all services, and types for the values of options.

Each type raises ``argparse.ArgumentTypeError`` that says which value it expects.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DEFAULT_CONFIG = "/etc/slurm-elastic/slurm-elastic.yaml"
"""The systemd units name the same file."""
CONFIG_VARIABLE = "SLURM_ELASTIC_CONFIG"  # this environment variable names another file
MAX_ARGUMENT = 10**9  # the largest number that an option accepts; as seconds it is 31 years
_SHOWN = 24


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--config``."""
    default = os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG
    parser.add_argument(
        "--config", type=Path, default=Path(default), metavar="FILE",
        help="read this configuration (default: %(default)s)",
    )  # fmt: skip


def seconds(text: str) -> int:
    """Parse whole seconds, 0 or more."""
    return _whole(text, 0, f"a number of seconds up to {MAX_ARGUMENT}")


def count(text: str) -> int:
    """Parse a whole number, 1 or more."""
    return _whole(text, 1, f"a positive number up to {MAX_ARGUMENT}")


def amount(text: str) -> float:
    """Parse dollars, 0 or more."""
    return _number(text, "an amount of dollars")


def pause(text: str) -> float:
    """Parse seconds, also fractions of a second, 0 or more."""
    return _number(text, f"a number of seconds up to {MAX_ARGUMENT}")


def speed(text: str) -> float:
    """Parse how many times as fast as the clock something runs, 0 (it stands) or more."""
    return _number(text, f"a speed from 0 to {MAX_ARGUMENT}")


def _whole(text: str, lowest: int, expected: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= MAX_ARGUMENT:
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is not {expected}")
    return number


def _number(text: str, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_ARGUMENT:  # also rejects NaN, which no comparison holds for
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is not {expected}")
    return number
