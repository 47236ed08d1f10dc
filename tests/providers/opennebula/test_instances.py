"""The machines of one account: listed whole, told apart, ended by number and pressed to end."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.model.cluster import EndAnswer
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, GENERATION
from slurm_elastic.providers.opennebula import convert, instances
from slurm_elastic.providers.opennebula.convert import VmFields
from slurm_elastic.providers.opennebula.errors import WRONG_STATE
from slurm_elastic.providers.opennebula.instances import (
    ASK_AGAIN_AFTER_S,
    PAGE,
    READ_AT_ONCE,
    OneMachines,
)
from slurm_elastic.testing.contract import UUID

OURS = {CLUSTER: UUID, CLOUD: "one", GENERATION: "g1"}
RUNNING, SHUTDOWN = 3, 12


class Oned:
    """``there`` are its machines; ``wrong`` is what it says to the end of each, one after the other."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.there: list[VmFields] = []
        self.done: list[VmFields] = []
        self.wrong: dict[int, list[ProviderError]] = {}
        self.ended: list[int] = []
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, method: str, *words: Any) -> Any:
        self.asked.append((method, *words))
        match method:
            case "vm.action":
                assert words[0] in ("terminate-hard", "poweroff")
                if left := self.wrong.get(words[1]):
                    raise left.pop(0)
                self.ended.append(words[1])
                return None
            case "vm.info":
                if record := next((v for v in self.there if v.id == words[0]), None):
                    return SimpleNamespace(STATE=str(record.state))
                raise InstanceNotFound("one", "NoExists", "there is none")
            case "vmpool.infoset":
                numbers = {int(n) for n in words[0].split(",")}
                return pool([v for v in self.there if v.id in numbers])
            case _ if words[3] == convert.DONE:
                return pool(self.done[words[1] : words[1] - words[2]])
        return pool(self.there)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def pool(found: list[VmFields]) -> Any:
    rows = [SimpleNamespace(vm=v, ID=str(v.id), STIME=str(int(v.started))) for v in found]
    return SimpleNamespace(VM=rows)


def vm(
    number: int, tags: dict[str, str] | None = None, *, lcm: int = RUNNING, started: float = 0
) -> VmFields:
    marks = OURS if tags is None else tags
    return VmFields(
        id=number, state=convert.ACTIVE, lcm=lcm, started=started, tags=marks, address=None
    )


@pytest.fixture
def oned(monkeypatch: pytest.MonkeyPatch) -> Oned:
    made = Oned()
    monkeypatch.setattr(convert, "vm", lambda raw: raw.vm)
    monkeypatch.setattr(instances, "time", made)
    return made


def machines(oned: Oned, *clouds: str, timeout: float = 20.0) -> OneMachines:
    owners = Ownership(cluster=UUID, clouds=frozenset({"one", *clouds}))
    return OneMachines("one", owners, oned, threads=1, timeout=timeout)


# listing


def test_only_ours_are_listed_and_known(oned: Oned) -> None:
    oned.there = [vm(1), vm(2, {CLUSTER: "another"}), vm(3, {})]
    made = machines(oned)
    assert [v.id for v in made.live()] == [1]
    assert made.ours.ids == {convert.instance_id("one", 1)}
    assert oned.asked == [("vmpool.infoextended", -3, -1, -1, -1)]


@pytest.mark.parametrize("older_pages", [0, 1, 2, 7, 300])
@pytest.mark.parametrize("more", [0, 1, 30])
def test_ended_ones_are_found_where_oned_lists_the_oldest_first(
    oned: Oned, older_pages: int, more: int
) -> None:
    """API_LIST_ORDER is ASC there. Else a repeated launch would start them a second time."""
    older = older_pages * PAGE + more
    other = OURS | {GENERATION: "g0"}
    oned.done = [vm(n, other, started=n) for n in range(older)]
    oned.done += [vm(n, started=n) for n in range(older, older + PAGE + 1)]
    found = [v.id for v in machines(oned).ended("g1", older)]
    assert found == list(range(older, older + PAGE + 1))
    assert len(oned.asked) < 25


def test_ended_ones_are_looked_for_page_by_page_and_not_too_far_back(oned: Oned) -> None:
    other = OURS | {GENERATION: "g0"}
    oned.done = [
        vm(999 - n, OURS if n % 100 == 50 else other, started=10_000 - n) for n in range(3 * PAGE)
    ]
    made = machines(oned)
    assert [v.id for v in made.ended("g1", 0.0)] == [949, 849, 749]
    assert [words[2] for words in oned.asked] == [0, PAGE, 2 * PAGE, 3 * PAGE]
    oned.asked.clear()
    last_of_second = 10_000 - (2 * PAGE - 1)
    assert [v.id for v in made.ended("g1", last_of_second + 1)] == [949, 849]
    assert len(oned.asked) == 2
    assert [v.id for v in made.ended("g1", last_of_second)] == [949, 849, 749]
    oned.done = oned.done[:60]
    oned.asked.clear()
    assert [v.id for v in made.ended("g1", 0.0)] == [949]
    assert len(oned.asked) == 1


def test_some_are_read_a_bounded_number_at_a_time(oned: Oned) -> None:
    numbers = list(range(READ_AT_ONCE + 1))
    oned.there = [vm(n) for n in numbers if n != 7]
    assert list(machines(oned).by_number(numbers)) == [n for n in numbers if n != 7]
    assert [len(words[1].split(",")) for words in oned.asked] == [READ_AT_ONCE, 1]
    assert machines(oned).by_number([]) == {}


# ending


def names(*numbers: int) -> list[str]:
    return [convert.instance_id("one", n) for n in numbers]


def test_each_is_ended_once_and_others_are_looked_up(oned: Oned) -> None:
    oned.there = [vm(1), vm(2, {})]
    made = machines(oned)
    ended, not_ours, gone = EndAnswer.ENDED, EndAnswer.NOT_OURS, EndAnswer.GONE
    answers = made.terminate([*names(1, 1, 2, 3), "nonsense"])
    expected = dict(zip(names(1, 2, 3), (ended, not_ours, gone), strict=True))
    assert answers == expected | {"nonsense": gone}
    assert oned.ended == [1]
    oned.asked.clear()
    made.terminate(names(1))
    assert oned.asked == [("vm.action", "terminate-hard", 1)], "known ones are not looked for"


def test_one_that_boots_is_asked_again_until_it_takes_the_order(oned: Oned) -> None:
    boots = TransientError("one", WRONG_STATE, "wrong state")
    oned.there = [vm(1)]
    oned.wrong[1] = [boots] * 3
    machines(oned).terminate(names(1))
    assert oned.ended == [1]
    assert oned.now == 1000.0 + 3 * 0.5


def test_but_not_beyond_the_time_out(oned: Oned) -> None:
    oned.there = [vm(1)]
    oned.wrong[1] = [TransientError("one", WRONG_STATE, "wrong state")] * 1000
    with pytest.raises(TransientError, match=WRONG_STATE):
        machines(oned, timeout=2.0).terminate(names(1))
    assert oned.now == 1002.0


def test_another_error_is_none_to_wait_for_and_keeps_no_other_alive(oned: Oned) -> None:
    oned.there = [vm(1), vm(2), vm(3)]
    oned.wrong = {1: [AuthError("one", "Denied", "no")], 2: [TransientError("one", "Timeout", "?")]}
    made = machines(oned)
    with pytest.raises(TransientError, match="Timeout"):
        made.terminate(names(1, 2, 3))
    assert (oned.ended, oned.now) == ([3], 1000.0)
    oned.wrong = {1: [AuthError("one", "Denied", "no")]}
    with pytest.raises(AuthError):
        made.terminate(names(1, 2))


def test_asked_once_it_is_told_which_took_it(oned: Oned, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    oned.wrong = {
        1: [TransientError("one", WRONG_STATE, "boots")],
        2: [InstanceNotFound("one", "NoExists", "gone")],
    }
    assert machines(oned).ask_to_end([1, 2, 3]) == {2, 3}
    assert (
        "machine not ended, tried again later cloud=one error=one: WrongState: boots" in caplog.text
    )
    assert "already gone cloud=one id=2" in caplog.text


@pytest.mark.parametrize(
    ("code", "is_off", "is_refused"),
    [(WRONG_STATE, True, False), (WRONG_STATE, False, True), ("Timeout", True, True)],
)
def test_a_stop_that_is_refused_counts_where_the_machine_is_off_by_then(
    oned: Oned, code: str, is_off: bool, is_refused: bool
) -> None:
    there = vm(1)
    oned.there = [replace(there, state=convert.POWEROFF, lcm=0) if is_off else there]
    oned.wrong[1] = [TransientError("one", code, "not now")]
    made = machines(oned)
    with pytest.raises(TransientError, match=code) if is_refused else nullcontext():
        made.stop(names(1))
    assert oned.ended == []


# pressing


def test_one_whose_end_does_not_come_is_asked_again(
    oned: Oned, caplog: pytest.LogCaptureFixture
) -> None:
    there = [vm(1), vm(2), vm(3, lcm=SHUTDOWN)]
    oned.there = there
    made = machines(oned)
    made.terminate(names(1))
    made.ask_again(there)
    oned.now += ASK_AGAIN_AFTER_S
    made.ask_again(there)
    assert oned.ended == [1], "its time is not over"
    oned.now += 0.1
    made.ask_again(there)
    assert oned.ended == [1, 1, 3], "also one that somebody else has asked for"
    assert "asked to end again cloud=one ids=[1, 3]" in caplog.text
    made.ask_again(there)
    assert oned.ended == [1, 1, 3]
    oned.now += ASK_AGAIN_AFTER_S + 0.1
    made.ask_again([vm(2)])
    assert oned.ended == [1, 1, 3], "what is gone is not asked"
    assert made._end_asked_at == {}


def test_one_that_refuses_to_end_is_asked_now_and_then_and_not_at_each_look(
    oned: Oned, caplog: pytest.LogCaptureFixture
) -> None:
    there = [vm(1, lcm=SHUTDOWN)]
    made = machines(oned)
    made.ask_again(there)
    oned.wrong[1] = [TransientError("one", "Timeout", "?")] * 9
    for seconds, asked in ((ASK_AGAIN_AFTER_S + 0.1, 1), (0.1, 1), (ASK_AGAIN_AFTER_S, 2)):
        oned.now += seconds
        made.ask_again(there)
        assert len(oned.asked) == asked
    assert caplog.text.count("machine not ended, tried again later cloud=one") == 2
