"""Slurm's lists are read while they come, whatever the layout, and only what we use is kept."""

from __future__ import annotations

import json
import threading
import tracemalloc
from typing import Any

import msgspec
import pytest

from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import answers, records
from slurm_elastic.slurm.client.records import Records
from slurm_elastic.slurm.client.shared_reading import SharedReading

UNUSED = {f"field_{n}": {"set": True, "infinite": False, "number": n} for n in range(40)}


def job(number: int, **fields: object) -> dict[str, object]:
    return {
        "account": "physics", **UNUSED, "job_id": number, "job_state": "PENDING", **fields,
        "job_resources": {"nodes": [{"name": "a"}, {"name": "b"}], "jobs": [{}]},
    }  # fmt: skip


def read(text: bytes, part: int = 4096) -> tuple[list[SlurmJob], Any]:
    found = Records("jobs", answers.RawJob, answers.job)
    for start in range(0, len(text), part):
        found.take(text[start : start + part])
    errors = found.close()
    return found.values, errors


JOBS = [
    job(1, name='},\n    {"jobs": [\n      {'),
    job(2, comment="ckpt=criu"),
    *(job(n) for n in range(3, 60)),
]
FIRST = {"jobs": JOBS, "meta": {"jobs": []}, "errors": []}
LAST = {"meta": {"jobs": []}, "errors": [], "jobs": JOBS}


@pytest.mark.parametrize("answer", [FIRST, LAST])
@pytest.mark.parametrize("indent", [None, 0, 1, 2, "\t"])
@pytest.mark.parametrize("part", [1, 7, 100_000])
@pytest.mark.parametrize("batch", [3000, 1 << 20])
def test_a_list_is_the_same_in_whatever_layout_and_parts_it_comes(
    answer: dict[str, object],
    indent: int | str | None,
    part: int,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "BATCH", batch)
    found, errors = read(json.dumps(answer, indent=indent).encode(), part)
    assert [one.id for one in found] == list(range(1, 60))
    assert (found[0].name, found[1].comment) == (JOBS[0]["name"], "ckpt=criu")
    assert errors == []


@pytest.mark.parametrize("text", ['{\n  "errors": [\n  ],\n  "jobs": [\n  ]\n}', '{"jobs": []}'])
def test_a_list_may_be_empty(text: str) -> None:
    assert read(text.encode())[0] == []


@pytest.mark.parametrize("batch", [3000, 1 << 20])
@pytest.mark.parametrize("where", [FIRST, LAST])
def test_errors_are_told_wherever_they_stand(
    where: dict[str, object], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BATCH", batch)
    text = json.dumps({**where, "errors": [{"error": "no"}]}, indent=2).encode()
    assert read(text)[1] == [{"error": "no"}]


@pytest.mark.parametrize("odd", [b"NaN", b'"\\ud800"', b'"\xff"'])
def test_what_is_not_quite_json_costs_no_list(odd: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH", 3000)
    text = json.dumps(LAST, indent=2).encode().replace(b'"ckpt=criu"', odd)
    text = text.replace(b'"comment"', b'"admin_comment"')
    assert [one.id for one in read(text)[0]] == list(range(1, 60))


def test_a_text_that_breaks_off_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever record it does, also behind its end: jobs that are not there would count as gone."""
    monkeypatch.setattr(records, "BATCH", 3000)
    text = json.dumps(LAST, indent=2).encode()
    for length in range(len(text) - 1, 0, -97):
        with pytest.raises(ValueError, match=r"\S"):
            read(text[:length])


@pytest.mark.parametrize("jobs", [None, [3], [{"job_state": "RUNNING"}], [{"job_id": 1}, {}]])
def test_another_shape_is_said(jobs: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(json.dumps({"jobs": jobs}, indent=2).encode())


def test_the_text_is_never_in_memory_as_a_whole() -> None:
    text = json.dumps({"jobs": [job(n) for n in range(4000)]}, indent=2).encode()
    tracemalloc.start()
    try:
        found, _ = read(text, 1 << 16)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 4000
    assert most < len(text) / 2


def test_who_asks_while_others_wait_shares_a_reading_that_began_later() -> None:
    """Ten threads that ask during a first reading are served by one more; none by the first."""
    count, begun, go_on = 0, threading.Event(), threading.Event()

    def reading() -> int:
        nonlocal count
        count += 1
        begun.set()
        assert go_on.wait(60)
        return count

    shared = SharedReading(reading)
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(shared.get()))
    first.start()
    assert begun.wait(60)
    others = [threading.Thread(target=lambda: found.append(shared.get())) for _ in range(10)]
    for thread in others:
        thread.start()
    while shared._callers < 11:
        pass
    go_on.set()
    for thread in (first, *others):
        thread.join(60)
    assert sorted(found) == [1] + [2] * 10
    assert shared.get() == 3, "nothing is kept when nobody waits"


def test_a_reading_that_fails_is_its_callers_alone() -> None:
    answers_ = iter([OSError("away"), 5])

    def reading() -> int:
        told = next(answers_)
        if isinstance(told, Exception):
            raise told
        return told

    shared = SharedReading(reading)
    with pytest.raises(OSError, match="away"):
        shared.get()
    assert shared.get() == 5
