"""A year's journal is replayed: facts a second beside a loop that only reads JSON, and memory.

Five million facts of a busy site: purchases, what becomes of machines, runs of jobs, decisions,
exclusions and counters, as the ledger writes them, in one segment. A process of its own makes the
view of it, so that its peak of memory is that of the replay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import Report, Row, at_least, bounded, noted, report
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store.journal import Begin, Fact, JournalLine, line_of

GOAL = 35_000.0
"""Facts a second."""
MEMORY = 200.0
"""MB that the replay may take at most, however long the journal is."""
MACHINES, NODES = 20_000, 2_000
"""Machines whose lives follow one another, so that rows are replaced as in a year."""
_REPLAY = """
import resource, sys, time
from pathlib import Path
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store.journal import Journal
from slurm_elastic.state.store.view import made_anew
place = Path(sys.argv[1])
began = time.perf_counter()
made_anew(place / "ledger.db", LEDGER, Journal(place / "journal", "ledger"))
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
"""


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench journal")
    parser.add_argument("--facts", type=int, default=5_000_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-journal-") as name:
        return report("journal", list(measured(Path(name), options.facts)))


def measured(place: Path, facts: int) -> Iterator[Row]:
    path = place / "journal" / "ledger-000001.jsonl"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.writelines(line_of(line) for line in year(facts))
    floor = read_alone(path)
    took, memory = replayed(place)
    yield noted("journal", path.stat().st_size / 1e6, "MB")
    yield noted("facts", facts, "facts")
    yield noted("read by json.loads alone", facts / floor, "facts/s")
    yield at_least("view made of the journal", facts / took, GOAL, "facts/s", 1.0)
    yield bounded("most memory of that", memory, MEMORY, "MB")


def read_alone(path: Path) -> float:
    """The floor: what reading and understanding the lines takes."""
    began = time.perf_counter()
    with path.open("rb") as file:
        for line in file:
            json.loads(line)
    return time.perf_counter() - began


def replayed(place: Path) -> tuple[float, float]:
    """Seconds and MB."""
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, str(place)], capture_output=True, text=True, check=True
    )
    took, memory = done.stdout.split()
    return float(took), float(memory)


def year(facts: int) -> Iterator[JournalLine]:
    """One line for each write; ten of eleven have one fact."""
    yield JournalLine(n=0, begin=Begin(memory=LEDGER.name, schema=LEDGER.version, rows=0))
    told = number = 0
    while told < facts:
        number += 1
        some = [fact for fact in life(number) if told + 1 <= facts]
        for fact in some[: facts - told]:
            told += 1
            yield JournalLine(n=told, at=1.7e9 + told, facts=(fact,))


def life(number: int) -> Iterator[Fact]:
    """What is written of one machine, its jobs and why."""
    at, node, id_ = 1.7e9 + number * 60, f"n{number % NODES + 1}", f"i-{number % MACHINES:017x}"
    launch = {
        "generation": f"g{number % MACHINES:08d}", "request": f"r{number}", "pool": "p",
        "cloud": "pub", "nodes": f'["{node}"]', "jobs": f"[{number}]",
        "offer": '{"cloud":"pub","location":"public","instance_type":"c6i.xlarge","zone":"a",'
        '"market":"spot","price":0.04,"cpus":4,"memory":8192}',
        "state": "intent", "created": at, "finished": None, "error": None, "accounts": "{}",
        "owner": "{}", "recipe": "",
    }  # fmt: skip
    machine = {
        "id": id_, "cloud": "pub", "node": node, "generation": launch["generation"],
        "instance_type": "c6i.xlarge", "zone": "a", "market": "spot", "price": 0.04,
        "state": "pending", "launched": at, "address": "10.0.0.1", "pool": "p",
        "jobs": f"[{number}]", "last_seen": at, "misses": 0, "suspending": None, "ended": None,
        "why": None, "worst_price": 0.12, "registered": None, "accounts": "{}", "stopping": None,
        "stopped": None, "born": None, "tunnel_key": None,
    }  # fmt: skip
    run = {
        "job": number, "begin": at + 90, "end": None, "label": str(number), "user": "u",
        "uid": 1000, "account": "a", "partition": "pub", "shares": f'[["{node}",1000000]]',
    }  # fmt: skip
    yield Fact(put="launches", rows=[launch])
    yield Fact(put="machines", rows=[machine])
    yield Fact(put="launches", rows=[launch | {"state": "done", "finished": at + 2}])
    yield Fact(put="machines", rows=[machine | {"registered": at + 90, "state": "running"}])
    yield Fact(put="runs", rows=[run])
    yield Fact(put="runs", rows=[run | {"end": at + 3000}])
    yield Fact(put="counters", rows=[{"name": "launches_total", "value": number}])
    yield Fact(put="decisions", rows=[decision(at, node, number)])
    yield Fact(put="machines", rows=[machine | {"suspending": at + 3600, "why": "idle"}])
    yield Fact(put="machines", rows=[machine | {"ended": at + 3605, "state": "terminated"}])
    yield Fact(drop="exclusions", rows=[{"kind": "cool-down", "scope": f"pub/{number}"}])


def decision(at: float, node: str, number: int) -> dict[str, object]:
    return {
        "at": at, "correlation": f"r{number}", "kind": "launched",
        "subjects": f'["{node}","job:{number}"]', "reason": "best offer", "detail": None,
    }  # fmt: skip
