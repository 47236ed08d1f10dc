"""Clouds and pools put into a configuration that is there; nothing in it is touched.

They go to the end of the lists ``clouds`` and ``pools``, as text, so that comments and order stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.found import Found
from slurm_elastic.setup.compose import REHEARSAL, cloud_lines, pool_lines
from slurm_elastic.setup.questions import Answers
from slurm_elastic.setup.site import Facts

_TOP = re.compile(r"[^\s#-]")


def added(text: str, source: str, clouds: Sequence[Found], site: Facts, given: Answers) -> str:
    """``text`` with the clouds that it lacks. ConfigError where it is wrong, or written in a form
    that nothing can be added to.
    """
    config = configfile.parse(text, source)
    there = {cloud.name for cloud in config.clouds} | {pool.name for pool in config.pools}
    new = [one for one in clouds if one is not REHEARSAL and one.name not in there]
    if not new:
        return text
    for section, make in (("clouds", cloud_lines), ("pools", None)):
        lines = [
            line
            for one in new
            for line in (make(one, given) if make else pool_lines(one, site, given))
        ]
        text = _appended(text, source, section, lines)
    whole = configfile.parse(text, source)
    if whole.clouds[: len(config.clouds)] != config.clouds:
        raise ConfigError(f"{source}: clouds cannot be added to it; add them by hand")
    return text


def _appended(text: str, source: str, section: str, lines: Sequence[str]) -> str:
    rows = text.splitlines()
    try:
        start = next(i for i, row in enumerate(rows) if row.split("#")[0].rstrip() == f"{section}:")
    except StopIteration:
        raise ConfigError(
            f"{source}: {section}: found no line of its own, expected '{section}:' with entries "
            "below it; add the new ones by hand"
        ) from None
    following = (i for i in range(start + 1, len(rows)) if _TOP.match(rows[i]))
    end = next(following, len(rows))
    while end > start + 1 and not rows[end - 1].strip():
        end -= 1
    entry = next((row for row in rows[start + 1 : end] if row.lstrip().startswith("- ")), "  - ")
    shift = len(entry) - len(entry.lstrip()) - 2
    shifted = [(" " * shift + row) if shift >= 0 else row[-shift:] for row in lines]
    return "\n".join((*rows[:end], *shifted, *rows[end:])) + "\n"
