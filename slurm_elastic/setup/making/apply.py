"""Carries out the steps of a plan, and puts the names of the resources into the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile, document
from slurm_elastic.model.site_maker import SiteMaker
from slurm_elastic.model.site_resources import FoundResource
from slurm_elastic.setup.edit import flow, put
from slurm_elastic.setup.making.plan import Step, Verb

Attributes = dict[str, Mapping[str, str]]


def attributes_of(existing: Sequence[FoundResource]) -> Attributes:
    """The attributes of existing resources, by key."""
    return {resource.key: resource.attributes for resource in existing}


def carry_out(
    maker: SiteMaker, steps: Sequence[Step], attributes: Attributes
) -> Iterator[tuple[Step, str]]:
    """Carry out the steps one by one. Yield each finished step with the id of its resource, or "".

    The attributes of new resources are added to ``attributes``.
    """
    for step in steps:
        if step.verb is Verb.CREATE and step.needed is not None:
            attributes[step.key] = maker.create(step.needed, attributes)
            yield step, attributes[step.key].get("id", "")
        elif step.verb is Verb.REMOVE and step.existing is not None:
            maker.remove(step.existing, attributes)
            yield step, step.existing.id


def with_names(text: str, source: str, cloud: str, keys: Mapping[str, object]) -> str:
    """The configuration's text with ``keys`` in the entry of the cloud. The value None removes a
    key. All other text stays as it is.

    ConfigError with the lines to put in by hand, if YAML of this style cannot be edited.
    """
    index = _index(configfile.parse(text, source), cloud)
    values: Any = document.read(text, source).value
    entry = values["clouds"][index]
    changed_keys = {key: value for key, value in keys.items() if entry.get(key) != value}
    new_text = text
    for key, value in changed_keys.items():
        if value is None:
            entry.pop(key, None)
        else:
            entry[key] = value
        new_text = put(new_text, ("clouds", index, key), value)
    if not changed_keys:
        return text
    expected = configfile.parse(document.write(values), source)
    try:
        is_same = configfile.parse(new_text, source) == expected
    except ConfigError:
        is_same = False
    if is_same:
        return new_text
    raise ConfigError(
        f"{source}: nothing is changed, because init cannot edit YAML of this style. Put these "
        f"into the entry of cloud {cloud} by hand:",
        *(f"  {k}: {'(remove it)' if v is None else flow(v)}" for k, v in changed_keys.items()),
    )


def without_removed(
    text: str, source: str, cloud: str, removed: Mapping[str, object]
) -> dict[str, object]:
    """The changes of the cloud's entry after these keys' resources have been removed."""
    index = _index(configfile.parse(text, source), cloud)
    values: Any = document.read(text, source).value
    entry = values["clouds"][index]
    changes: dict[str, object] = {}
    for key, gone in removed.items():
        value = entry.get(key)
        if isinstance(gone, Mapping) and isinstance(value, Mapping):
            remaining = {zone: id_ for zone, id_ in value.items() if id_ not in gone.values()}
            changes[key] = remaining or None
        elif isinstance(gone, list) and isinstance(value, list):
            changes[key] = [name for name in value if name not in gone] or None
        elif value == gone:
            changes[key] = None
    return {key: value for key, value in changes.items() if value != entry.get(key)}


def _index(config: Config, cloud: str) -> int:
    return next(i for i, entry in enumerate(config.clouds) if entry.name == cloud)
