"""A mapping that several threads change."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Mapping
from typing import ClassVar, Generic, TypeVar, overload

from slurm_elastic.base.guards import Guarded, GuardedBy

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Default = TypeVar("Default")


class SharedDict(Generic[Key, Value]):
    """A dict whose methods are each one step for all threads.

    There is no iterator, because another thread may change the mapping between two of its steps:
    ``snapshot`` gives a copy.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_values")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Key, Value] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self._values[key] = value

    @overload
    def get(self, key: Key) -> Value | None: ...
    @overload
    def get(self, key: Key, default: Default) -> Value | Default: ...
    def get(self, key: Key, default: object = None) -> object:
        """The value of ``key``; ``default`` if the key is missing."""
        with self._lock:
            return self._values.get(key, default)

    def setdefault(self, key: Key, value: Value) -> Value:
        """Return the value of ``key``. If the key is missing, set it to ``value`` first."""
        with self._lock:
            return self._values.setdefault(key, value)

    def pop(self, key: Key) -> Value | None:
        """Remove ``key`` and return its value. Return None if the key is missing."""
        with self._lock:
            return self._values.pop(key, None)

    def update(self, values: Mapping[Key, Value]) -> None:
        """Set all these keys in one step."""
        with self._lock:
            self._values.update(values)

    def snapshot(self) -> dict[Key, Value]:
        """Return a copy of the mapping as of one moment."""
        with self._lock:
            return dict(self._values)

    def keep(self, keys: Collection[Key]) -> None:
        """Remove all keys but these."""
        with self._lock:
            self._values = {key: value for key, value in self._values.items() if key in keys}
