"""How long ago something began that was recorded in Unix time.

The host's clock may be set at any time, in either direction, and a wait that counts in Unix time
then ends at once or takes the length of the step longer. A recorded time is converted once, to
monotonic time, and every later age comes from monotonic time.

The conversion itself trusts the clock. It may have been set between the record and the conversion,
so an age that cannot be right is unknown, and each caller says what an unknown age means to it.
Clocks are arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from slurm_elastic.base.age import known_age_s
from slurm_elastic.base.guards import Guarded, GuardedBy

K = TypeVar("K", bound=Hashable)


class Since(Struct, frozen=True):
    """When something began, in monotonic seconds. None: it is unknown."""

    began_at: float | None

    @classmethod
    def recorded(
        cls, recorded_at: float, *, now: float, monotonic_s: float, bound_s: float
    ) -> Since:
        """Convert a recorded Unix time. ``bound_s`` is the longest age that it can have if it is
        right. Keep the result: a second conversion would see how the clock was set in between.
        """
        age_s = known_age_s(recorded_at, now, bound_s)
        return cls(None if age_s is None else monotonic_s - age_s)

    def age_s(self, monotonic_s: float, *, if_unknown: float) -> float:
        """Return the seconds since the begin. The caller says what an unknown age means:
        ``math.inf`` to act now, 0.0 to wait for the full time at each look.
        """
        return if_unknown if self.began_at is None else max(monotonic_s - self.began_at, 0.0)


class SinceMemory(Generic[K]):
    """The conversions of one owner, by key (a row, a machine, a launch). Thread-safe.

    A key is converted at its first look and never again, unless its recorded time changes.
    Its owner says which keys still exist (``forget_unless``).
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_converted")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._converted: dict[K, tuple[float, Since]] = {}

    def since(
        self,
        key: K,
        recorded_at: float,
        *,
        now: float,
        monotonic_s: float,
        bound_s: float,
        if_unknown_s: float | None = None,
    ) -> Since:
        """Return when the thing began. An unknown age counts as ``if_unknown_s`` seconds at the
        first look, if given, and grows from there, so that a wait for it ends in any case.
        """
        with self._lock:
            earlier = self._converted.get(key)
            if earlier is not None and earlier[0] == recorded_at:
                return earlier[1]
            since = Since.recorded(recorded_at, now=now, monotonic_s=monotonic_s, bound_s=bound_s)
            if since.began_at is None and if_unknown_s is not None:
                since = Since(monotonic_s - if_unknown_s)
            self._converted[key] = (recorded_at, since)
            return since

    def forget_unless(self, exists: Callable[[K], bool]) -> None:
        """Forget the keys of which ``exists`` is false."""
        with self._lock:
            keys = tuple(self._converted)
        # Not under our lock: ``exists`` may take another one.
        obsolete = [key for key in keys if not exists(key)]
        with self._lock:
            for key in obsolete:
                self._converted.pop(key, None)

    def __bool__(self) -> bool:
        """Whether any key is remembered."""
        with self._lock:
            return bool(self._converted)
