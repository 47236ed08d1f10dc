"""Gives the old keys in a configuration file their new names, and pools the former bid of the whole
site. All other text stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import renamed_keys
from slurm_elastic.config.document import KeyPath, YamlDocument, read
from slurm_elastic.setup import edit


class UpgradedText(Struct, frozen=True, kw_only=True):
    """The new text, and a line about each key that was renamed or moved."""

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
    new_text, moved_bids = _with_bids_of_pools(new_text, source)
    return UpgradedText(text=new_text, changes=(*changes, *moved_bids))


def _with_bids_of_pools(text: str, source: str) -> tuple[str, tuple[str, ...]]:
    """Write a bid of the whole site into each pool that buys spot machines and has no bound."""
    document = read(text, source)
    paths = tuple(renamed_keys.bids_in(document.value))
    if not paths:
        return text, ()
    if len(paths) > 1:
        bids = (f"{source}:{document.line(path)}: {path[-1]}" for path in paths)
        raise ConfigError(f"{' and '.join(bids)} are one price; take out one of them")
    values: Any = document.value  # the paths exist, so all levels above them are mappings
    bid = values["checkpoint"]["prices"][paths[0][-1]]
    pools = values.get("pools")
    numbers = [
        number
        for number, pool in enumerate(pools if isinstance(pools, list) else ())
        if isinstance(pool, dict)
        and isinstance(pool.get("markets"), list)
        and "spot" in pool["markets"]
        and "max_price" not in pool
    ]
    text = edit.put(text, paths[0], None)
    for number in numbers:
        text = edit.put(text, ("pools", number, "max_price"), {"spot": bid})
    expected = [
        {**pool, "max_price": {"spot": bid}} if number in numbers else pool
        for number, pool in enumerate(pools if isinstance(pools, list) else ())
    ]
    # Pools may share an anchor, and then all of them would get the price of one.
    moved: Any = read(text, source).value
    if numbers and moved["pools"] != expected:
        raise ConfigError(
            f"{source}:{document.line(paths[0])}: {document.locate(paths[0])} cannot be moved into"
            " the pools, because an anchor shares them; write max_price: {spot: "
            f"{bid}}} into each pool with spot machines by hand, and take this key out"
        )
    names = [str(pools[number].get("name", number)) for number in numbers]
    moved_to = f"max_price of pool {', '.join(names)}" if names else "gone: no pool needs it"
    place = f"{source}:{document.line(paths[0])}: {document.locate(paths[0])}"
    return text, (f"{place} is now {moved_to}",)


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
