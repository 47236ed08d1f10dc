"""Real threads of which one runs at a time, on a virtual clock; a seed decides which one.

A thread gives way only where it waits, and where it calls ``pause``: before it takes a lock, and at
whatever the fakes do for it. Time passes when all threads wait. So a seed's run is the same each time.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import ModuleType
from typing import Any

from tests.controller.world import Killed

MOST = 400_000
"""Turns of one run: beyond that it goes in circles."""


class StuckError(Exception):
    """All threads wait for each other, or they go in circles."""


class Task:
    """A thread of one ``owner``; ``name`` is the same in each run of a seed."""

    def __init__(self, owner: str, name: str) -> None:
        self.owner, self.name = owner, name
        self.gate = threading.Lock()
        self.gate.acquire()
        self.killed = self.done = self.waits = self.late = False
        self.sent = (
            False  # it waits for what was sent, which comes of it whatever becomes of the thread
        )
        self.epoch = 0
        self.read_nodes: dict[str, float] = {}  # when it last heard of each node from Slurm
        self.joined: list[Task] = []


class Scheduler:
    """``eager`` is how likely another thread comes first at a place where one gives way. ``note``
    keeps what happened. The thread that makes it is the first task, of the owner "world".
    """

    def __init__(self, rng: random.Random, eager: float, note: Callable[[str], None]) -> None:
        self._rng, self._eager, self._note = rng, eager, note
        self.now = 0.0
        self.turns = 0
        self.current = Task("world", "world")
        self.tasks: list[Task] = []
        self.errors: list[tuple[Task, BaseException]] = []
        self._ready: list[Task] = []
        self._asleep: list[tuple[float, int, Task, int]] = []
        self._numbers = itertools.count()
        self._stopped: set[str] = set()
        self._held: list[Task] = []

    def spawn(self, owner: str, name: str, work: Callable[[], object]) -> Task:
        """A new thread, whose turn comes later."""
        task = Task(owner, name)
        self.tasks.append(task)
        threading.Thread(target=self._run, args=(task, work), name=name, daemon=True).start()
        self._ready.append(task)
        return task

    def _run(self, task: Task, work: Callable[[], object]) -> None:
        task.gate.acquire()
        try:
            if not task.killed:
                work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by whoever runs the seed
            self.errors.append((task, error))
        task.done = True
        self.tasks.remove(task)
        for other in task.joined:
            self.wake(other)
        self._hand_over(self._next())

    # giving way

    def pause(self) -> None:
        """Another thread's turn, perhaps."""
        me = self.current
        if me.killed:
            raise Killed
        if self._ready and self._rng.random() < self._eager:
            self._ready.append(me)
            self._give_way()

    def sleep(self, seconds: float) -> None:
        """Until then."""
        self.block(max(seconds, 0.0))

    def block(self, timeout: float | None = None) -> bool:
        """Wait for ``wake``; whether it came in time (s)."""
        me = self.current
        if me.killed:
            raise Killed
        me.waits, me.late = True, False
        me.epoch += 1
        if timeout is not None:
            entry = (self.now + timeout, next(self._numbers), me, me.epoch)
            heapq.heappush(self._asleep, entry)
        self._give_way()
        return not me.late

    def wake(self, task: Task) -> None:
        """Its turn may come, if it waits."""
        if task.waits:
            task.waits = False
            task.epoch += 1
            self._ready.append(task)

    def kill(self, owner: str) -> None:
        """None of its threads does anything more, but give back what it holds."""
        for task in self.tasks:
            if task.owner == owner:
                task.killed = True
                self.wake(task)

    def stop(self, owner: str) -> None:
        """None of its threads does anything, until it is to go on: as SIGSTOP."""
        self._stopped.add(owner)

    def go_on(self, owner: str) -> None:
        """As SIGCONT."""
        self._stopped.discard(owner)
        self._ready += [task for task in self._held if task.owner == owner]
        self._held = [task for task in self._held if task.owner != owner]

    def reap(self, owner: str) -> None:
        """Wait until all its threads are gone."""
        while any(task.owner == owner for task in self.tasks):
            self._ready.append(self.current)
            self._give_way()

    def lives(self, owner: str) -> bool:
        """Whether it has a thread that was not killed."""
        return any(task.owner == owner and not task.killed for task in self.tasks)

    def _give_way(self) -> None:
        me = self.current
        other = self._next()
        if other is not me:
            self._hand_over(other)
            me.gate.acquire()
        if me.killed:
            raise Killed

    def _hand_over(self, task: Task) -> None:
        self.current = task
        task.gate.release()

    def _next(self) -> Task:
        self.turns += 1
        if self.turns > MOST:
            raise StuckError(f"{MOST} turns by {self.now:.0f} s")
        while True:
            found = self._drawn()
            if found.owner not in self._stopped or found.sent:
                break
            self._held.append(found)
        self._note(f"{self.now:.3f} {found.name}")
        return found

    def _drawn(self) -> Task:
        while not self._ready:
            if not self._asleep:
                raise StuckError("all threads wait for each other")
            when, _, task, epoch = heapq.heappop(self._asleep)
            if task.waits and task.epoch == epoch:
                self.now = max(self.now, when)
                task.late = True
                self.wake(task)
        return self._ready.pop(self._rng.randrange(len(self._ready)))


_scheduler: Scheduler


def use(scheduler: Scheduler) -> None:
    """From now on all that is made below belongs to it."""
    global _scheduler
    _scheduler = scheduler


class Lock:
    """As threading's."""

    def __init__(self) -> None:
        self._sched = _scheduler
        self._holder: Task | None = None
        self._queue: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sched = self._sched
        sched.pause()
        if self._holder is None:
            self._holder = sched.current
            return True
        until = None if timeout < 0 else sched.now + timeout
        while self._holder is not None:
            if not blocking or (until is not None and sched.now >= until):
                return False
            self._queue.append(sched.current)
            try:
                sched.block(None if until is None else until - sched.now)
            finally:
                if sched.current in self._queue:
                    self._queue.remove(sched.current)
        self._holder = sched.current
        return True

    def release(self) -> None:
        if self._holder is not self._sched.current:
            if self._sched.current.killed:
                return
            raise RuntimeError("release of a lock that another thread holds")
        self._holder = None
        if self._queue:
            queue, self._queue = self._queue, []
            for task in queue:
                self._sched.wake(task)

    def locked(self) -> bool:
        return self._holder is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """As threading's."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._holder is self._sched.current:
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        if self._holder is self._sched.current:
            self._depth -= 1
            if self._depth:
                return
        super().release()

    __enter__ = acquire


class Condition:
    """As threading's, over a lock that is not taken twice."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._queue: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        sched = _scheduler
        me = sched.current
        self._queue.append(me)
        self._lock.release()
        try:
            return sched.block(timeout)
        finally:
            if me in self._queue:
                self._queue.remove(me)
            self._lock.acquire()

    def notify(self, n: int = 1) -> None:
        some, self._queue = self._queue[:n], self._queue[n:]
        for task in some:
            _scheduler.wake(task)

    def notify_all(self) -> None:
        self.notify(len(self._queue))


class Event:
    """As threading's."""

    def __init__(self) -> None:
        self._sched = _scheduler
        self._is_set = False
        self._queue: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        queue, self._queue = self._queue, []
        for task in queue:
            self._sched.wake(task)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        sched = self._sched
        sched.pause()
        if not self._is_set:
            me = sched.current
            self._queue.append(me)
            try:
                sched.block(timeout)
            finally:
                if me in self._queue:
                    self._queue.remove(me)
        return self._is_set


class Thread:
    """As threading's; it belongs to whom the thread that starts it belongs to."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> None:
        self._work = lambda: target(*args)
        self.name = name
        self._task: Task | None = None

    def start(self) -> None:
        owner = _scheduler.current.owner
        name = self.name.partition(" in /")[0]  # of a directory that is another each time
        self._task = _scheduler.spawn(owner, f"{owner}/{name}", self._work)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.done:
            self._task.joined.append(_scheduler.current)
            _scheduler.block(timeout)


class Worker(Executor):
    """One thread, one thing after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._bell = Event()
        self._thread: Thread | None = None
        self._over = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._queue.append((future, lambda: fn(*args, **kwargs)))
        if self._thread is None:
            self._thread = Thread(self._run, self._name)
            self._thread.start()
        self._bell.set()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What is under way comes to its end; of a service that is killed it has none."""
        if _scheduler.current.killed:
            return
        for future, _ in self._queue:
            future.cancel()
        self._queue.clear()
        self._over = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over:
            while self._queue:
                future, work = self._queue.pop(0)
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - as an executor does
                    future.set_exception(error)
            self._bell.clear()
            if not self._over:
                self._bell.wait()


class Threading(ModuleType):
    """In place of the module in those of the product."""

    def __init__(self) -> None:
        super().__init__("threading")
        self.Lock, self.RLock, self.Condition = Lock, RLock, Condition
        self.Event, self.Thread = Event, Thread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)
