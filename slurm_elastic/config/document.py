"""Reads YAML text into plain values and remembers their lines. Writes values as YAML.

It is stricter than PyYAML's safe load. Only ``true`` and ``false`` are booleans (a zone may be
called ``no``). Numbers are decimal (``010`` and ``1:30:00`` stay text). A mapping may have a key
only once. Aliases cannot make the document endless. ConfigError has line and column.
"""

from __future__ import annotations

import re

import yaml
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.basics.todos import TODO

KeyPath = tuple[str | int, ...]  # the place of a value: keys and list indices, outermost first

MAX_VALUES = 100_000
_CORE = "tag:yaml.org,2002:"
_SCALARS = {f"{_CORE}{kind}" for kind in ("str", "int", "float", "bool", "null")}


class _Loader(yaml.SafeLoader):
    """A SafeLoader with our rules for unquoted scalars."""


_Loader.yaml_implicit_resolvers = {}  # its own, or we would change the base class
_RESOLVERS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
)
# YAML 1.1 reads `no` as false, `1:30` as 90 and `010` as 8. A zone may be called no.
for _kind, _regexp, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(f"{_CORE}{_kind}", re.compile(f"(?:{_regexp})\\Z"), list(_first))


class YamlDocument(Struct, frozen=True, kw_only=True):
    """A file's values, and by path the line (from 1) on which each starts. ``repeated``: line, path
    and sentence of each key that a mapping has twice. The last one counts.
    """

    source: str
    value: object
    lines: dict[KeyPath, int]
    repeated: tuple[tuple[int, KeyPath, str], ...] = ()

    def line(self, path: KeyPath) -> int:
        """The line of ``path``, or of the innermost value around it in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def is_todo(self, path: KeyPath) -> bool:
        """Whether the value at ``path`` is to do."""
        here = self.value
        for step in path:
            here = _step(here, step)
        return here == TODO

    def locate(self, path: KeyPath) -> str:
        """``path`` in a form for people: ``pools[0] (std).nodes``."""
        text, here = "", self.value
        for step in path:
            here = _step(here, step)
            text += f"[{step}]" if isinstance(step, int) else f".{step}"
            name = here.get("name") if isinstance(here, dict) else None
            if isinstance(step, int) and isinstance(name, str):
                text += f" ({name})"
        return text.removeprefix(".")


def read(text: str, source: str) -> YamlDocument:
    """Parse one YAML document. ConfigError, which names ``source``, if it is none."""
    try:
        # Nodes and not values: only nodes know their lines, and an alias may contain itself.
        loader = _Loader(text)
        node = loader.get_single_node()
        walk = _Walk(loader, source)
        value = None if node is None else walk.value(node, (), ())
    except RecursionError:
        raise ConfigError(
            f"{source}: found YAML nested too deeply, expected a few levels"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(_complaint(error, text, source)) from None
    return YamlDocument(source=source, value=value, lines=walk.lines, repeated=tuple(walk.repeated))


def write(value: object) -> str:
    """``value`` as YAML in block style. ``read`` gives the same value."""
    return yaml.dump(value, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True, width=100)


def _step(here: object, step: str | int) -> object:
    if isinstance(here, dict):
        return here.get(step)
    if isinstance(here, list) and isinstance(step, int) and step < len(here):
        return here[step]
    return None


def _complaint(error: yaml.YAMLError, text: str, source: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        problem = ", ".join(text for text in (error.context, error.problem) if text)
        return f"{source}:{mark.line + 1}:{mark.column + 1}: not YAML: {problem}"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{source}:{line}: not YAML: unprintable character {_code(error.character)}"
    return f"{source}: not YAML: {error}"


def _code(character: str | int) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def shown(text: str, max_length: int = 60) -> str:
    """``text`` in quotes for a message. Long text is cut."""
    text = str(text)  # an enum's member shows its value
    return repr(text if len(text) <= max_length else text[: max_length - 3] + "...")


class _Walk:
    """One pass over a document's nodes that collects values, lines and repeated keys."""

    def __init__(self, loader: _Loader, source: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.repeated: list[tuple[int, KeyPath, str]] = []
        self._loader = loader
        self._source = source
        self._values_left = MAX_VALUES

    def value(self, node: yaml.Node, path: KeyPath, inside: tuple[yaml.Node, ...]) -> object:
        """The plain value of ``node`` at ``path``. ``inside``: the nodes around it."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        # Aliases of aliases make exponentially many values of a short file.
        self._values_left -= 1
        if self._values_left < 0:
            raise self._wrong(node, f"more than {MAX_VALUES} values")
        # By identity: equal nodes at two places are no circle.
        if any(node is outer for outer in inside):
            raise self._wrong(node, "an alias that contains itself")
        inside = (*inside, node)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_CORE}map":
            return self._mapping(node, path, inside)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_CORE}seq":
            return [self.value(item, (*path, i), inside) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node)
        raise self._wrong(node, f"the tag {node.tag!r}")

    def _mapping(
        self, node: yaml.MappingNode, path: KeyPath, inside: tuple[yaml.Node, ...]
    ) -> dict[str, object]:
        merged: dict[str, object] = {}
        own_values: dict[str, object] = {}
        for key, value in node.value:
            if key.tag == f"{_CORE}merge":
                merged = self._merge(value, path, inside) | merged
                continue
            name = self._key(key)
            if name in own_values:
                self._repeat(name, key, path)
            self.lines[*path, name] = key.start_mark.line + 1
            own_values[name] = self.value(value, (*path, name), inside)
        # A mapping's own keys win over merged ones, wherever `<<` stands (YAML merge key).
        return merged | own_values

    def _merge(
        self, node: yaml.Node, path: KeyPath, inside: tuple[yaml.Node, ...]
    ) -> dict[str, object]:
        """The keys of ``<<``, which has a mapping or a list of mappings. The first one wins."""
        merged: dict[str, object] = {}
        for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.value(item, path, inside)
            if not isinstance(value, dict):
                raise self._wrong(item, "'<<' with something that is no mapping")
            merged = value | merged
        return merged

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._wrong(node, "a key that is a list or a mapping")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        try:
            return self._loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            raise self._wrong(node, f"{shown(node.value)} tagged as {node.tag!r}") from None

    def _repeat(self, name: str, node: yaml.Node, path: KeyPath) -> None:
        first_line = self.lines[*path, name]
        line = node.start_mark.line + 1
        self.repeated.append(
            (line, path, f"found the key {name!r} again, which line {first_line} already has")
        )

    def _wrong(self, node: yaml.Node, actual: str) -> ConfigError:
        return ConfigError(
            f"{self._source}:{node.start_mark.line + 1}: found {actual},"
            " expected plain YAML: text, numbers, lists and mappings"
        )
