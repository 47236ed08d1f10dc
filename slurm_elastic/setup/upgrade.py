"""Gives the old keys in a configuration file their new names. All other text stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.basics import renamed_keys
from slurm_elastic.config.document import KeyPath, YamlDocument, read
from slurm_elastic.setup import edit


class UpgradedText(Struct, frozen=True, kw_only=True):
    """The new text, and a line about each key that was renamed."""

    text: str
    changes: tuple[str, ...]


def upgraded(text: str, source: str) -> UpgradedText:
    """The text with new keys. ConfigError, which names ``source``, if that cannot be done."""
    document = read(text, source)
    found_keys = tuple(renamed_keys.find(document.value))
    collisions = [_collision(document, key) for key in found_keys if key.has_new]
    if collisions:
        raise ConfigError(*collisions)
    new_names = {key.path: key.new for key in found_keys}
    try:
        new_text = edit.rename_keys(text, new_names)
    except ValueError as error:
        raise ConfigError(
            f"{source}: the key {error} cannot be renamed here, because an anchor shares it with"
            " another section or its spelling is unusual; rename it by hand"
        ) from None
    # A site's only configuration must not get lost through an oversight of ours.
    if read(new_text, source).value != _renamed(document.value, (), new_names):
        raise ConfigError(f"{source}: the old keys cannot be told apart; rename them by hand")
    changes = [f"{_place(document, key)}: {key.path[-1]} is now {key.new}" for key in found_keys]
    return UpgradedText(text=new_text, changes=tuple(changes))


def _collision(document: YamlDocument, key: renamed_keys.FoundKey) -> str:
    return (
        f"{_place(document, key)}: {key.path[-1]} is now {key.new}, which is there, too; take out"
        " one of them"
    )


def _place(document: YamlDocument, key: renamed_keys.FoundKey) -> str:
    section = document.locate(key.path[:-1])
    return f"{document.source}:{document.line(key.path)}" + (f": {section}" if section else "")


def _renamed(value: object, path: KeyPath, new_names: Mapping[KeyPath, str]) -> object:
    if isinstance(value, list):
        return [_renamed(item, (*path, i), new_names) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        new_names.get((*path, key), key): _renamed(inner, (*path, key), new_names)
        for key, inner in value.items()
    }
