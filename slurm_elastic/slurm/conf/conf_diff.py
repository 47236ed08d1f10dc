"""``conf diff``: the changes of an install, as a unified diff or for a person: a line for each
option, node line and partition that comes, goes or changes, in 80 columns.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.slurm.conf import fragment, gresconf
from slurm_elastic.slurm.conf.plan import ConfPlan, PlannedFile

WIDTH = 80
_MAX_LIST_LENGTH = 48  # characters of a list of nodes that is printed whole
_MAX_LINES = 12  # lines of a kind (NodeName, PartitionName, options) to print; others are counted
_RECORDS = ("NodeName=", "PartitionName=")
_PIECE = re.compile(r"[^ ,]+[ ,]*|[ ,]+")


def whole(planned: ConfPlan) -> str:
    """Every changed file as a unified diff. Empty if nothing changes."""
    return "".join(_unified(file) for file in planned.changes())


def short(planned: ConfPlan) -> str:
    """The changes, one line each. Empty if nothing changes."""
    conf = Path(planned.config.slurm.conf)
    records = planned.site.directory / fragment.FILE_NAME
    gres = {planned.site.directory / name for name in (gresconf.FILE_NAME, gresconf.SITE_FILE)}
    conf_files = {records, *gres, conf}
    changes = planned.changes()
    lines = list(_programs([file for file in changes if file.path not in conf_files]))
    for file in changes:
        if file.path in conf_files:
            lines += [_headline(file), *_lines(file, records=file.path == records)]
    return "".join(f"{line}\n" for line in lines)


def _headline(file: PlannedFile) -> str:
    return f"{'new' if file.current() is None else 'changed'} {file.path}:"


def _programs(files: Sequence[PlannedFile]) -> Iterator[str]:
    """Our own files by directory. An admin need not read their content."""
    for directory, group in groupby(files, key=lambda file: file.path.parent):
        members = list(group)
        for word, present in (("new", False), ("changed", True)):
            names = [f.path.name for f in members if (f.current() is not None) is present]
            if names:
                yield f"{word} in {directory} (ours; --all prints them):"
                yield from _wrapped(", ".join(names), "  ", "  ")


def _lines(file: PlannedFile, *, records: bool) -> Iterator[str]:
    old, new = _text(file.current() or b""), _text(file.content)
    if not records:
        changed = difflib.unified_diff(old, new, n=0, lineterm="")
        for line in changed:
            if not line.startswith(("---", "+++", "@@")):
                yield from _wrapped(line[1:], f"  {line[0]} ")
        return
    before, after = _records(old), _records(new)
    entries = {key: _entry(key, before, after) for key in (*before, *after)}
    changed_entries = [(key, entry) for key, entry in entries.items() if entry]
    for kind, group in groupby(sorted(changed_entries, key=_kind), key=_kind):
        yield from _kind_lines(kind[1], list(group), after)


def _kind(keyed_entry: tuple[str, str]) -> tuple[int, str]:
    """The sort key of an entry: options first, then nodes, then partitions, as in the fragment."""
    kinds = {name: (rank, name) for rank, name in enumerate(_RECORDS, start=1)}
    return next((kinds[name] for name in _RECORDS if keyed_entry[0].startswith(name)), (0, ""))


def _kind_lines(
    kind: str, entries: Sequence[tuple[str, str]], after: Mapping[str, str]
) -> Iterator[str]:
    # One more line takes no more room than the line that counts the rest.
    shown = len(entries) if len(entries) <= _MAX_LINES + 1 else _MAX_LINES
    for _, entry in entries[:shown]:
        yield from _wrapped(entry[2:], f"  {entry[:2]}")
    if unshown_keys := [key for key, _ in entries[shown:]]:
        nodes = sum(_count(key.removeprefix(kind)) for key in unshown_keys if key in after)
        node_count = f" ({nodes:,} nodes)" if kind == _RECORDS[0] and nodes else ""
        yield f"    and {len(unshown_keys):,} more {kind.rstrip('=') or 'option'} lines{node_count}"


def _records(lines: Sequence[str]) -> dict[str, str]:
    """The lines by their key: an option's name, or the whole ``NodeName=...``."""
    records = {}
    for line in lines:
        if line and not line.startswith("#"):
            word = line.split(maxsplit=1)[0]
            records[word if word.startswith(_RECORDS) else word.partition("=")[0]] = line
    return records


def _entry(key: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """``+`` or ``-`` with the line, or ``~`` with the changed items. Empty if nothing changes."""
    old, new = before.get(key), after.get(key)
    if old == new:
        return ""
    if new is None:
        return f"- {_abbreviated(old or '')}"
    if old is None:
        return f"+ {_abbreviated(new)}"
    if not key.startswith(_RECORDS):
        return f"~ {old} -> {new.partition('=')[2]}"
    old_items, new_items = (dict(map(_item, line.split()[1:])) for line in (old, new))
    changes = [
        f"{name}={old_items.get(name, '(none)')} -> {new_items.get(name, '(none)')}"
        for name in dict.fromkeys((*old_items, *new_items))
        if old_items.get(name) != new_items.get(name)
    ]
    return f"~ {_abbreviated(key)} {', '.join(changes)}"


def _item(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, _abbreviated(word).partition("=")[2] if name == "Nodes" else value


def _abbreviated(line: str) -> str:
    return " ".join(_short_list(word) for word in line.split(" "))


def _short_list(word: str) -> str:
    """Shorten a list of nodes that would fill the screen to its beginning and its length. Leave any
    other word as it is.
    """
    name, _, value = word.partition("=")
    if name not in ("NodeName", "Nodes") or len(value) <= _MAX_LIST_LENGTH:
        return word
    return f"{name}={value[: _MAX_LIST_LENGTH - 20]}... ({_count(value):,} nodes)"


def _count(nodes: str) -> int:
    try:
        return len(expand(nodes))
    except HostlistError:
        return 1


def _wrapped(text: str, first_indent: str, indent: str = " " * 8) -> Iterator[str]:
    """Lines of 80 columns, broken after blanks and commas. A text with neither is not broken."""
    line = first_indent
    for piece in _PIECE.findall(text):
        if len(line) + len(piece.rstrip()) > WIDTH and line.strip(" +-~"):
            yield line.rstrip()
            line = indent
        line += piece
    yield line.rstrip()


def _text(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines()


def _unified(file: PlannedFile) -> str:
    old, new = _ended(file.current() or b""), _ended(file.content)
    before = str(file.path) if file.current() is not None else "/dev/null"
    return "".join(map(_terminated, difflib.unified_diff(old, new, before, str(file.path))))


def _ended(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines(keepends=True)


def _terminated(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
