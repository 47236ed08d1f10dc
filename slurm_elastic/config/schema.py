"""The JSON Schema (draft 2020-12) of the configuration file, for editors.

It is made of the same types as ``decode`` converts by (``msgspec.inspect``). msgspec's own schema
does not fit, because the file has units (``15m``, ``4G``) and families of clouds. A schema cannot
say all that the reader checks. docs/configuration.md lists the differences.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress

import msgspec.inspect as mi
from msgspec import NODEFAULT

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import MAX_NUMBER, render
from slurm_elastic.config.reference import sentence

Schema = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_CLOUD = "Cloud"
_WORD: Schema = {"$ref": "#/$defs/Text"}
_END = r"$(?!\n)"
"""Python's ``$`` also matches before a last newline, JavaScript's does not."""
_NUMBER = r"\d{1,12}(\.\d{1,6})?"
_TEXT = r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?" + _END
_SLURM_TIME = r"\d{1,6}-\d{1,2}(:\d\d){0,2}|\d{1,6}:\d\d:\d\d"
_UNIT_PATTERNS = {
    "duration": rf"^({_NUMBER}\s*[smhd]?|{_SLURM_TIME}){_END}",
    "size": rf"^{_NUMBER}\s*[MGTmgt]?([iI][bB])?{_END}",
    "moment": rf"^\d{{4}}-?\d{{2}}-?\d{{2}}([T ].*)?{_END}",
}


def schema() -> Schema:
    """The whole schema as plain values."""
    maker = _Maker()
    whole = maker.of(mi.type_info(Config))
    return {
        "$schema": DIALECT,
        "title": "slurm-elastic.yaml",
        "description": "The configuration of slurm-elastic. docs/configuration.md explains it.",
        **whole,
        "$defs": dict(sorted(maker.definitions.items())),
    }


class _Maker:
    """Makes the schemas of types. ``definitions``: the schemas of structs, by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {"Text": {"type": "string", "pattern": _TEXT}}
        self._names: dict[type, str] = {}

    def of(self, kind: mi.Type) -> Schema:
        """The schema of the plain values that ``decode`` accepts for this type."""
        extra: Mapping[str, object] = (kind.extra if isinstance(kind, mi.Metadata) else None) or {}
        kind = kind.type if isinstance(kind, mi.Metadata) else kind
        match kind:
            case mi.StructType() if kind.cls is CloudSettings:
                return self._clouds()
            case mi.StructType():
                return self._reference(kind)
            case mi.UnionType():
                return self._union(kind)
            case mi.VarTupleType():
                return self._list(kind)
            case mi.DictType():
                items = {"additionalProperties": self.of(kind.value_type)}
                least = {"minProperties": kind.min_length} if kind.min_length else {}
                return {"type": "object", "propertyNames": _WORD, **items, **least}
            case mi.EnumType():
                return {"enum": [member.value for member in kind.cls]}
            case mi.BoolType():
                return {"type": "boolean"}
            case mi.IntType() | mi.FloatType():
                return _number(kind, str(extra.get("unit", "")))
        return {"anyOf": [{"type": "integer"}, _WORD]} if extra.get("number") else {**_WORD}

    def _union(self, kind: mi.UnionType) -> Schema:
        """The schema of a union: any of the schemas of its options."""
        options = [self.of(option) for option in kind.types if not isinstance(option, mi.NoneType)]
        null: list[Schema] = [{"type": "null"}] if len(options) < len(kind.types) else []
        every = [*options, *null]
        return every[0] if len(every) == 1 else {"anyOf": every}

    def _list(self, kind: mi.VarTupleType) -> Schema:
        item = self.of(kind.item_type)
        least = {"minItems": kind.min_length} if kind.min_length else {}
        # The reader refuses the same word twice, but not two equal mappings.
        has_words = item == _WORD or "enum" in item
        return {
            "type": "array", "items": item, **least, **({"uniqueItems": True} if has_words else {})
        }  # fmt: skip

    def _reference(self, kind: mi.StructType) -> Schema:
        name = self._names.get(kind.cls)
        if name is None:
            name = kind.cls.__name__
            if name in self.definitions:
                name = f"{kind.cls.__module__.split('.')[-2].capitalize()}{name}"
            self._names[kind.cls] = name
            self.definitions[name] = {}  # a struct may contain itself
            self.definitions[name] = self._struct(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _struct(self, kind: mi.StructType) -> Schema:
        tag: Schema = {kind.tag_field: {"const": kind.tag}} if kind.tag_field else {}
        properties = {f.encode_name: self._property(kind.cls, f) for f in kind.fields}
        required = [*tag, *(f.encode_name for f in kind.fields if f.required)]
        return {
            "type": "object",
            "description": " ".join((inspect.getdoc(kind.cls) or "").split()),
            "properties": tag | properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def _property(self, owner: type, field: mi.Field) -> Schema:
        text = sentence(owner, field.name)
        described: Schema = {"description": text} if text else {}
        return {**self.of(field.type), **described, **_default(field)}

    def _clouds(self) -> Schema:
        """The schema of a cloud. The key ``provider`` chooses the schema of its kind, so an editor
        reports only mistakes by that schema.
        """
        if _CLOUD not in self.definitions:
            kinds: dict[str, Schema] = {}
            for name in table().names():
                # A broken package of others must not take the schema from all other clouds.
                with suppress(ConfigError):
                    kinds[name] = self._reference(table().member(name))
            self.definitions[_CLOUD] = {
                "type": "object",
                "properties": {"provider": {"enum": list(kinds), "description": "Its kind."}},
                "required": ["provider"],
                "allOf": [
                    {"if": {"properties": {"provider": {"const": name}}}, "then": reference}
                    for name, reference in kinds.items()
                ],
            }
        return {"$ref": f"#/$defs/{_CLOUD}"}


def _number(kind: mi.IntType | mi.FloatType, unit: str) -> Schema:
    number: Schema = {"type": "integer" if isinstance(kind, mi.IntType) else "number"}
    number |= {"exclusiveMinimum": kind.gt} if kind.gt is not None else {"minimum": kind.ge or 0}
    number["maximum"] = MAX_NUMBER if kind.le is None else kind.le
    if not unit:
        return number
    return {"anyOf": [number, {"type": "string", "pattern": _UNIT_PATTERNS[unit]}]}


def _default(field: mi.Field) -> Schema:
    if field.required:
        return {}
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    plain = render(field.type, value)
    # A whole section needs none, because its keys have theirs.
    return {} if plain is None or isinstance(plain, dict) else {"default": plain}
