"""The machines of this cluster in one account: listed whole, told apart, ended by number."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from slurm_elastic.base.errors import InstanceNotFound, TransientError, UnsettledError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import OFF, STANDING, InstanceState
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.base.tags import CLOUD
from slurm_elastic.providers.opennebula import convert, requests
from slurm_elastic.providers.opennebula.convert import Vm
from slurm_elastic.providers.opennebula.errors import WRONG_STATE

log = logging.getLogger(__name__)

Call = Callable[..., Any]
"""One request to oned by its method's name, translated."""

MINE = -3
"""The filter for what belongs to the account."""
ANY_BUT_DONE = -1
PAGE = 100
READ_AT_ONCE = 200
_PAUSE = 0.5
ASKED_AGAIN = 30.0
"""Seconds after which a machine that was to end, and is still there, is asked to end again."""


class OneMachines:
    """``ours`` are the ids that were ever seen with our tag, or started. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_leaving")}

    def __init__(
        self, name: str, ownership: Ownership, call: Call, threads: int, timeout: float
    ) -> None:
        self.name = name
        self.ours = Ours(name, ownership, requests.SPELLING.key(CLOUD))
        self._call = call
        self._threads = threads
        self._timeout = timeout
        self._lock = threading.Lock()
        self._leaving: dict[int, float] = {}

    def live(self) -> list[Vm]:
        """The machines that are not DONE."""
        # Only the extended answer has the tags.
        pool = self._call("vmpool.infoextended", MINE, -1, -1, ANY_BUT_DONE)
        found = self._read(pool)
        self.ours.remember(convert.instance_id(self.name, v.id) for v in found)
        return found

    def ended(self, generation: str, since: float) -> Iterator[Vm]:
        """Ended machines of a launch: newest first, page by page, not beyond ``since``."""
        start = 0
        while True:
            # A negative last number is the size of a page, and the one before it where that begins.
            page = self._call("vmpool.infoextended", MINE, start, -PAGE, convert.DONE)
            for one in self._read(page):
                if one.generation == generation:
                    yield one
            if len(page.VM) < PAGE or float(page.VM[-1].STIME) < since:
                return
            start += PAGE

    def some(self, numbers: Sequence[int]) -> dict[int, Vm]:
        """These, by number, as far as they are there."""
        known: dict[int, Vm] = {}
        for start in range(0, len(numbers), READ_AT_ONCE):
            ids = ",".join(str(n) for n in numbers[start : start + READ_AT_ONCE])
            known |= {v.id: v for v in self._read(self._call("vmpool.infoset", ids, True))}
        return known

    def terminate(self, ids: Sequence[str]) -> None:
        """terminate-hard, which oned refuses while a machine boots: asked again until the time-out,
        then TransientError. An id that was never seen with our tag is left alone.
        """
        deadline = time.monotonic() + self._timeout
        raise_first_error(
            failures(each(self._numbers(ids), self._terminate_by(deadline), self._threads))
        )

    def stop(self, ids: Sequence[str]) -> None:
        """Oned's poweroff of each: the guest shuts down, and the machine keeps its host.
        TransientError while oned refuses it, as of a machine that boots.
        """
        for number in self._numbers(ids, "stopped"):
            try:
                self._call("vm.action", "poweroff", number)
            except TransientError as error:
                if error.code != WRONG_STATE or self._state(number) not in OFF:
                    raise

    def start(self, instance: str) -> None:
        """resume; UnsettledError while it shuts down."""
        for number in self._numbers([instance], "started"):
            try:
                self._call("vm.action", "resume", number)
            except TransientError as error:
                state = self._state(number) if error.code == WRONG_STATE else None
                if state in STANDING:
                    return
                if error.code != WRONG_STATE:
                    raise
                if state in OFF:
                    raise UnsettledError(self.name, error.code, error.message) from error
                raise InstanceNotFound(self.name, error.code, error.message) from error
            return
        raise InstanceNotFound(self.name, "NotOurs", f"{instance} is none of ours")

    def _state(self, number: int) -> InstanceState | None:
        found = self.some([number]).get(number)
        return None if found is None else convert.state_of(found)

    def _numbers(self, ids: Sequence[str], done: str = "terminated") -> list[int]:
        """Oned's numbers of those that are ours."""
        mine = self.ours.named(ids, self.live, done)
        numbers = (convert.number_of(self.name, i) for i in mine)
        return [n for n in numbers if n is not None]

    def ask_to_end(self, numbers: Sequence[int]) -> frozenset[int]:
        """Ask once for each; the numbers of those that are ended."""
        results = each(list(numbers), self._ask_to_end, self._threads)
        for result in results:
            if error := result.exception():
                log.warning("not ended, tried again later cloud=%s error=%s", self.name, error)
        done = zip(numbers, results, strict=True)
        return frozenset(number for number, result in done if not result.exception())

    def is_ending(self, vm: Vm) -> bool:
        """Whether it is on its way out. Oned answers before its list shows what was asked for."""
        with self._lock:
            was_asked = vm.id in self._leaving
        return was_asked or convert.state_of(vm) is InstanceState.STOPPING

    def press(self, found: Sequence[Vm]) -> None:
        """Ask again for the end of those of a whole list whose end was asked for and does not come:
        an oned that is started anew waits for an answer that its driver gave to the old one, and
        where a hypervisor fails, a machine is RUNNING again without any error.
        """
        now = time.monotonic()
        with self._lock:
            asked = {v.id: self._leaving.get(v.id, now) for v in found
                     if v.id in self._leaving or v.shutting_down}  # fmt: skip
            self._leaving = asked
            late = [number for number, when in asked.items() if now - when > ASKED_AGAIN]
            self._leaving |= dict.fromkeys(late, now)
        if late:
            log.warning("asked to end again cloud=%s ids=%s", self.name, late)
            self.ask_to_end(late)

    def _terminate_by(self, deadline: float) -> Callable[[int], None]:
        def end(number: int) -> None:
            while True:
                try:
                    return self._ask_to_end(number)
                except TransientError as error:
                    if error.code != WRONG_STATE or time.monotonic() + _PAUSE > deadline:
                        raise
                time.sleep(_PAUSE)

        return end

    def _ask_to_end(self, number: int) -> None:
        try:
            self._call("vm.action", "terminate-hard", number)
        except InstanceNotFound:
            log.info("already gone cloud=%s id=%d", self.name, number)
        with self._lock:
            self._leaving[number] = time.monotonic()

    def _read(self, pool: Any) -> list[Vm]:  # noqa: ANN401 - a pyone object
        """The machines of an answer that are this cloud's by their tags."""
        found = map(convert.vm, pool.VM)
        return self.ours.among(found, lambda v: v.tags, lambda v: str(v.id))
