"""A connection to a cloud, opened at first use and opened again after an AuthError."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base.errors import AuthError
from slurm_elastic.base.guards import Guarded, GuardedBy

Connection = TypeVar("Connection")


class Reopened(Generic[Connection]):
    """A connection that is opened when it is needed.

    ``opened`` opens the connection. ``translated`` turns errors raised inside into ProviderErrors.
    Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_connection")}

    def __init__(
        self,
        opened: Callable[[], Connection],
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._open = opened
        self._translated = translated
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    @contextmanager
    def used(self) -> Iterator[Connection]:
        """The connection. After an AuthError it is dropped, so that the next use reads the
        credentials again: an administrator may renew them while we run.
        """
        connection: Connection | None = None
        try:
            with self._translated():
                with self._lock:
                    if self._connection is None:
                        self._connection = self._open()
                    connection = self._connection
                # Outside the lock, so that several threads can use the connection at the same time.
                yield connection
        except AuthError:
            with self._lock:
                # Another thread may have opened one with the renewed credentials since.
                if self._connection is connection:
                    self._connection = None
            raise
