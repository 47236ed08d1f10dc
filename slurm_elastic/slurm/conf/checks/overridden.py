"""Options that our installed fragment sets and that a later line of slurm.conf sets otherwise.

slurmctld uses the last of two lines without a word (22.05 to 26.05). ``conf install`` puts our
include line last, so this happens only when a person adds options behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import Entry, read_lines
from slurm_elastic.slurm.conf import fragment

_ADDED_UP = frozenset({"prologslurmctld", "epilogslurmctld"})
_ADDS_UP_SINCE = (23, 11)
"""Since this release Slurm runs the programs of all lines of these options."""


def overridden(config: Config, version: tuple[int, int]) -> Iterator[str]:
    """A sentence for each option, with the file and line that overrides it."""
    added_up = _ADDED_UP if version >= _ADDS_UP_SINCE else frozenset()
    own_entries: dict[str, Entry] = {}
    winners: dict[str, Entry] = {}
    for entry in _options(config):
        is_ours = Path(entry.file).name == fragment.FILE_NAME
        if is_ours:
            own_entries[entry.key] = entry
            winners.pop(entry.key, None)
        elif entry.key in own_entries and entry.key not in added_up:
            winners[entry.key] = entry
    for key, winner in winners.items():
        own_entry = own_entries[key]
        if not _items(own_entry) <= _items(winner):
            yield (
                f"{winner.location}: {winner.name}={winner.value} stands behind our include line,"
                f" so Slurm ignores {own_entry.name}={own_entry.value} of {fragment.FILE_NAME};"
                " `slurm-elastic conf install` moves our line to the end and keeps your values"
            )


def _items(entry: Entry) -> frozenset[str]:
    """The items of a list; of an option that is no list, the value."""
    return frozenset(confvalues.items(entry.name, entry.value))


def _options(config: Config) -> Iterator[Entry]:
    """The options of slurm.conf and all that it includes, in Slurm's order. No options if they
    cannot be read.
    """
    try:
        lines = read_lines(Path(config.slurm.conf))
    except ConfigError:
        return  # nothing is installed, or the plan has reported the mistake
    for line in lines:
        if not line.is_record:
            yield from line.entries
