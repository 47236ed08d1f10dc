"""Keys of the configuration with a new name. A file with an old name is refused; the error names
the new one, and ``slurm-elastic conf upgrade`` writes it into the file.

Add a row here and a line to CHANGELOG.md when a released key gets another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct


class RenamedKey(Struct, frozen=True, kw_only=True):
    """A key at the place ``old`` (``timings.grace``) that is now called ``new``.

    ``also_in``: the lists whose entries have the key at the same place below them. ``provider``:
    the kind of cloud that has the key, if only one has it.
    """

    old: str
    new: str
    also_in: tuple[str, ...] = ()
    provider: str = ""

    @property
    def old_key(self) -> str:
        """The old name alone."""
        return self.old.rpartition(".")[2]

    @property
    def new_place(self) -> str:
        """The place with the new name."""
        return _beside(self.old, self.new)

    @property
    def places(self) -> tuple[str, ...]:
        """All places that may have had the old name."""
        return (self.old, *(f"{section}.{self.old}" for section in self.also_in))


class FoundKey(Struct, frozen=True, kw_only=True):
    """An old key at ``path`` of a file. ``has_new``: its mapping has the new name, too."""

    path: tuple[str | int, ...]
    new: str
    has_new: bool


RENAMED: tuple[RenamedKey, ...] = (RenamedKey(old="pools.machine.efa", new="rdma"),)


def find(value: object) -> Iterator[FoundKey]:
    """All old keys in the plain values of a file."""
    return _find(value, {place: row for row in RENAMED for place in row.places}, (), "")


def _find(
    value: object, by_place: Mapping[str, RenamedKey], path: tuple[str | int, ...], provider: str
) -> Iterator[FoundKey]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find(item, by_place, (*path, number), provider)
    if not isinstance(value, dict):
        return
    if path[:1] == ("clouds",) and len(path) == len(("clouds", 0)):
        provider = str(value.get("provider", ""))
    for key, inner in value.items():
        row = by_place.get(_place((*path, key)))
        if row is not None and row.provider in ("", provider):
            yield FoundKey(path=(*path, key), new=row.new, has_new=row.new in value)
        yield from _find(inner, by_place, (*path, key), provider)


def sentence(place: str, new: str) -> str:
    """The error about an old key at a place in a file."""
    return f"{place} is now {_beside(place, new)}; `slurm-elastic conf upgrade` rewrites the file"


def _place(path: tuple[str | int, ...]) -> str:
    return ".".join(step for step in path if isinstance(step, str))


def _beside(place: str, key: str) -> str:
    section, dot, _ = place.rpartition(".")
    return f"{section}{dot}{key}"
