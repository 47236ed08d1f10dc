"""Groups of items with the same key, in the order in which the keys first appear."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by ``key``. Unlike ``itertools.groupby`` the items need not be sorted, and unlike
    ``[item for item in items if key(item) == k]`` for each key ``k`` it takes one pass.
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
