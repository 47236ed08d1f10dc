"""The configuration of commands that look, and of orders: also while its file is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.config.fresh import load_or_installed


def config_to_look(args: argparse.Namespace) -> Config:
    """The configuration of ``--config``. While that file is wrong, return the configuration of the
    last ``conf install`` and say so on stderr. ConfigError if there is neither.
    """
    return load_or_installed(Path(args.config), _warn)


def _warn(text: str) -> None:
    print(f"slurm-elastic: {visible(text)}", file=sys.stderr)
