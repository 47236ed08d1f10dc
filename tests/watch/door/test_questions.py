"""Whatever stands in a question or an order, there is an answer or a sentence, and never a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from status_cases import NOW, busy_ledger, busy_slurm, config

from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.door import answers as module
from slurm_elastic.watch.door.answers import DoorAnswers, Refreshed
from slurm_elastic.watch.door.questions import DoorAnswer

pytestmark = pytest.mark.usefixtures("guarded")
VALUES = (
    -1, 0, 1.5, 1e308, -1e308, 2**63 - 1, -(2**63), 10**400, True, None,
    "", "\x1b[2J", "a" * 1000, "\ud800", [], ["x"], {"a": 1},
)  # fmt: skip
JOB = {"id": 0, "states": ["PENDING"], "user": "ann", "partitions": ["onprem", "burst"], "cpus": 1}
PRICE = {"ask": "price", "job": JOB}
CHAIN = {"ask": "chain", "about": "job", "name": "7"}
OWN_JOBS = {"ask": "mine", "since": 0}
COST = {"ask": "cost", "by": "job", "since": 0}
WORDS: tuple[dict[str, object], ...] = (
    {"kind": "pause", "scope": ""},
    {"kind": "limit", "scope": "", "key": "nodes", "value": 3},
    {"kind": "departure", "verb": "drain", "about": "pub1", "nodes": ["pub1"]},
)


def questions() -> Iterator[Mapping[str, object]]:
    for value in VALUES:
        for key in SlurmJob.__struct_fields__:
            yield PRICE | {"job": JOB | {key: value}}
        for key in ("save", "limits", "unknown"):
            yield PRICE | {key: value}
        for key in ("about", "name", "nodes", "begin", "end"):
            for about in ("job", "node", "pool"):
                yield CHAIN | {"about": about} | {key: value}
        for key in ("by", "since", "until", "share_unused"):
            yield COST | {key: value}
        for key in ("since", "user", "everyone", "job"):
            yield OWN_JOBS | {key: value}
        yield {"ask": "save", "job": value}


def orders() -> Iterator[Mapping[str, object]]:
    for value in VALUES:
        for word in WORDS:
            for key in {*word, "aggressive", "unavailable", "to", "image"}:
                yield {"ask": "direct", "word": word | {key: value}}
        for key in ("starts", "seconds", "reason"):
            yield {"ask": "direct", "word": WORDS[0], key: value}
        yield {"ask": "end", "numbers": [value]}
        yield {"ask": "end", "numbers": [], "reason": value}


def test_no_value_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_bounded", lambda function, *args: function(*args))
    site = config(tmp_path)
    busy_ledger(site.state / "ledger.db").close()
    answers = DoorAnswers(site, busy_slurm(), lambda: NOW)
    for uid, asks in ((4321, questions()), (0, orders())):
        for ask in asks:
            line = json.dumps(ask).encode()
            told = msgspec.json.decode(answers(Peer(uid=uid), line), type=DoorAnswer)
            assert told.error.isprintable(), ask


def test_who_asks_while_it_is_read_waits_for_that_and_reads_nothing_anew() -> None:
    begun, go_on = threading.Event(), threading.Event()
    reads: list[int] = []

    def read() -> int:
        begun.set()
        go_on.wait(60)
        reads.append(1)
        return len(reads)

    kept, found = Refreshed(read, 1000.0), list[int]()
    asking = [threading.Thread(target=lambda: found.append(kept.get())) for _ in range(3)]
    for one in asking:
        one.start()
    assert begun.wait(60)
    assert kept.last() is None
    go_on.set()
    for one in asking:
        one.join()
    assert (found, kept.last()) == ([1, 1, 1], 1)
    kept.forget()
    assert kept.last() is None
    assert kept.get() == 2
