"""A site's slurm.conf, read as Slurm reads it (src/common/parse_config.c, slurm.conf(5)).

An unescaped ``#`` begins a comment anywhere in a line. A backslash at the end joins the next line.
``Include`` replaces ``%c`` by the cluster's name. Keys are case-insensitive, and the last of a
repeated key wins. ``NodeName=DEFAULT`` and ``PartitionName=DEFAULT`` give values to later lines. A
relative ``Include`` in an included file is beside that file up to 22.05, and beside slurm.conf in
24.11 and 25.11 (measured; parse_config.c). Every value keeps the file and line of its origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.release import installed_release

RECORDS = frozenset(
    {"nodename", "partitionname", "downnodes", "nodeset", "frontendname", "poweraction"}
)
"""Keys whose line is one record. All further pairs of the line belong to it."""

_MAX_DEPTH = 8
# Slurm also knows name+=value and the like (parse_config.c).
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')
_INCLUDE = re.compile(r"include\s+(\S+)$", re.IGNORECASE)
_BESIDE_SLURM_CONF = (23, 2)
"""Since this release an Include in an included file is relative to slurm.conf (24.11 measured)."""


class Entry(Struct, frozen=True, kw_only=True):
    """One ``name=value``. ``key`` is the name in lower case."""

    key: str
    name: str
    value: str
    file: str
    line: int

    @property
    def location(self) -> str:
        """``file:line``, the beginning of error messages."""
        return f"{self.file}:{self.line}"


class ConfLine(Struct, frozen=True, kw_only=True):
    """One logical line: continuations joined, the comment cut off, and its pairs."""

    text: str
    entries: tuple[Entry, ...]

    @property
    def is_record(self) -> bool:
        """Whether the whole line describes one node list, partition, node set, ..."""
        return bool(self.entries) and self.entries[0].key in RECORDS


class ConfRecord(Struct, frozen=True, kw_only=True):
    """A NodeName, PartitionName or NodeSet. ``names`` are expanded. ``values`` include DEFAULTs."""

    names: tuple[str, ...]
    location: str
    values: Mapping[str, Entry]

    def get(self, key: str, default: str = "") -> str:
        """The value of ``key`` (lower case), from the line or its DEFAULT."""
        entry = self.values.get(key)
        return default if entry is None else entry.value


class SiteConf(Struct, frozen=True, kw_only=True):
    """The file with Includes in place. ``*_defaults``: the DEFAULT values after the last line."""

    path: str
    lines: tuple[ConfLine, ...]
    nodes: tuple[ConfRecord, ...] = ()
    partitions: tuple[ConfRecord, ...] = ()
    nodesets: tuple[ConfRecord, ...] = ()
    node_defaults: Mapping[str, Entry] = field(default_factory=dict)
    partition_defaults: Mapping[str, Entry] = field(default_factory=dict)

    def option(self, name: str) -> Entry | None:
        """The global option's effective value, which is its last one. None if it is not set."""
        entries = self.options(name)
        return entries[-1] if entries else None

    def options(self, name: str) -> tuple[Entry, ...]:
        """Every line that sets a global option, first to last."""
        key = name.lower()
        return tuple(
            entry
            for line in self.lines
            if not line.is_record
            for entry in line.entries
            if entry.key == key
        )

    def items(self, name: str) -> tuple[str, ...]:
        """The items of a comma-separated option, without a plug-in's prefix."""
        entry = self.option(name)
        return confvalues.items(name, entry.value) if entry else ()

    @property
    def directory(self) -> Path:
        """The directory of relative Includes, job_submit.lua and topology.conf."""
        return Path(self.path).parent

    @property
    def node_names(self) -> Mapping[str, str]:
        """Every node of the site with the place that names it."""
        return {name: record.location for record in self.nodes for name in record.names}

    @property
    def default_partition(self) -> ConfRecord | None:
        """The partition of jobs that name none: the last one with Default=YES."""
        chosen = [p for p in self.partitions if confvalues.is_true(p.get("default"))]
        return chosen[-1] if chosen else None

    @property
    def priority_tier(self) -> int:
        """PriorityTier of the default partition; 1 is Slurm's default (slurm.conf(5))."""
        return priority(self.default_partition, "prioritytier")

    @property
    def priority_job_factor(self) -> int:
        """PriorityJobFactor of the default partition; 1 is Slurm's default."""
        return priority(self.default_partition, "priorityjobfactor")


def priority(partition: ConfRecord | None, key: str) -> int:
    """PriorityTier or PriorityJobFactor (``key`` in lower case) of a partition."""
    # ``Priority`` sets both numbers and wins over them, even as a DEFAULT (measured).
    text = partition.get("priority", partition.get(key)) if partition else ""
    value = confvalues.number(text)
    return 1 if value is None else value


Release = tuple[int, int]


def read(
    path: str | Path, *, ignore: str | None = None, release: Callable[[], Release] | None = None
) -> SiteConf:
    """Read slurm.conf and its includes except ``ignore`` (our fragment). ConfigError has the line.

    ``release`` gives Slurm's release, which decides the place of an Include in an included file.
    """
    reader = _Reader(Path(path), ignore, release or installed_release)
    return _assemble(str(path), tuple(reader.lines(Path(path))))


def read_lines(path: Path, *, ignore: str | None = None) -> tuple[ConfLine, ...]:
    """The logical lines of another file in this form, without includes named ``ignore``."""
    return tuple(_Reader(path, ignore, installed_release).lines(path))


def names(entry: Entry) -> tuple[str, ...]:
    """The hostlist in a value, expanded. ConfigError with file and line if it is none."""
    try:
        return tuple(expand(entry.value))
    except HostlistError as error:
        raise ConfigError(f"{entry.location}: {entry.name}: {error}") from error


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each non-empty logical line, without comments, lines joined."""
    joined, start = "", 0
    for number, physical_line in enumerate(text.split("\n"), 1):
        start = start or number
        line, is_continued = _strip(physical_line)
        joined += line
        if is_continued:
            continue
        if joined.strip():
            yield start, joined.rstrip()
        joined, start = "", 0
    if joined.strip():
        yield start, joined.rstrip()


def pairs(text: str, file: str, line: int) -> tuple[Entry, ...]:
    """The ``name=value`` pairs of a logical line. ConfigError for any other text in it."""
    entries: list[Entry] = []
    position = 0
    while text[position:].strip():
        match = _PAIR.match(text, position)
        if match is None:
            raise ConfigError(
                f"{file}:{line}: {text[position:].strip()!r} is not a name=value pair as Slurm has"
                " them"
            )
        value = match[3] if match[2] is None else match[2]
        entries.append(
            Entry(key=match[1].lower(), name=match[1], value=value, file=file, line=line)
        )
        position = match.end()
    return tuple(entries)


def _strip(physical_line: str) -> tuple[str, bool]:
    """A physical line without its comment, and whether the next line continues it."""
    line = physical_line.rstrip("\r")
    # Slurm cuts the comment off first, so a backslash inside a comment continues nothing.
    comment = re.search(r"(?<!\\)(?:\\\\)*#", line)
    if comment:
        line = line[: comment.end() - 1]
    tail = re.search(r"(\\+)\s*$", line)
    if tail and len(tail[1]) % 2 == 1:
        return line[: tail.end(1) - 1], True
    return line.replace("\\#", "#"), False


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"{where}cannot read {path}: {error.strerror}") from error


def encoded(text: str) -> bytes:
    """``text`` as bytes. A site's file returns byte for byte, even if it is no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class _Reader:
    """The lines of one slurm.conf and the files that it includes, in Slurm's order."""

    def __init__(self, root: Path, ignore: str | None, release: Callable[[], Release]) -> None:
        self._root, self._ignore, self._release = root, ignore, release
        self._cluster = ""

    def lines(self, path: Path, depth: int = 0, where: str = "") -> Iterator[ConfLine]:
        """The lines of ``path``; the lines of an included file replace its Include."""
        for number, text in logical_lines(_text(path, where)):
            here = f"{path}:{number}: "
            include = self._included(text, here)
            if include is None:
                line = ConfLine(text=text.strip(), entries=pairs(text, str(path), number))
                self._remember_cluster(line)
                yield line
            elif include != self._ignore:
                if depth >= _MAX_DEPTH:
                    raise ConfigError(f"{here}Includes nest deeper than {_MAX_DEPTH}")
                yield from self.lines(self._place(path, include), depth + 1, here)

    def _included(self, text: str, here: str) -> str | None:
        """The name in an Include line. None for another line."""
        stripped = text.strip()
        if not re.match(r"include(\s|$)", stripped, re.IGNORECASE):
            return None
        match = _INCLUDE.match(text.rstrip())
        if match is None:
            raise ConfigError(
                f"{here}found {stripped!r}, expected Include at the start of the line and one file"
                " name: Slurm refuses other forms"
            )
        if '"' in match[1]:
            raise ConfigError(
                f"{here}found {match[1]}, expected a file name without quotes: Slurm takes the"
                " quotes for a part of the name"
            )
        # Slurm writes cluster names in lower case everywhere.
        return match[1].replace("%c", self._cluster)

    def _remember_cluster(self, line: ConfLine) -> None:
        for entry in line.entries:
            if entry.key == "clustername":
                self._cluster = entry.value.lower()

    def _place(self, including: Path, name: str) -> Path:
        """The path at which Slurm looks for an included file."""
        is_elsewhere = including.parent != self._root.parent and not Path(name).is_absolute()
        if is_elsewhere and self._release() < _BESIDE_SLURM_CONF:
            return including.parent / name
        return self._root.parent / name


class _Defaults:
    """The values of NodeName=DEFAULT or PartitionName=DEFAULT so far. Later lines add to them."""

    def __init__(self) -> None:
        self.values: dict[str, Entry] = {}

    def record(self, line: ConfLine) -> ConfRecord | None:
        """The record of a line. None for a DEFAULT line, whose values are kept."""
        head, values = line.entries[0], {e.key: e for e in line.entries[1:]}
        if head.value.upper() == "DEFAULT":
            self.values.update(values)
            return None
        expanded = names(head) if head.key == "nodename" else (head.value,)
        return ConfRecord(names=expanded, location=head.location, values={**self.values, **values})


def _assemble(path: str, lines: tuple[ConfLine, ...]) -> SiteConf:
    kinds = {kind: _Defaults() for kind in ("nodename", "partitionname", "nodeset")}
    records: dict[str, list[ConfRecord]] = {kind: [] for kind in kinds}
    for line in lines:
        kind = line.entries[0].key
        if kind not in kinds:
            continue
        record = kinds[kind].record(line)
        if record is not None:
            records[kind].append(record)
    _unique(records["nodename"], "node")
    _unique(records["partitionname"], "partition")
    return SiteConf(
        path=path,
        lines=lines,
        nodes=tuple(records["nodename"]),
        partitions=tuple(records["partitionname"]),
        nodesets=tuple(records["nodeset"]),
        node_defaults=kinds["nodename"].values,
        partition_defaults=kinds["partitionname"].values,
    )


def _unique(records: list[ConfRecord], noun: str) -> None:
    """ConfigError for a duplicate node or partition, which is fatal to slurmctld."""
    places: dict[str, str] = {}
    for record in records:
        for name in record.names:
            if name in places:
                raise ConfigError(f"{record.location}: {noun} {name} is already at {places[name]}")
            places[name] = record.location
