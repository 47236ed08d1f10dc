"""``conf diff``: what install would change, as a unified diff or as a person reads it: a line for
each option, node line and partition that comes, goes or changes, in 80 columns.
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
_LONGEST = 48  # characters of a list of nodes that is printed whole
_MOST = 12  # lines of a kind (NodeName, PartitionName, options) that are printed; more are counted
_RECORDS = ("NodeName=", "PartitionName=")
_PIECE = re.compile(r"[^ ,]+[ ,]*|[ ,]+")


def whole(planned: ConfPlan) -> str:
    """Every changed file as a unified diff; empty for no change."""
    return "".join(_unified(file) for file in planned.changes())


def short(planned: ConfPlan) -> str:
    """The changes, a line each; empty for no change."""
    conf = Path(planned.config.slurm.conf)
    records = planned.site.directory / fragment.FILE_NAME
    gres = {planned.site.directory / name for name in (gresconf.FILE_NAME, gresconf.SITE_FILE)}
    read = {records, *gres, conf}
    changes = planned.changes()
    lines = list(_programs([file for file in changes if file.path not in read]))
    for file in changes:
        if file.path in read:
            lines += [_headline(file), *_lines(file, records=file.path == records)]
    return "".join(f"{line}\n" for line in lines)


def _headline(file: PlannedFile) -> str:
    return f"{'new' if file.current() is None else 'changed'} {file.path}:"


def _programs(files: Sequence[PlannedFile]) -> Iterator[str]:
    """Our own files by directory: who runs the site need not read them."""
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
    told = [(key, entry) for key, entry in entries.items() if entry]
    for kind, group in groupby(sorted(told, key=_kind), key=_kind):
        yield from _kind_lines(kind[1], list(group), after)


def _kind(told: tuple[str, str]) -> tuple[int, str]:
    """Options, then nodes, then partitions, as the fragment has them."""
    kinds = {name: (at, name) for at, name in enumerate(_RECORDS, start=1)}
    return next((kinds[name] for name in _RECORDS if told[0].startswith(name)), (0, ""))


def _kind_lines(
    kind: str, told: Sequence[tuple[str, str]], after: Mapping[str, str]
) -> Iterator[str]:
    # One more would take no more room than the line that counts it.
    shown = len(told) if len(told) <= _MOST + 1 else _MOST
    for _, entry in told[:shown]:
        yield from _wrapped(entry[2:], f"  {entry[:2]}")
    if rest := [key for key, _ in told[shown:]]:
        nodes = sum(_count(key.removeprefix(kind)) for key in rest if key in after)
        of = f" ({nodes:,} nodes)" if kind == _RECORDS[0] and nodes else ""
        yield f"    and {len(rest):,} more {kind.rstrip('=') or 'option'} lines{of}"


def _records(lines: Sequence[str]) -> dict[str, str]:
    """The lines by what tells them apart: an option's name, or the whole NodeName=..."""
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            first = line.split(maxsplit=1)[0]
            found[first if first.startswith(_RECORDS) else first.partition("=")[0]] = line
    return found


def _entry(key: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """``+`` and ``-`` with the line, or ``~`` with the words of it that change; empty for none."""
    old, new = before.get(key), after.get(key)
    if old == new:
        return ""
    if new is None:
        return f"- {_abbreviated(old or '')}"
    if old is None:
        return f"+ {_abbreviated(new)}"
    if not key.startswith(_RECORDS):
        return f"~ {old} -> {new.partition('=')[2]}"
    was, now = (dict(map(_value, line.split()[1:])) for line in (old, new))
    parts = [
        f"{name}={was.get(name, '(none)')} -> {now.get(name, '(none)')}"
        for name in dict.fromkeys((*was, *now))
        if was.get(name) != now.get(name)
    ]
    return f"~ {_abbreviated(key)} {', '.join(parts)}"


def _value(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, _abbreviated(word).partition("=")[2] if name == "Nodes" else value


def _abbreviated(line: str) -> str:
    return " ".join(_short_list(word) for word in line.split(" "))


def _short_list(word: str) -> str:
    """A list of nodes that would fill the screen is its begin and its count."""
    name, _, value = word.partition("=")
    if name not in ("NodeName", "Nodes") or len(value) <= _LONGEST:
        return word
    return f"{name}={value[: _LONGEST - 20]}... ({_count(value):,} nodes)"


def _count(nodes: str) -> int:
    try:
        return len(expand(nodes))
    except HostlistError:
        return 1


def _wrapped(text: str, first: str, rest: str = " " * 8) -> Iterator[str]:
    """Lines of 80 columns, broken after blanks and commas; what has neither stays whole."""
    line = first
    for piece in _PIECE.findall(text):
        if len(line) + len(piece.rstrip()) > WIDTH and line.strip(" +-~"):
            yield line.rstrip()
            line = rest
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
