"""``slurm-elastic conf upgrade``: gives the keys of a configuration file their new names."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.operate.console import say
from slurm_elastic.config import configfile
from slurm_elastic.setup.upgrade import upgraded

BACKUP_SUFFIX = ".before-upgrade"


def run(args: argparse.Namespace) -> int:
    """Rewrite the file, or with ``--dry-run`` print the changes only."""
    named_path = Path(args.config)
    path = named_path.resolve()  # a link stays a link; the file behind it is rewritten
    if os.geteuid() == 0:
        configfile.require_ours(path)
    upgrade = upgraded(configfile.text(path), str(named_path))
    if not upgrade.changes:
        say(f"{named_path}: all keys have their newest names")
        return 0
    for line in upgrade.changes:
        say(line)
    _require_valid(upgrade.text, named_path)
    if args.dry_run:
        say(f"{named_path} is not changed, because of --dry-run")
        return 0
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    _write(path, backup, upgrade.text)
    say(f"wrote {named_path}; {backup} has the old text")
    return 0


def _require_valid(text: str, path: Path) -> None:
    """ConfigError if the services would refuse the new text, which is then not written."""
    try:
        configfile.parse(text, str(path), whole=False)
    except ConfigError as error:
        raise ConfigError(
            *error.problems, f"{path} is unchanged: mend this first, then upgrade it"
        ) from None


def _write(path: Path, backup: Path, text: str) -> None:
    try:
        configfile.rewrite(path, text, backup)
    except OSError as error:
        place = error.filename or path
        raise ConfigError(
            f"{place}: cannot be written: {error.strerror}; {path} is unchanged"
        ) from None
