"""Declarations of the attributes that a lock guards, in the class that makes the lock.

A class with a lock says in ``guarded_by`` which of its attributes may be touched only under that
lock, or which work only one thread or process does at a time::

    class Requeues:
        guarded_by: ClassVar[GuardedBy] = {
            "_lock": Guarded("_expected", unguarded_readers=["__bool__"]),
            "_putting_back": "to put a job's --no-requeue back",
        }

Tests read the declarations. One test checks each method by its syntax tree, another one checks each
access while methods run, and a third one refuses a lock without a declaration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Guarded:
    """The ``attributes`` of an object that belong to one lock.

    The methods ``unguarded_readers`` read them without the lock. The class says beside its
    declaration why each of these reads is safe. The methods ``callers_hold_lock`` touch them and
    are called by other classes, which take the lock first.
    """

    def __init__(
        self,
        *attributes: str,
        unguarded_readers: Collection[str] = (),
        callers_hold_lock: Collection[str] = (),
    ) -> None:
        self.attributes = attributes
        self.unguarded_readers = frozenset(unguarded_readers)
        self.callers_hold_lock = frozenset(callers_hold_lock)


GuardedBy = Mapping[str, Guarded | str]
"""The attributes of each lock by its name, or the work that one thread does at a time."""
