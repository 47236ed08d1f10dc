"""A service of many threads has one heap, and gives back what it no longer uses."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from slurm_elastic.base.processes import heap

PROGRAM = """
import ctypes, sys, threading
from slurm_elastic.base.processes import heap
if sys.argv[1] == "one":
    heap.share_one()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
places, begun = [], threading.Barrier(4)
def take():
    begun.wait()
    places.append(libc.malloc(1000) >> 26)
    begun.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
heap.give_back()
print(len(set(places)))
"""


def heaps(how: str) -> int:
    """In how many heaps four threads got memory; each one is aligned to 64 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_all_threads_of_a_service_use_one_heap() -> None:
    assert heaps("many") > 1
    assert heaps("one") == 1


def test_only_a_service_of_its_own_looks_for_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: looks.append(None))
    monkeypatch.setattr(heap, "_is_shared", False)
    heap.give_back()
    assert looks == []
    monkeypatch.setattr(heap, "_is_shared", True)
    heap.give_back()
    assert looks == [None]
