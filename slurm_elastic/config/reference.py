"""Lists all keys of the configuration with their places, defaults, and when to change them, for
``slurm-elastic conf keys`` and the pages that are generated from it.

The sentence "Change it when ..." stands below the key in its struct. We read it from the source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise

import msgspec.inspect as mi
import yaml
from msgspec import NODEFAULT, Struct

from slurm_elastic.config import Config
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.decode import render

CLOUDS = ("clouds", "pools")  # the sections with most keys; they come after all others


class ReferenceKey(Struct, frozen=True, kw_only=True):
    """A key at a ``place`` (``limits.nodes``). ``default`` as in the file (empty: required)."""

    place: str
    default: str
    when: str


def keys() -> tuple[ReferenceKey, ...]:
    """Each key once, at its first place. A section is no key."""
    listed_fields: set[tuple[type, str]] = set()
    general = [f for f in _fields(Config) if f.name not in CLOUDS]
    large = [f for f in _fields(Config) if f.name in CLOUDS]
    listed = list(_below(Config, general, "", listed_fields))
    listed += _below(Config, large, "", listed_fields)
    kinds = table()
    for name in sorted(kinds.own_names):
        settings = kinds.kind(name).settings
        listed += _below(settings, _fields(settings), f"clouds ({name})", listed_fields)
    return tuple(listed)


def _below(
    kind: type, fields: list[mi.Field], place: str, listed_fields: set[tuple[type, str]]
) -> Iterator[ReferenceKey]:
    for field in fields:
        home = next(c for c in kind.__mro__ if field.name in inspect.get_annotations(c))
        if (home, field.name) in listed_fields:
            continue
        listed_fields.add((home, field.name))
        key_place = f"{place}.{field.encode_name}" if place else field.encode_name
        inner = tuple(_structs(field.type))
        if not inner or _is_value(field.type):
            yield ReferenceKey(
                place=key_place, default=_default(field), when=sentence(kind, field.name)
            )
        for struct in inner:
            yield from _below(struct, _fields(struct), key_place, listed_fields)


def _fields(kind: type) -> list[mi.Field]:
    info = mi.type_info(kind)
    return list(info.fields) if isinstance(info, mi.StructType) else []


def _structs(kind: mi.Type) -> Iterator[type]:
    """The structs in a value of this type."""
    match kind:
        case mi.StructType():
            yield kind.cls
        case mi.Metadata():
            yield from _structs(kind.type)
        case mi.UnionType():
            for option in kind.types:
                yield from _structs(option)
        case mi.VarTupleType():
            yield from _structs(kind.item_type)
        case mi.DictType():
            yield from _structs(kind.value_type)


def _is_value(kind: mi.Type) -> bool:
    """Whether the file may have a plain value, or names of the site's own, instead of a struct."""
    kind = kind.type if isinstance(kind, mi.Metadata) else kind
    if isinstance(kind, mi.UnionType):
        return any(
            _is_value(option) for option in kind.types if not isinstance(option, mi.NoneType)
        )
    return not isinstance(kind, mi.StructType | mi.VarTupleType) or not any(_structs(kind))


def _default(field: mi.Field) -> str:
    if field.required:
        return ""
    value = field.default
    if value is NODEFAULT:
        value = field.default_factory()
    if value is None or value in ((), {}):
        return "none"
    text = yaml.safe_dump(render(field.type, value), default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def sentence(kind: type, name: str) -> str:
    """The sentence "Change it when ..." of a key, from the class or its nearest base."""
    return next((s for base in kind.__mro__ if (s := _sentences(base).get(name))), "")


_READ: dict[type, dict[str, str]] = {}


def _sentences(kind: type) -> dict[str, str]:
    """The text below each field in the class."""
    if kind not in _READ:
        module = sys.modules[kind.__module__]
        tree = ast.parse(inspect.getsource(module)) if issubclass(kind, Struct) else ast.parse("")
        body = [
            n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__
        ]
        pairs = [pair for stmts in body for pair in pairwise(stmts)]
        _READ[kind] = {
            field.target.id: " ".join(ast.literal_eval(text.value).split())
            for field, text in pairs
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }  # fmt: skip
    return _READ[kind]
