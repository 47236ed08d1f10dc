"""The machines of this cluster in one account: listed completely, filtered, ended by number."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from slurm_elastic.base.errors import DeniedError, InstanceNotFound, TransientError, UnsettledError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import OFF, STANDING, EndAnswer, InstanceState
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.base.tags import CLOUD
from slurm_elastic.providers.opennebula import convert, requests
from slurm_elastic.providers.opennebula.convert import VmFields
from slurm_elastic.providers.opennebula.errors import WRONG_STATE

log = logging.getLogger(__name__)

Call = Callable[..., Any]
"""One call to oned by the name of its method, with errors translated."""

MINE = -3
"""The filter for everything that belongs to the account."""
ANY_BUT_DONE = -1
PAGE = 100
READ_AT_ONCE = 200
_RETRY_AFTER_S = 0.5
ASK_AGAIN_AFTER_S = 30.0
"""After so long a machine that was asked to end and still exists is asked again."""


class OneMachines:
    """Lists, ends, stops and starts machines. ``ours``: the ids that were ever listed with our tag,
    or started by us. Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_end_asked_at")}

    def __init__(
        self, name: str, ownership: Ownership, call: Call, threads: int, timeout: float
    ) -> None:
        self.name = name
        self.ours = Ours(name, ownership, requests.SPELLING.key(CLOUD))
        self._call = call
        self._threads = threads
        self._timeout = timeout
        self._lock = threading.Lock()
        self._end_asked_at: dict[int, float] = {}

    def live(self) -> list[VmFields]:
        """Our machines in all states except DONE."""
        # Only the extended answer contains the tags.
        pool = self._call("vmpool.infoextended", MINE, -1, -1, ANY_BUT_DONE)
        machines = self._read(pool)
        self.ours.remember(convert.instance_id(self.name, v.id) for v in machines)
        return machines

    def ended(self, generation: str, since: float) -> Iterator[VmFields]:
        """The ended machines of a launch. Reads page by page, as far back as ``since`` (Unix
        time).
        """
        start, page = 0, self._ended_page(0)
        if _is_past(page, since) and _is_oldest_first(page):
            start = self._first_young_page(since)
            page = self._ended_page(start)
        while True:
            for machine in self._read(page):
                if machine.generation == generation:
                    yield machine
            if len(page.VM) < PAGE or _is_past(page, since):
                return
            start += PAGE
            page = self._ended_page(start)

    def _ended_page(self, start: int) -> Any:  # noqa: ANN401 - a pyone object
        # If the last number is negative, it is the size of a page, and the number before it is the
        # page's first row.
        return self._call("vmpool.infoextended", MINE, start, -PAGE, convert.DONE)

    def _first_young_page(self, since: float) -> int:
        """The row of the first page that reaches ``since``, if oned lists the oldest machines
        first. It searches by halving, because an account may have ended very many machines.
        """
        past, reached = 0, PAGE
        while _is_past(self._ended_page(reached), since):
            past, reached = reached, 2 * reached
        while reached - past > PAGE:
            middle = (past + reached) // 2 // PAGE * PAGE
            if _is_past(self._ended_page(middle), since):
                past = middle
            else:
                reached = middle
        return reached

    def by_number(self, numbers: Sequence[int]) -> dict[int, VmFields]:
        """The machines with these numbers that exist."""
        machines: dict[int, VmFields] = {}
        for start in range(0, len(numbers), READ_AT_ONCE):
            ids = ",".join(str(n) for n in numbers[start : start + READ_AT_ONCE])
            machines |= {v.id: v for v in self._read(self._call("vmpool.infoset", ids, True))}
        return machines

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End machines (terminate-hard). While a machine boots, oned refuses; the call is repeated
        until the time-out, then TransientError. An id that was never listed with our tag is looked
        up and left alone.
        """
        deadline = time.monotonic() + self._timeout
        own_ids, other_ids = self.ours.split(ids, self.live)
        return {
            **self._answer_each(own_ids, self._terminate_by(deadline)),
            **self.look_up(other_ids),
        }

    def look_up(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Whether oned has these machines, whatever tags they have."""
        return self._answer_each(ids, self._look_up)

    def _answer_each(
        self, ids: Sequence[str], answer: Callable[[int], EndAnswer]
    ) -> Mapping[str, EndAnswer]:
        """The answer for each id. Then the first error, if any, is raised."""
        number_by_id = {i: convert.number_of(self.name, i) for i in ids}
        numbers = [n for n in number_by_id.values() if n is not None]
        results = each(numbers, answer, self._threads)
        raise_first_error(failures(results))
        answers = {n: result.result() for n, result in zip(numbers, results, strict=True)}
        # This cloud has never given an id without a number.
        return {i: EndAnswer.GONE if n is None else answers[n] for i, n in number_by_id.items()}

    def _look_up(self, number: int) -> EndAnswer:
        """Whether oned has this machine, whose tags are not ours."""
        try:
            is_done = int(self._call("vm.info", number).STATE) == convert.DONE
        except InstanceNotFound:
            return EndAnswer.GONE
        except DeniedError:
            return EndAnswer.NOT_OURS  # another account's: our own machines may be read
        return EndAnswer.GONE if is_done else EndAnswer.NOT_OURS

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop machines (poweroff): the guest shuts down, and the machine keeps its host.
        TransientError if oned refuses, as for a machine that boots. Returns the ids that are not
        ours.
        """
        own_ids, other_ids = self.ours.split(ids, self.live)
        for number in self._numbers_of(own_ids):
            try:
                self._call("vm.action", "poweroff", number)
            except TransientError as error:
                if error.code != WRONG_STATE or self._state(number) not in OFF:
                    raise
        return other_ids

    def start(self, instance: str) -> None:
        """Start a stopped machine (resume). UnsettledError while it is still shutting down."""
        for number in self._numbers_of(self.ours.split([instance], self.live)[0]):
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
        raise InstanceNotFound(self.name, "NotOurs", f"{instance} is not one of our machines")

    def _state(self, number: int) -> InstanceState | None:
        machine = self.by_number([number]).get(number)
        return None if machine is None else convert.state_of(machine)

    def _numbers_of(self, own_ids: Sequence[str]) -> list[int]:
        """Oned's numbers of these ids."""
        numbers = (convert.number_of(self.name, i) for i in own_ids)
        return [n for n in numbers if n is not None]

    def ask_to_end(self, numbers: Sequence[int]) -> frozenset[int]:
        """Ask once for the end of each machine. Returns the numbers for which oned has accepted
        that.
        """
        results = each(list(numbers), self._ask_to_end, self._threads)
        for result in results:
            if error := result.exception():
                log.warning(
                    "machine not ended, tried again later cloud=%s error=%s", self.name, error
                )
        done = zip(numbers, results, strict=True)
        return frozenset(number for number, result in done if not result.exception())

    def is_ending(self, vm: VmFields) -> bool:
        """Whether the machine is ending. oned accepts an end before its listing shows it."""
        with self._lock:
            was_asked = vm.id in self._end_asked_at
        return was_asked or convert.state_of(vm) is InstanceState.STOPPING

    def ask_again(self, machines: Sequence[VmFields]) -> None:
        """Ask again for the end of machines that were asked to end and still exist. ``machines``
        must be a complete list.

        A restarted oned waits for an answer that its driver gave to the old process. If a
        hypervisor fails to end a machine, the machine is RUNNING again without any error.
        """
        now = time.monotonic()
        with self._lock:
            asked_at = {v.id: self._end_asked_at.get(v.id, now) for v in machines
                     if v.id in self._end_asked_at or v.shutting_down}  # fmt: skip
            self._end_asked_at = asked_at
            late = [
                number
                for number, asked_time in asked_at.items()
                if now - asked_time > ASK_AGAIN_AFTER_S
            ]
            self._end_asked_at |= dict.fromkeys(late, now)
        if late:
            log.warning("asked to end again cloud=%s ids=%s", self.name, late)
            self.ask_to_end(late)

    def _terminate_by(self, deadline: float) -> Callable[[int], EndAnswer]:
        def end(number: int) -> EndAnswer:
            while True:
                try:
                    return self._ask_to_end(number)
                except TransientError as error:
                    if error.code != WRONG_STATE or time.monotonic() + _RETRY_AFTER_S > deadline:
                        raise
                time.sleep(_RETRY_AFTER_S)

        return end

    def _ask_to_end(self, number: int) -> EndAnswer:
        answer = EndAnswer.ENDED
        try:
            self._call("vm.action", "terminate-hard", number)
        except InstanceNotFound:
            answer = EndAnswer.GONE
            log.info("already gone cloud=%s id=%d", self.name, number)
        with self._lock:
            # Also for a machine that oned does not know: a listing may still show it.
            self._end_asked_at[number] = time.monotonic()
        return answer

    def _read(self, pool: Any) -> list[VmFields]:  # noqa: ANN401 - a pyone object
        """The machines of an answer that belong to this cloud by their tags."""
        machines = map(convert.vm, pool.VM)
        return self.ours.among(machines, lambda v: v.tags, lambda v: str(v.id))


def _is_past(page: Any, since: float) -> bool:  # noqa: ANN401 - a pyone object
    """Whether the last machine of a full page was started before ``since``."""
    return len(page.VM) == PAGE and float(page.VM[-1].STIME) < since


def _is_oldest_first(page: Any) -> bool:  # noqa: ANN401 - a pyone object
    """Whether the site, the group or the user has set API_LIST_ORDER to ASC. oned's default is
    DESC.
    """
    return int(page.VM[0].ID) < int(page.VM[-1].ID)
