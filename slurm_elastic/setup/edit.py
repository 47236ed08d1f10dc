"""A value put into YAML as text, in whatever style it is written: all else stays as it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from slurm_elastic.config.document import KeyPath


def flow(value: object) -> str:
    """A value of YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=100000, sort_keys=False)
    return text.strip().removesuffix("...").strip()


def put(text: str, path: KeyPath, value: object) -> str:
    """``text`` with the value at ``path``. None takes it out, and a mapping that had only that."""
    *above, key = path
    mapping = _at(text, above)
    if not isinstance(mapping, yaml.MappingNode):
        return text if value is None else put(text, tuple(above), {key: value})
    number = next((i for i, (k, _) in enumerate(mapping.value) if k.value == key), None)
    entry = f"{key}: {flow(value)}"
    if number is None:
        return text if value is None else _with(text, mapping, entry)
    if value is not None:
        return _other(text, mapping, number, entry)
    if len(mapping.value) == 1 and above:
        return put(text, tuple(above), None)
    return _without(text, mapping, number)


def append(text: str, section: str, lines: Sequence[str]) -> str:
    """``text`` with these lines, entries of a list, at the end of that list of the first level."""
    entries = _at(text, (section,))
    if not isinstance(entries, yaml.SequenceNode):
        return text
    if entries.flow_style:
        end = _end(entries.value[-1])
        more = flow(yaml.safe_load("\n".join(lines)))[1:-1]
        return f"{text[:end]}, {more}{text[end:]}"
    end = _end(entries)
    rest = re.compile(r"[^\n]*(\n[ \t]+#[^\n]*)*").match(text, end)
    end = rest.end() if rest else end
    shift = " " * entries.start_mark.column
    return text[:end] + "".join(f"\n{shift}{line[2:]}" for line in lines) + text[end:]


def _at(text: str, path: Sequence[str | int]) -> yaml.Node | None:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
    return node


def _end(node: yaml.Node) -> int:
    """Where its last character is; PyYAML takes what follows a block for a part of it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    lines = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.index) - lines


def _with(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    pairs = mapping.value
    if mapping.flow_style:
        at = _end(pairs[-1][1]) if pairs else mapping.start_mark.index + 1
        return f"{text[:at]}{', ' if pairs else ''}{entry}{text[at:]}"
    first = pairs[0][0].start_mark
    template = re.compile(rf"^ {{{first.column}}}(# {entry.partition(':')[0]}: \{{.*)$", re.M)
    if found := template.search(text, mapping.start_mark.index, mapping.end_mark.index):
        return text[: found.start(1)] + entry + text[found.end(1) :]
    blocks = [value for _, value in pairs if getattr(value, "flow_style", True) is False]
    in_lines = [value for _, value in pairs if value not in blocks]
    end = text.find("\n", _end((in_lines or blocks)[-1]))
    at = len(text) if end < 0 else end
    return f"{text[:at]}\n{' ' * first.column}{entry}{text[at:]}"


def _other(text: str, mapping: yaml.MappingNode, number: int, entry: str) -> str:
    key, value = mapping.value[number]
    return text[: key.start_mark.index] + entry + text[_end(value) :]


def _without(text: str, mapping: yaml.MappingNode, number: int) -> str:
    pairs = mapping.value
    start, end = pairs[number][0].start_mark.index, _end(pairs[number][1])
    if not mapping.flow_style:
        row = text.find("\n", end) + 1
        return text[: text.rfind("\n", 0, start) + 1] + (text[row:] if row else "")
    if number + 1 < len(pairs):
        end = pairs[number + 1][0].start_mark.index
    else:
        start = _end(pairs[number - 1][1])
    return text[:start] + text[end:]
