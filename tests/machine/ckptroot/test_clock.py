"""Clocks of a job's own: what its processes read, and what becomes of those of others."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import clock

from .helpers import ROOT

pytestmark = ROOT

HOUR = 3600 * 10**9
OWN = {"monotonic": 7 * HOUR, "boottime": 9 * HOUR}
LATE = 600 * 10**9
"""Nanoseconds that this machine may stand still in a test."""


def in_child(*looks: Callable[[], object]) -> list[str]:
    """The looks' results in a child, which has no threads beside, as the root part has none."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = "\n".join(str(look()) for look in looks)
        except BaseException:  # noqa: BLE001 - told to the test
            said = traceback.format_exc()
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        found = file.read()
    os.waitpid(pid, 0)
    return found.splitlines()


def alone(look: Callable[[], object]) -> None:
    """The look, which is a test, in a child."""
    assert in_child(look) == ["None"]


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def test_they_begin_where_they_stood_and_those_of_others_stay() -> None:
    alone(_begin_where_they_stood)


def _begin_where_they_stood() -> None:
    ours, before = clock.offsets(), time.monotonic_ns()
    with clock.begun(ours, OWN) as offsets:
        seen = in_child(time.monotonic_ns, boottime, uptime)
        told = clock.now(ours, offsets)
        assert time.monotonic_ns() < before + LATE, "ours go on"
    assert 0 <= int(seen[0]) - OWN["monotonic"] < LATE
    assert 0 <= int(seen[1]) - OWN["boottime"] < LATE
    assert 0 <= float(seen[2]) - 9 * 3600 < 600, "/proc/uptime goes by them"
    assert int(seen[0]) <= told["monotonic"] < int(seen[0]) + LATE
    assert int(seen[1]) <= told["boottime"] < int(seen[1]) + LATE
    (after,) = in_child(time.monotonic_ns)
    assert before <= int(after) < before + LATE, "a later child has ours again"


def test_without_any_saved_they_say_what_ours_say() -> None:
    alone(_say_what_ours_say)


def _say_what_ours_say() -> None:
    before = time.monotonic_ns()
    with clock.begun(clock.offsets(), None):
        (seen,) = in_child(time.monotonic_ns)
    assert before <= int(seen) < before + LATE


def test_a_node_in_a_namespace_of_its_own_counts_by_its_own_clocks() -> None:
    """As one in a container may be."""
    alone(_such_a_node)


def _such_a_node() -> None:
    node = {"monotonic": 500 * HOUR, "boottime": 500 * HOUR}
    with clock.begun(clock.offsets(), node):
        assert in_child(_job_on_such_a_node) == ["True True True"]


def _job_on_such_a_node() -> str:
    ours = clock.offsets()
    with clock.begun(ours, OWN) as offsets:
        seen = int(in_child(time.monotonic_ns)[0])
        told = clock.now(ours, offsets)["monotonic"]
    elder = time.monotonic_ns() >= 500 * HOUR
    return f"{elder} {0 <= seen - OWN['monotonic'] < LATE} {0 <= told - seen < LATE}"


def test_afterwards_threads_and_programs_begin_as_ever() -> None:
    """Linux before 6.1 starts none that shares memory with us beside children with other clocks."""

    def look() -> str:
        with clock.begun(clock.offsets(), OWN):
            in_child(time.monotonic_ns)
        one = threading.Thread(target=lambda: None)
        one.start()
        one.join()
        return subprocess.run(["echo", "well"], capture_output=True, text=True, check=True).stdout

    assert in_child(look) == ["well"]


@pytest.mark.parametrize("ours", [{}, {"monotonic": 0, "boottime": 0}])
def test_a_node_that_cannot_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: Mapping[str, int]
) -> None:
    """A kernel without such namespaces, and root without CAP_SYS_TIME."""

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    def cannot() -> None:
        before = time.monotonic_ns()
        with pytest.raises(OSError, match="not permitted" if ours else "not implemented"):
            clock.begin(ours, OWN)
        (seen,) = in_child(time.monotonic_ns)
        assert before <= int(seen) < before + LATE, "no child has them by half"

    monkeypatch.setattr(Path, "write_text", denied)
    alone(cannot)
    monkeypatch.setattr(clock, "_OFFSETS", tmp_path / "none")
    assert clock.offsets() == {}
