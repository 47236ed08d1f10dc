"""The places of each key of the configuration, for a person who wrote a key at another level."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec.inspect as mi


def key_places(root: mi.Type) -> Mapping[str, tuple[str, ...]]:
    """Places such as ``clouds[].partition`` by the key alone: the first level and its sections.

    Deeper keys have common names, such as ``price``, and would be wrong hints.
    """
    places: dict[str, tuple[str, ...]] = {}
    for key, place in _places(root):
        places[key] = (*places.get(key, ()), place)
    return places


def place_below(path: Sequence[str | int], keys: Container[str], place: str) -> str:
    """The place of a key. If the level of ``path`` has the same section, the author means the
    section of this level (``clouds[].allow.groups``).
    """
    section, dot, _ = place.partition(".")
    if not path or not dot or section not in keys:
        return place
    level = "".join("[]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{level.removeprefix('.')}.{place}"


def _places(root: mi.Type) -> Iterator[tuple[str, str]]:
    for field in _fields(root):
        key = field.encode_name
        yield key, key
        kind = field.type.type if isinstance(field.type, mi.Metadata) else field.type
        section = key
        if isinstance(kind, mi.VarTupleType):
            section, kind = f"{key}[]", kind.item_type
        for inner in _fields(kind):
            yield inner.encode_name, f"{section}.{inner.encode_name}"


def _fields(kind: mi.Type) -> tuple[mi.Field, ...]:
    return kind.fields if isinstance(kind, mi.StructType) else ()
