"""Two threads at the one place where they must not be at once: the later one waits.

A test stops one thread there and lets the other one run until it is through or has to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from patience import patience


class Watched:
    """A lock that calls ``on_wait`` when somebody finds it taken."""

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._lock = kind()
        self.on_wait: Callable[[], None] = lambda: None

    def acquire(self, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.on_wait()
        return bool(self._lock.acquire(timeout=timeout))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Meanwhile:
    """Once, when it is called: ``act`` runs in another thread as far as it gets. It starts where a
    function was called that this stands in for, before that one does its work.
    """

    def __init__(self, lock: Watched, act: Callable[[], object]) -> None:
        self._far_enough = threading.Event()
        self._act = act
        self._errors: list[BaseException] = []
        self._thread: threading.Thread | None = None
        lock.on_wait = self._far_enough.set

    def __call__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
            assert self._far_enough.wait(patience(60))

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with all this before its first call."""

        def standing_in(*args: Any, **kwargs: Any) -> Any:
            self()
            return function(*args, **kwargs)

        return standing_in

    def end(self) -> None:
        """Wait until it is through; what went wrong in it."""
        assert self._thread is not None, "nothing came to that place"
        self._thread.join(patience(60))
        assert not self._thread.is_alive()
        for error in self._errors:
            raise error

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - raised by ``end``
            self._errors.append(error)
        finally:
            self._far_enough.set()
