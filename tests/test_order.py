"""Which tests a run takes, and in which order their files start."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from order import REPO, UNKNOWN, FromBothEnds, longest_first, shuffled, slowest
from patience import patience


class Item:
    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.path = REPO / Path(nodeid.partition("::")[0])
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


E2E = pytest.mark.e2e.mark


def test_files_that_take_longest_start_first_and_keep_the_order_of_their_tests():
    items = [
        Item("a.py::test_1"),
        Item("b.py::test_light"),
        Item("b.py::test_real", E2E),
        Item("c.py::test_chaos"),
        Item("d.py::test_1"),
        Item("e.py::test_1", E2E),
    ]
    longest_first(items, {"e.py": UNKNOWN + 1, "c.py": 1.0})
    assert [item.nodeid for item in items] == [
        "e.py::test_1",
        "b.py::test_light",
        "b.py::test_real",
        "c.py::test_chaos",
        "a.py::test_1",
        "d.py::test_1",
    ]


def test_the_slowest_files_of_a_run_are_read():
    assert slowest()["tests/e2e/test_policies.py"] > UNKNOWN


def test_a_seed_gives_an_order_in_which_files_stay_whole():
    items = [Item(f"{file}.py::test_{n}") for file in "abcdef" for n in range(9)]
    items += [Item(f"real.py::test_{n}", E2E) for n in range(9)]
    one, same, other = shuffled(items, "1"), shuffled(items[::-1], "1"), shuffled(items, "2")
    assert sorted(map(str, one)) == sorted(map(str, items))
    assert [item.path for item in one] == [item.path for item in same]
    assert one != other
    assert one != items
    assert sum(a.path != b.path for a, b in pairwise(one)) == 6
    assert [item.nodeid for item in one if "real" in item.nodeid] == [
        f"real.py::test_{n}" for n in range(9)
    ]


class Worker:
    """One of xdist's: what it was told to run."""

    shutting_down = False

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.told: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(workers: int, tests: list[str]) -> tuple[FromBothEnds, list[Worker]]:
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * workers, option=SimpleNamespace(loadscopereorder=False)
    )
    made = FromBothEnds(config)  # type: ignore[arg-type]
    made.processors = 1
    nodes = [Worker(number) for number in range(workers)]
    for node in nodes:
        made.add_node(node)  # type: ignore[arg-type]
        made.add_node_collection(node, tests)  # type: ignore[arg-type]
    made.schedule()
    return made, nodes


TESTS = [f"{file}.py::test_{n}" for file in "abcdef" for n in range(3)]


def test_a_worker_of_many_begins_with_the_shortest_files():
    _, nodes = scheduled(4, TESTS)
    files = [{TESTS[index][0] for index in node.told} for node in nodes]
    assert files == [{"f"}, {"a"}, {"b"}, {"c"}]


def test_few_workers_all_begin_with_the_longest():
    _, nodes = scheduled(2, TESTS)
    assert [{TESTS[index][0] for index in node.told} for node in nodes] == [{"a"}, {"b"}]


def test_every_test_is_run_once_and_a_file_waits_for_a_worker_that_has_time():
    made, nodes = scheduled(4, TESTS)
    ran: list[int] = []
    while made.has_pending:
        node = next(n for n in nodes if n.told)
        assert len(node.told) > 1 or not made.workqueue or node.shutting_down
        ran.append(node.told.pop(0))
        made.mark_test_complete(node, ran[-1])  # type: ignore[arg-type]
    assert sorted(ran) == list(range(len(TESTS)))
    assert all(node.shutting_down for node in nodes)


def test_the_fast_run_leaves_out_what_needs_slurmctld_or_an_engine():
    choice = next(
        line for line in (REPO / "scripts/test").read_text().splitlines() if "not e2e" in line
    ).split('"')[3]
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", choice,
         "tests/e2e/test_burst.py", "tests/realcloud/docker/test_ssh.py", "tests/test_docs.py"],
        cwd=REPO, capture_output=True, text=True, check=True, timeout=patience(300),
    ).stdout  # fmt: skip
    assert "tests/test_docs.py::" in collected
    assert "tests/e2e" not in collected
    assert "tests/realcloud" not in collected
