"""Clouds, pools and answers put into a configuration that is there, as text: all that they do not
concern stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import format_duration
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.compose import REHEARSAL, cloud_lines, flow, pool_lines
from slurm_elastic.setup.questions import Answers, Earlier
from slurm_elastic.setup.site import Facts

_TOP = re.compile(r"[^\s#-]")
_IN_A_LINE = re.compile(r"(?P<key>[a-z_]+:\s*)(?P<value>\{[^{}]*\})(?P<rest>.*)")


def earlier(config: Config) -> Earlier:
    """What it answers already."""
    who, cap = config.who, config.limits.dollars_per_hour
    given = Answers(
        accounts=who.accounts, groups=who.groups, cap=cap, max_time=who.max_time,
        head=config.join.head or "", checkpoints=config.checkpoint.directory or "",
    )  # fmt: skip
    names = frozenset({*(c.name for c in config.clouds), *(p.name for p in config.pools)})
    public = any(cloud.location is Location.PUBLIC for cloud in config.clouds)
    joins = any(cloud.by_user_data for cloud in config.clouds)
    return Earlier(answers=given, names=names, public=public, joins=joins)


def answered(text: str, source: str, before: Answers, given: Answers) -> str:
    """``text`` with the answers that are others than it has."""
    for section, key, old, new in (
        ("who", "accounts", before.accounts, given.accounts),
        ("who", "groups", before.groups, given.groups),
        ("who", "max_time", before.max_time, given.max_time),
        ("limits", "dollars_per_hour", before.cap, given.cap),
        ("join", "head", before.head, given.head),
        ("checkpoint", "directory", before.checkpoints, given.checkpoints),
    ):
        if old != new:
            value = list(new) if isinstance(new, tuple) else new
            if key == "max_time" and isinstance(new, float):
                value = str(format_duration(new))
            text = _set(text, source, section, key, value)
    return text


def _set(text: str, source: str, section: str, key: str, value: object) -> str:
    """A key of a section that has a line of its own, or none yet; nothing (empty) takes it out."""
    rows = text.splitlines()
    at = next((i for i, row in enumerate(rows) if row.startswith(f"{section}:")), None)
    if at is None:
        before = next((i for i, row in enumerate(rows) if row.startswith("clouds:")), len(rows))
        rows.insert(before, f"{section}: {{{key}: {flow(value)}}}")
        return "\n".join(rows) + "\n"
    line = _IN_A_LINE.fullmatch(rows[at])
    if line is None:
        raise ConfigError(
            f"{source}: {section}: found more than a line of it, expected {section}: {{...}}; put "
            f"{key}: {flow(value)} into it by hand"
        )
    keys = yaml.safe_load(line["value"]) | {key: value}
    left = {name: one for name, one in keys.items() if one not in (None, "", [])}
    rows[at] = f"{line['key']}{flow(left)}{line['rest']}"
    return "\n".join(rows) + "\n"


def added(text: str, source: str, clouds: Sequence[Found], site: Facts, given: Answers) -> str:
    """``text`` with the clouds that it lacks. ConfigError where nothing can be added to it."""
    config = configfile.parse(text, source)
    there = earlier(config).names
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
