"""Clouds, pools and answers put into a configuration that is there, as text: all that they do not
concern stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import yaml

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import format_duration
from slurm_elastic.config import Config, configfile, document
from slurm_elastic.config.document import KeyPath
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.compose import REHEARSAL, cloud_lines, dollars, pool_lines
from slurm_elastic.setup.edit import append, flow, put
from slurm_elastic.setup.questions import Answers, Earlier
from slurm_elastic.setup.site import Facts

Edit = tuple[KeyPath, object]
"""A value and its place; None is taken out."""


def earlier(config: Config, found: Iterable[Found] = ()) -> Earlier:
    """What it answers already. What is ``found`` again tells whether machines of it join."""
    public = [cloud for cloud in config.clouds if cloud.location is Location.PUBLIC]
    who = config.who_of(public[0]) if public else config.who
    given = Answers(
        accounts=who.accounts, groups=who.groups, cap=config.limits.dollars_per_hour,
        max_time=config.who.max_time, head=config.join.head or "",
        checkpoints=config.checkpoint.directory or "",
    )  # fmt: skip
    names = frozenset({*(c.name for c in config.clouds), *(p.name for p in config.pools)})
    joins = bool(config.join.head) or any(cloud.by_user_data for cloud in config.clouds)
    joins |= any(one.joins and one.name in names for one in found)
    return Earlier(answers=given, names=names, public=bool(public), joins=joins)


class Merge:
    """A configuration, its clouds to be and answers; ``text`` has all of them, ``config`` means
    the same. ConfigError where the configuration's rules are against it.
    """

    def __init__(
        self, before: str, source: str, clouds: Sequence[Found], site: Facts, given: Answers
    ) -> None:
        self._before, self._source = before, source
        config = configfile.parse(before, source)
        there = earlier(config)
        new = [one for one in clouds if one is not REHEARSAL and one.name not in there.names]
        self._edits = tuple(_edits(config, there.answers, given))
        self._clouds = [line for one in new for line in cloud_lines(one, given, config.who)]
        self._pools = [line for one in new for line in pool_lines(one, site, given)]
        self.config = configfile.parse(document.write(self._values()), source)

    def _values(self) -> object:
        values: Any = document.read(self._before, self._source).value
        for path, value in self._edits:
            _set(values, path, value)
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            values[section] += yaml.safe_load("\n".join(lines)) or []
        return values

    @property
    def text(self) -> str:
        """ConfigError, with all that is to be put in by hand, where that is not what it means."""
        with suppress(ConfigError, yaml.YAMLError):  # it is written as ``put`` cannot edit
            text = self._edited()
            if configfile.parse(text, self._source) == self.config:
                return text
        raise ConfigError(
            f"{self._source}: nothing is changed, as it is written in a way that init cannot edit. "
            "Put in by hand:",
            *self._by_hand(),
        )

    def _edited(self) -> str:
        text = self._before
        for path, value in self._edits:
            text = put(text, path, value)
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            text = append(text, section, lines) if lines else text
        return text

    def _by_hand(self) -> Iterator[str]:
        read = document.read(self._before, self._source)
        for path, value in self._edits:
            yield f"  {read.locate(path)}: {'(take it out)' if value is None else flow(value)}"
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            yield from (f"{section}:", *lines) if lines else ()


def _edits(config: Config, before: Answers, given: Answers) -> Iterator[Edit]:
    for key in ("accounts", "groups"):
        names = getattr(given, key)
        if names != getattr(before, key):
            yield from (((*place, key), list(names) or None) for place in _lists(config, names))
    if given.max_time != before.max_time:
        time = None if given.max_time is None else str(format_duration(given.max_time))
        yield ("who", "max_time"), time
    if given.cap != before.cap:
        yield ("limits", "dollars_per_hour"), None if given.cap is None else dollars(given.cap)
    if given.head != before.head:
        yield ("join", "head"), given.head or None
    if given.checkpoints != before.checkpoints:
        yield ("checkpoint", "directory"), given.checkpoints or None


def _lists(config: Config, names: Sequence[str]) -> Iterator[KeyPath]:
    """Where it is said who may use public clouds: never where that holds for others, too."""
    public = [i for i, c in enumerate(config.clouds) if c.location is Location.PUBLIC]
    everywhere = config.who.anybody
    if everywhere and len(public) == len(config.clouds):
        yield ("who",)
    elif everywhere and public and not names:
        raise ConfigError("the list in who holds for clouds of your own, too: change it by hand")
    else:
        yield from (("clouds", i, "who") for i in public)


def _set(values: Any, path: KeyPath, value: object) -> None:  # noqa: ANN401 - of YAML
    """As ``put`` does it to text."""
    key, *below = path
    if below:
        inner = values[key] if isinstance(key, int) else values.get(key) or {}
        _set(inner, tuple(below), value)
        value = inner or None
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
