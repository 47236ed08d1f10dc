"""Changes a value in the text of a YAML file, of any style. All other text, such as comments, stays
as it is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from slurm_elastic.config.document import KeyPath


def flow(value: object) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=100000, sort_keys=False)
    # PyYAML ends a scalar with the document's end mark "...".
    return text.strip().removesuffix("...").strip()


def put(text: str, path: KeyPath, value: object) -> str:
    """Return ``text`` with ``value`` at ``path``. None removes the key, and also its mapping if
    that would become empty.
    """
    *above, key = path
    mapping = _node_at(text, above)
    if not isinstance(mapping, yaml.MappingNode):
        return text if value is None else put(text, tuple(above), {key: value})
    number = next((i for i, (k, _) in enumerate(mapping.value) if k.value == key), None)
    entry = f"{key}: {flow(value)}"
    if number is None:
        return text if value is None else _insert(text, mapping, entry)
    if value is not None:
        return _replace(text, mapping, number, entry)
    if len(mapping.value) == 1 and above:
        return put(text, tuple(above), None)
    return _delete(text, mapping, number)


def append(text: str, section: str, lines: Sequence[str]) -> str:
    """Return ``text`` with the entries in ``lines`` at the end of the top-level list ``section``.
    ``lines`` begin with two blanks, as ``cloud_lines`` and ``pool_lines`` write them.
    """
    entries = _node_at(text, (section,))
    if not isinstance(entries, yaml.SequenceNode):
        return text
    if entries.flow_style:
        end = _end(entries.value[-1])
        new_entries = flow(yaml.safe_load("\n".join(lines)))[1:-1]
        return f"{text[:end]}, {new_entries}{text[end:]}"
    end = _end(entries)
    # Indented comments below the last entry belong to it.
    comments = re.compile(r"[^\n]*(\n[ \t]+#[^\n]*)*").match(text, end)
    end = comments.end() if comments else end
    shift = " " * entries.start_mark.column
    return text[:end] + "".join(f"\n{shift}{line[2:]}" for line in lines) + text[end:]


def rename_keys(text: str, new_names: Mapping[KeyPath, str]) -> str:
    """Return ``text`` with the keys at these paths under their new names.

    ValueError, with the old name, if an anchor puts one key at places that need different names, or
    if the key is not spelled in the text as it reads.
    """
    spellings: dict[tuple[int, int], str] = {}
    for path, key in _keys(yaml.compose(text, Loader=yaml.SafeLoader), ()):
        start, end = key.start_mark.index, key.end_mark.index
        new_name = new_names.get(path, key.value)
        old_spelling = text[start:end]
        if new_name != key.value and old_spelling.count(key.value) != 1:
            raise ValueError(key.value)
        spelling = old_spelling.replace(key.value, new_name)
        if spellings.setdefault((start, end), spelling) != spelling:
            raise ValueError(key.value)
    # Edit from the end, so that the positions of the keys above stay true.
    for (start, end), spelling in sorted(spellings.items(), reverse=True):
        text = text[:start] + spelling + text[end:]
    return text


def _keys(node: yaml.Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    """All keys with their paths. The keys of a merged mapping (``<<``) are at the merging place."""
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _keys(item, (*path, number))
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for mapping in merged:
                yield from _keys(mapping, path)
            continue
        yield (*path, key.value), key
        yield from _keys(value, (*path, key.value))


def _node_at(text: str, path: Sequence[str | int]) -> yaml.Node | None:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
    return node


def _end(node: yaml.Node) -> int:
    """Return the index after the node's last character. PyYAML's own end mark is too far for block
    collections: it includes the white space and comments that follow.
    """
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        last_entry = node.value[-1]
        return _end(last_entry[1] if isinstance(last_entry, tuple) else last_entry)
    # The end mark of a block scalar lies behind its last line feed.
    lines = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.index) - lines


def _insert(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    """Add an entry: in place of the commented template of its key if there is one, else after the
    last entry that fits in one line, so that it does not land behind a long list.
    """
    pairs = mapping.value
    if mapping.flow_style:
        position = _end(pairs[-1][1]) if pairs else mapping.start_mark.index + 1
        return f"{text[:position]}{', ' if pairs else ''}{entry}{text[position:]}"
    first_key = pairs[0][0].start_mark
    template = re.compile(rf"^ {{{first_key.column}}}(# {entry.partition(':')[0]}: \{{.*)$", re.M)
    if match := template.search(text, mapping.start_mark.index, mapping.end_mark.index):
        return text[: match.start(1)] + entry + text[match.end(1) :]
    blocks = [value for _, value in pairs if getattr(value, "flow_style", True) is False]
    in_lines = [value for _, value in pairs if value not in blocks]
    end = text.find("\n", _end((in_lines or blocks)[-1]))
    position = len(text) if end < 0 else end
    return f"{text[:position]}\n{' ' * first_key.column}{entry}{text[position:]}"


def _replace(text: str, mapping: yaml.MappingNode, number: int, entry: str) -> str:
    key, value = mapping.value[number]
    return text[: key.start_mark.index] + entry + text[_end(value) :]


def _delete(text: str, mapping: yaml.MappingNode, number: int) -> str:
    pairs = mapping.value
    start, end = pairs[number][0].start_mark.index, _end(pairs[number][1])
    # In block style remove whole lines, with a comment behind the value.
    if not mapping.flow_style:
        row = text.find("\n", end) + 1
        return text[: text.rfind("\n", 0, start) + 1] + (text[row:] if row else "")
    if number + 1 < len(pairs):
        end = pairs[number + 1][0].start_mark.index
    else:
        start = _end(pairs[number - 1][1])
    return text[:start] + text[end:]
