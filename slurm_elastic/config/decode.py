"""Turns plain values into the frozen types of ``config``, and collects all complaints.

The types are the schema (read through ``msgspec.inspect``), with fields, defaults and bounds.
``Meta(extra={"unit": ...})`` says what a number counts, and ``{"none": True}`` that the word
``none`` is a value. Nothing raises here. A value that does not fit becomes ``BAD``, and so does
everything that contains it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import msgspec.inspect as mi
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import (
    DURATION_FORMS,
    MOMENT_FORMS,
    SIZE_FORMS,
    format_duration,
    format_moment,
    format_size,
    parse_duration,
    parse_moment,
    parse_size,
)
from slurm_elastic.config.basics.gone import Gone, farewell
from slurm_elastic.config.basics.key_places import place_below
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.problems import Problems

MAX_NUMBER = 10**12  # a bound so that sums and the ledger's integers cannot overflow

_UNITS: Mapping[str, tuple[Callable[[str], float], str, Callable[[Any], object]]] = {
    "duration": (parse_duration, DURATION_FORMS, format_duration),
    "size": (parse_size, SIZE_FORMS, format_size),
    "moment": (parse_moment, MOMENT_FORMS, format_moment),
}


class Bad:
    """The type of ``BAD``."""


BAD: Final = Bad()


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that the user probably meant by ``word``, or None."""
    by_lower = {w.lower(): w for w in choices}
    # The underscores first, because people often write "-" in a key.
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, 1, 0.6)
    close = close or difflib.get_close_matches(word.lower(), by_lower, 1, 0.5)
    return by_lower[close[0]] if close else None


def describe(value: object) -> str:
    """A value in the words of the file's author, to follow "found"."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true or false)"
    if isinstance(value, int | float):
        return shown(f"{value:g}" if isinstance(value, float) else f"{value}").strip("'")
    if isinstance(value, str):
        return f"{shown(value)} (text)"
    return "a list" if isinstance(value, list) else "a mapping"


class Family(Protocol):
    """Structs with a common base that a tag tells apart, and that are known only at run time."""

    def names(self) -> Sequence[str]:
        """The values that the tag may have."""

    def member(self, name: str) -> mi.StructType:
        """The Struct with that tag. ConfigError, to follow the tag, if it is unusable."""


class Conversion:
    """One conversion. ``built``: all values that fit, by path. ``families``: by their base.
    ``places``: where the document may have a key, by the key (``key_places``).
    """

    def __init__(
        self,
        problems: Problems,
        families: Mapping[type, Family] | None = None,
        places: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.built: dict[KeyPath, object] = {}
        self._problems = problems
        self._families = families or {}
        self._places = places or {}

    def convert(self, kind: mi.Type, plain: object, path: KeyPath) -> object:
        """``plain`` as a value of ``kind``, or BAD."""
        value = self._convert(kind, plain, path)
        if value is not BAD:
            self.built[path] = value
        return value

    def _convert(self, kind: mi.Type, plain: object, path: KeyPath) -> object:
        unit = _unit(kind)
        # A range such as `cpus: 48` may be typed without quotes.
        if _extra(kind).get("number") and isinstance(plain, int) and not isinstance(plain, bool):
            plain = str(plain)
        kind = _bare(kind)
        match kind:
            case mi.StructType() if kind.cls in self._families:
                return self._of_family(self._families[kind.cls], kind.tag_field or "", plain, path)
            case mi.StructType():
                return self._struct(kind, plain, path)
            case mi.UnionType():
                return self._union(kind, plain, path)
            case mi.VarTupleType():
                return self._tuple(kind, plain, path)
            case mi.DictType():
                return self._dict(kind, plain, path)
            case mi.EnumType():
                return self._enum(kind, plain, path)
            case mi.IntType() | mi.FloatType():
                return self._number(kind, plain, path, unit)
            case mi.BoolType():
                return (
                    plain
                    if isinstance(plain, bool)
                    else self._wrong(path, plain, expectation(kind))
                )
            case _:
                return self._text(plain, path)

    def _wrong(self, path: KeyPath, plain: object, expected: str, hint: str | None = None) -> Bad:
        self._problems.add(path, describe(plain), expected, hint)
        return BAD

    def _wrong_choice(self, path: KeyPath, plain: object, choices: Iterable[str]) -> Bad:
        if not isinstance(plain, str):
            return self._wrong(path, plain, _one_of(choices))
        self._problems.add(path, shown(plain), _one_of(choices), nearest(plain, choices))
        return BAD

    def _struct(self, kind: mi.StructType, plain: object, path: KeyPath) -> object:
        if not isinstance(plain, dict):
            return self._wrong(path, plain, expectation(kind))
        whole, meant_keys = self._unknown_keys(kind, plain, path)
        values: dict[str, object] = {}
        for field in kind.fields:
            # A key such as "from" cannot be a name in Python.
            key = field.encode_name
            if key in plain:
                values[field.name] = self._value(field, plain[key], (*path, key))
                whole = whole and values[field.name] is not BAD
            elif field.required:
                whole = False
                # The misspelt key has its own complaint. Two for one mistake would confuse.
                if key not in meant_keys:
                    self._problems.add(path, f"no {key!r}", expectation(field.type))
        return kind.cls(**values) if whole else BAD

    def _value(self, field: mi.Field, plain: object, path: KeyPath) -> object:
        """Convert the value. Advise the author who writes ``none`` to leave the key out."""
        advice = "" if field.required else _left_out(field.type)
        if advice and isinstance(plain, str) and plain.lower() == "none":
            return self._wrong(path, plain, f"{expectation(field.type)}; for none {advice}")
        return self.convert(field.type, plain, path)

    def _unknown_keys(
        self, kind: mi.StructType, plain: Mapping[str, object], path: KeyPath
    ) -> tuple[bool, set[str]]:
        """Report unknown keys. Return whether there are none, and which keys were meant."""
        if getattr(kind.cls, "any_keys", False):
            return True, set()
        known_keys = _keys(kind)
        free = [key for key in known_keys if key not in plain]
        removed: Gone = getattr(kind.cls, "gone", {})
        for key in (key for key in plain if key in removed):
            self._problems.note((*path, key), farewell(key, removed[key]))
        unknown = [key for key in plain if key not in known_keys and key not in removed]
        meant_keys: set[str] = set()
        for key in unknown:
            close = nearest(key, free)
            places = [place_below(path, known_keys, place) for place in self._places.get(key, ())]
            # A key of another level is no misspelling, unless this level has a longer form of it.
            if places and close and key not in close:
                close = None
            meant_keys |= {close} if close else set()
            expected = f"one of {', '.join(sorted(known_keys))}"
            hint = " or ".join([*([close] if close else ()), *places])
            self._problems.add((*path, key), f"unknown key {shown(key)}", expected, hint)
        return not unknown, meant_keys

    def _union(self, kind: mi.UnionType, plain: object, path: KeyPath) -> object:
        """Convert a value of ``X | None``, of structs with tags, or of a list or a mapping."""
        if any(isinstance(option, mi.NoneType) for option in kind.types):
            return None if plain is None else self.convert(_by_form(kind, plain), plain, path)
        tags = _tags(kind)
        if not tags:
            return self.convert(_by_form(kind, plain), plain, path)
        tag_field = next(iter(tags.values())).tag_field or ""
        tag = self._tag(tag_field, list(tags), plain, path)
        return BAD if tag is None else self.convert(tags[tag], plain, path)

    def _of_family(self, family: Family, tag_field: str, plain: object, path: KeyPath) -> object:
        tag = self._tag(tag_field, family.names(), plain, path)
        if tag is None:
            return BAD
        try:
            member = family.member(tag)
        except ConfigError as error:
            actual = f"{shown(tag)}, {error}"
            self._problems.add((*path, tag_field), actual, f"a {tag_field} that can be used")
            return BAD
        return self._struct(member, plain, path)

    def _tag(self, tag_field: str, tags: Sequence[str], plain: object, path: KeyPath) -> str | None:
        """The value of the tag field, if it is in ``tags``."""
        if not isinstance(plain, dict):
            self._wrong(path, plain, f"a mapping with the key {tag_field!r}")
            return None
        if tag_field not in plain:
            self._problems.add(path, f"no {tag_field!r}", _one_of(tags))
            return None
        tag = plain[tag_field]
        if not isinstance(tag, str) or tag not in tags:
            self._wrong_choice((*path, tag_field), tag, tags)
            return None
        return tag

    def _tuple(self, kind: mi.VarTupleType, plain: object, path: KeyPath) -> object:
        if not isinstance(plain, list):
            return self._wrong(path, plain, expectation(kind), _as_list(kind.item_type, plain))
        if len(plain) < (kind.min_length or 0):
            self._problems.add(path, "an empty list", expectation(kind))
            return BAD
        items = tuple(self.convert(kind.item_type, v, (*path, i)) for i, v in enumerate(plain))
        twice = [i for i, v in enumerate(plain) if isinstance(v, str) and v in plain[:i]]
        for i in twice:
            self._problems.add((*path, i), f"{shown(plain[i])} again", "each entry once")
        return BAD if twice or any(item is BAD for item in items) else items

    def _dict(self, kind: mi.DictType, plain: object, path: KeyPath) -> object:
        if not isinstance(plain, dict):
            return self._wrong(path, plain, expectation(kind), _as_counts(kind.value_type, plain))
        if len(plain) < (kind.min_length or 0):
            self._problems.add(path, "an empty mapping", expectation(kind))
            return BAD
        items = {k: self.convert(kind.value_type, v, (*path, k)) for k, v in plain.items()}
        keys = [self._text(key, (*path, key)) for key in plain]
        return BAD if BAD in keys or any(v is BAD for v in items.values()) else items

    def _enum(self, kind: mi.EnumType, plain: object, path: KeyPath) -> object:
        values = [member.value for member in kind.cls]
        if isinstance(plain, str) and plain in values:
            return kind.cls(plain)
        return self._wrong_choice(path, plain, values)

    def _text(self, plain: object, path: KeyPath) -> object:
        if not isinstance(plain, str):
            scalar = isinstance(plain, bool | int | float)
            word = str(plain).lower() if isinstance(plain, bool) else str(plain)
            return self._wrong(path, plain, "text", f"'{word}' in quotes" if scalar else None)
        if not plain or not plain.isprintable() or plain != plain.strip():
            return self._wrong(path, plain, "text on one line, not empty, without blanks around it")
        return plain

    def _number(
        self, kind: mi.IntType | mi.FloatType, plain: object, path: KeyPath, unit: str
    ) -> object:
        value: object = plain
        if isinstance(plain, str) and unit:
            try:
                value = _UNITS[unit][0](plain)
            except ValueError:
                return self._wrong(path, plain, _UNITS[unit][1])
        whole = isinstance(kind, mi.IntType)
        if whole and isinstance(plain, float):
            hint = f"{plain:.0f}" if plain.is_integer() and _within(kind, plain) else None
            self._problems.add(path, repr(plain), expectation(kind, unit), hint)
            return BAD
        # A bool is an int in Python, but no number in the file.
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return self._wrong(path, plain, expectation(kind, unit), _unquoted(plain))
        if not _within(kind, value):
            bound = f", at most {MAX_NUMBER}" if value > MAX_NUMBER else ""
            return self._wrong(path, plain, expectation(kind, unit) + bound)
        return float(value) if isinstance(kind, mi.FloatType) else value


def expectation(kind: mi.Type, unit: str = "") -> str:
    """The values of ``kind``, to follow "expected"."""
    unit, kind = unit or _unit(kind), _bare(kind)
    match kind:
        case mi.IntType() | mi.FloatType():
            return _expected_number(kind, unit)
        case mi.StructType():
            return f"a mapping with the keys {', '.join(_keys(kind))}"
        case mi.UnionType():
            return " or ".join(expectation(option) for option in _options(kind))
        case mi.VarTupleType():
            least = f" with at least {kind.min_length} entry" if kind.min_length else ""
            return f"a list{least}, each entry {_entry(kind.item_type)}"
        case mi.DictType():
            least = f" with at least {kind.min_length} key" if kind.min_length else ""
            return f"a mapping{least}, each value {_entry(kind.value_type)}"
        case mi.EnumType():
            return _one_of([member.value for member in kind.cls])
        case mi.BoolType():
            return "true or false"
        case _:
            return "text"


def _entry(kind: mi.Type) -> str:
    nested = isinstance(_bare(kind), mi.StructType | mi.UnionType)
    return "a mapping" if nested else expectation(kind)


def _expected_number(kind: mi.IntType | mi.FloatType, unit: str) -> str:
    noun = "a whole number" if isinstance(kind, mi.IntType) else "a number"
    noun = _UNITS[unit][1] if unit else noun
    counted = {"duration": " s", "size": " MiB"}.get(unit, "")
    comma = "," if unit else ""
    if kind.le is not None:
        return f"{noun}{comma} from {kind.ge or 0}{counted} to {kind.le}{counted}"
    if kind.gt is not None:
        return f"{noun}{comma} above {kind.gt}{counted}"
    return f"{noun}{comma} of at least {kind.ge or 0}{counted}"


def _within(kind: mi.IntType | mi.FloatType, value: float) -> bool:
    """Whether the number is within the bounds of its type. Without a lower bound it must not be
    negative. NaN and infinity are never within the bounds.
    """
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        return False
    above = value > kind.gt if kind.gt is not None else value >= (kind.ge or 0)
    return above and value <= (MAX_NUMBER if kind.le is None else kind.le)


def _as_list(item: mi.Type, plain: object) -> str | None:
    """A list of the single text, if the author probably meant a list."""
    if not isinstance(plain, str) or not plain.isprintable():
        return None
    choices = [member.value for member in item.cls] if isinstance(item, mi.EnumType) else [plain]
    choice = nearest(plain, choices) if isinstance(item, mi.EnumType | mi.StrType) else None
    return f"[{choice}]" if choice else None


def _as_counts(value: mi.Type, plain: object) -> str | None:
    """A mapping of counts, if the author wrote them as Slurm does (``gpu:a100:8``)."""
    if not isinstance(_bare(value), mi.IntType) or not isinstance(plain, str):
        return None
    items = [re.fullmatch(r"([\w.:-]*[A-Za-z][\w.-]*)(?::(\d+))?", i) for i in plain.split(",")]
    counts = [f'"{item[1]}": {item[2] or 1}' for item in items if item]
    return f"{{{', '.join(counts)}}}" if len(counts) == len(items) else None


def _unquoted(plain: object) -> str | None:
    return (
        f"{int(plain)} without quotes"
        if isinstance(plain, str) and plain.isdecimal() and plain.isascii()
        else None
    )


def _left_out(kind: mi.Type) -> str:
    """How the file says that there is no value. Empty if it cannot say that, or if the word
    ``none`` says it.
    """
    match _bare(kind):
        case mi.UnionType(types=types) if any(isinstance(option, mi.NoneType) for option in types):
            has_word = any(_extra(option).get("none") for option in types)
            return "" if has_word else "leave the key out, or write null"
        case mi.StructType() | mi.DictType():
            return "leave the key out"
    return ""


def _bare(kind: mi.Type) -> mi.Type:
    return kind.type if isinstance(kind, mi.Metadata) else kind


def _unit(kind: mi.Type) -> str:
    return str(_extra(kind).get("unit", ""))


def _extra(kind: mi.Type) -> Mapping[str, object]:
    return (isinstance(kind, mi.Metadata) and kind.extra) or {}


def _options(kind: mi.UnionType) -> list[mi.Type]:
    return [option for option in kind.types if not isinstance(option, mi.NoneType)]


def _by_form(kind: mi.UnionType, value: object) -> mi.Type:
    """The option for a mapping or Struct. For any other value the first option."""
    structs = [o for o in _options(kind) if isinstance(o, mi.StructType)]
    return structs[0] if isinstance(value, dict | Struct) and structs else _options(kind)[0]


def _tags(kind: mi.UnionType) -> dict[str, mi.StructType]:
    structs = [o for o in _options(kind) if isinstance(o, mi.StructType)]
    return {str(struct.tag): struct for struct in structs if struct.tag is not None}


def _keys(kind: mi.StructType) -> list[str]:
    tag = [kind.tag_field] if kind.tag_field else []
    return [*tag, *(field.encode_name for field in kind.fields)]


def _one_of(choices: Iterable[str]) -> str:
    return f"one of {', '.join(choices)}"


def render(kind: mi.Type, value: object) -> object:
    """A value of ``kind`` as plain values, which ``Conversion.convert`` turns back into it."""
    unit, kind = _unit(kind), _bare(kind)
    if value is None:
        return None
    match kind:
        case mi.UnionType() if _tags(kind):
            return render(next(s for s in _tags(kind).values() if s.cls is type(value)), value)
        case mi.UnionType():
            return render(_by_form(kind, value), value)
        case mi.StructType() if kind.cls is not type(value):
            return render(mi.type_info(type(value)), value)  # one of a family
        case mi.StructType():
            tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
            return tag | {
                f.encode_name: render(f.type, getattr(value, f.name)) for f in kind.fields
            }
        case mi.VarTupleType() if isinstance(value, tuple):
            return [render(kind.item_type, item) for item in value]
        case mi.DictType() if isinstance(value, dict):
            return {key: render(kind.value_type, item) for key, item in value.items()}
    if unit and isinstance(value, int | float):
        return _UNITS[unit][2](value)
    return value.value if isinstance(value, Enum) else value
