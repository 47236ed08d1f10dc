"""A thread that is bound to some of its step's CPUs gets as many of another step's."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import cpu_binding

SEEN = 97
"""A number that nobody has here."""


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that may be bound."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


def own() -> set[int]:
    """The CPUs that there are for us; two, as nothing can be less than one."""
    found = os.sched_getaffinity(0)
    if len(found) < 2:
        pytest.skip("there is one CPU here, and nothing less")
    return found


def inside(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith("NSpid:"))


def test_only_what_uses_less_than_its_step_is_bound(sleeper: int) -> None:
    cpus = sorted(own())
    assert cpu_binding.bound([sleeper], cpus) == {}
    os.sched_setaffinity(sleeper, {cpus[1]})
    assert cpu_binding.bound([sleeper], cpus) == {inside(sleeper): [1]}
    assert cpu_binding.bound([sleeper], [cpus[1]]) == {}, "it is all that the step has"
    assert cpu_binding.bound([sleeper], [SEEN]) == {}, "it is not the step's"


def test_each_thread_has_its_own() -> None:
    cpus, found = sorted(own()), dict[str, list[int]]()

    def look() -> None:
        os.sched_setaffinity(0, {cpus[0]})
        found.update(cpu_binding.bound([os.getpid()], cpus))
        number = threading.get_native_id()
        os.sched_setaffinity(0, cpus)
        cpu_binding.bind([os.getpid()], {inside(number): [1]}, cpus)
        found["bound again"] = sorted(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    again = found.pop("bound again")
    assert list(found.values()) == [[0]]
    assert inside(os.getpid()) not in found
    assert again == [cpus[1]]
    assert os.sched_getaffinity(0) == set(cpus)


def test_a_place_counts_and_not_the_number_of_a_cpu(
    sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: done.append((pid, cpus)))
    cpu_binding.bind([sleeper], {inside(sleeper): [1, 3]}, {40, 8, 12, 20})
    assert done == [(sleeper, {12, 40})]


@pytest.mark.parametrize("places", [[1, 2], [-1], []])
def test_what_the_new_step_has_no_place_for_keeps_all_of_it(
    sleeper: int, places: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *how: done.append(how))
    cpu_binding.bind([sleeper], {inside(sleeper): places}, {8, 12})
    cpu_binding.bind([sleeper], {str(SEEN): [0]}, {8, 12})
    assert done == []


def test_what_has_ended_is_passed_by() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert cpu_binding.bound([process.pid], own()) == {}
    cpu_binding.bind([process.pid], {str(process.pid): [0]}, own())
