"""Values for Slurm's commands in batches that fit into one argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_HOSTLIST_CHARS = 60_000
"""The length of one argument; Linux takes 128 KiB (execve(2), MAX_ARG_STRLEN)."""


def batches(items: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The pairs in batches, so that neither side is longer than one argument may be."""
    batch: list[tuple[str, str]] = []
    filled = 0
    for pair in items:
        size = max(map(len, pair)) + 1
        if batch and filled + size > MAX_HOSTLIST_CHARS:
            yield batch
            batch, filled = [], 0
        batch.append(pair)
        filled += size
    if batch:
        yield batch
