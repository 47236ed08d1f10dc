"""Lists all keys of the configuration with their places, defaults, and when one would change them,
for ``slurm-elastic conf keys`` and the pages that are made from it.

The sentence "Change it when ..." stands below the key in its struct; we read it from the source.
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

CLOUDS = ("clouds", "pools")  # the sections that have most keys; they come after all others


class Key(Struct, frozen=True, kw_only=True):
    """A key at a ``place`` (``timings.grace``); ``default`` as in the file (empty: required)."""

    place: str
    default: str
    when: str


def keys() -> tuple[Key, ...]:
    """Each key once, at the first place that has it. Sections are no keys."""
    seen: set[tuple[type, str]] = set()
    general = [f for f in _fields(Config) if f.name not in CLOUDS]
    large = [f for f in _fields(Config) if f.name in CLOUDS]
    found = list(_below(Config, general, "", seen))
    found += _below(Config, large, "", seen)
    own = table()
    for name in sorted(own.own):
        settings = own.kind(name).settings
        found += _below(settings, _fields(settings), f"clouds ({name})", seen)
    return tuple(found)


def _below(
    kind: type, fields: list[mi.Field], place: str, seen: set[tuple[type, str]]
) -> Iterator[Key]:
    for field in fields:
        home = next(c for c in kind.__mro__ if field.name in inspect.get_annotations(c))
        if (home, field.name) in seen:
            continue
        seen.add((home, field.name))
        at = f"{place}.{field.name}" if place else field.name
        inner = tuple(_structs(field.type))
        if not inner or _is_value(field.type):
            yield Key(place=at, default=_default(field), when=_sentence(kind, field.name))
        for one in inner:
            yield from _below(one, _fields(one), at, seen)


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
    """Whether the file may give a plain value, or names of the site's own, instead of a struct."""
    kind = kind.type if isinstance(kind, mi.Metadata) else kind
    if isinstance(kind, mi.UnionType):
        return any(_is_value(one) for one in kind.types if not isinstance(one, mi.NoneType))
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


def _sentence(kind: type, name: str) -> str:
    """The sentence of the class, or of its nearest base that has one."""
    return next((s for base in kind.__mro__ if (s := _sentences(base).get(name))), "")


_READ: dict[type, dict[str, str]] = {}


def _sentences(kind: type) -> dict[str, str]:
    """The texts below a class's fields."""
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
