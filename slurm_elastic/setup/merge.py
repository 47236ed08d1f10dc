"""Puts clouds, pools and answers into the text of an existing configuration. All other text stays
as it is, except for comments about errors of these clouds that no longer exist.
"""

from __future__ import annotations

import re
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
from slurm_elastic.policies.launch.open_partitions import DEFAULT_PARTITION
from slurm_elastic.setup.compose import REHEARSAL, cloud_lines, dollars, pool_lines
from slurm_elastic.setup.edit import append, flow, put
from slurm_elastic.setup.questions import Answers, Earlier
from slurm_elastic.setup.site import SiteFacts

Edit = tuple[KeyPath, object]
"""The path of a value, and the new value; None removes it."""


def earlier(config: Config, clouds_found: Iterable[Found] = ()) -> Earlier:
    """Return the answers that a configuration already contains. ``clouds_found``: the clouds that
    this host reaches; they show whether machines of a configured cloud join by themselves.
    """
    public = [cloud for cloud in config.clouds if cloud.location is Location.PUBLIC]
    access = config.who_of(public[0]) if public else config.allow
    answers = Answers(
        accounts=access.accounts, groups=access.groups, cap=config.limits.dollars_per_hour,
        max_time=config.allow.max_time, head=config.join.head or "",
        checkpoints=config.checkpoint.directory or "",
    )  # fmt: skip
    names = frozenset({*(c.name for c in config.clouds), *(p.name for p in config.pools)})
    joins = bool(config.join.head) or any(cloud.by_user_data for cloud in config.clouds)
    joins |= any(cloud_found.joins and cloud_found.name in names for cloud_found in clouds_found)
    partitions = any(config.who_of(cloud).partitions for cloud in config.clouds)
    return Earlier(
        answers=answers, names=names, public=bool(public), joins=joins, partitions=partitions
    )


class ConfigMerge:
    """A configuration file with new clouds and answers merged into it.

    ``text`` is the edited file and ``config`` the configuration that it must mean. Raises
    ConfigError if the result would be invalid.
    """

    def __init__(
        self, before: str, source: str, clouds: Sequence[Found], site: SiteFacts, answers: Answers
    ) -> None:
        self._before, self._source = before, source
        # A mistake that the file has already, such as an older TODO, is no flaw of an answer. The
        # checks after init name its line.
        self._whole = not any(cloud.todos for cloud in clouds) and _is_whole(before, source)
        config = self._parse(before)
        already = earlier(config)
        new_clouds = [
            cloud for cloud in clouds if cloud is not REHEARSAL and cloud.name not in already.names
        ]
        self._edits = tuple(_edits(config, already.answers, answers))
        self._new_clouds = new_clouds
        self._clouds = [
            line for cloud in new_clouds for line in cloud_lines(cloud, site, answers, config.allow)
        ]
        self._pools = [line for cloud in new_clouds for line in pool_lines(cloud, site, answers)]
        # ``config`` is made from changed values and ``text`` by edits of the text. Only if both
        # mean the same is the text written.
        self.config = self._parse(document.write(self._values()))

    def _parse(self, text: str) -> Config:
        return configfile.parse(text, self._source, whole=self._whole)

    def _values(self) -> object:
        values: Any = document.read(self._before, self._source).value
        for path, value in self._edits:
            _set(values, path, value)
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            values[section] += yaml.safe_load("\n".join(lines)) or []
        return values

    @property
    def text(self) -> str:
        """Return the edited file. Raises ConfigError with all changes, for editing by hand, if the
        edited text does not mean ``config``.
        """
        # The file may use YAML that ``put`` cannot edit, such as anchors.
        with suppress(ConfigError, yaml.YAMLError):
            text = self._edited()
            if self._parse(text) == self.config:
                return text
        raise ConfigError(
            f"{self._source}: nothing is changed, because init cannot edit YAML of this style. "
            "Put these in by hand:",
            *self._by_hand(),
        )

    def _edited(self) -> str:
        text = without_old_steps(self._before, self._new_clouds)
        for path, value in self._edits:
            text = put(text, path, value)
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            text = append(text, section, lines) if lines else text
        return text

    def _by_hand(self) -> Iterator[str]:
        read = document.read(self._before, self._source)
        for path, value in self._edits:
            yield f"  {read.locate(path)}: {'(remove it)' if value is None else flow(value)}"
        for section, lines in (("clouds", self._clouds), ("pools", self._pools)):
            yield from (f"{section}:", *lines) if lines else ()


def without_old_steps(text: str, clouds: Iterable[Found]) -> str:
    """Return the text without the comments of an earlier init about these ``clouds``, which could
    not be used then.
    """
    for cloud in clouds:
        text = re.sub(rf"^[ \t]+# {re.escape(cloud.what)}: .*\n", "", text, flags=re.MULTILINE)
    return text


def _is_whole(text: str, source: str) -> bool:
    """Whether no cloud of the file has a mistake or a TODO."""
    try:
        configfile.parse(text, source)
    except ConfigError:
        return False
    return True


def _edits(config: Config, before: Answers, answers: Answers) -> Iterator[Edit]:
    for key in ("accounts", "groups"):
        names = getattr(answers, key)
        if names != getattr(before, key):
            yield from (
                ((*place, key), list(names) or None) for place in _access_paths(config, names)
            )
    if answers.max_time != before.max_time:
        time = None if answers.max_time is None else str(format_duration(answers.max_time))
        yield ("allow", "max_time"), time
    if answers.default_partition and not before.default_partition:
        yield ("allow", "partitions"), [DEFAULT_PARTITION]
    if answers.cap != before.cap:
        yield ("limits", "dollars_per_hour"), None if answers.cap is None else dollars(answers.cap)
    if answers.head != before.head:
        yield ("join", "head"), answers.head or None
    if answers.checkpoints != before.checkpoints:
        yield ("checkpoint", "directory"), answers.checkpoints or None


def _access_paths(config: Config, names: Sequence[str]) -> Iterator[KeyPath]:
    """Yield the places of the lists that say who may use public clouds.

    Raises ConfigError if ``names`` is empty and the list to change also holds for the site's own
    clouds, because an empty list would open them to all users.
    """
    public = [i for i, c in enumerate(config.clouds) if c.location is Location.PUBLIC]
    everywhere = config.allow.anybody
    if everywhere and len(public) == len(config.clouds):
        yield ("allow",)
    elif everywhere and public and not names:
        raise ConfigError("the list in allow also applies to your own clouds: edit it by hand")
    else:
        yield from (("clouds", i, "allow") for i in public)


def _set(values: Any, path: KeyPath, value: object) -> None:  # noqa: ANN401 - of YAML
    """Change ``values`` in the same way in which ``put`` changes the text, so that ``text`` can
    compare both results.
    """
    key, *below = path
    if below:
        inner = values[key] if isinstance(key, int) else values.get(key) or {}
        _set(inner, tuple(below), value)
        value = inner or None
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
