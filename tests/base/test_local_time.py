"""People read their own time, with its zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from slurm_elastic.base.local_time import clock, localised, minute, moment, zone

AT = datetime(2027, 1, 15, 22, 30, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_points_in_time_have_their_zone() -> None:
    assert clock(AT) == "23:30:00 CET"
    assert moment(AT) == "2027-01-15 23:30:00 CET"
    assert minute(AT) == "2027-01-15 23:30 CET"
    assert zone(AT + 200 * 86400) == "CEST"


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("cools down until 22:38:03 UTC after x", "cools down until 23:38:03 CET after x"),
        ("paused until 2027-07-01 20:58 UTC", "paused until 2027-07-01 22:58 CEST"),
        ("until 22:40 UTC, then 22:45 UTC", "until 23:40 CET, then 23:45 CET"),
        ("until 23:10:00 UTC", "until 2027-01-16 00:10:00 CET"),
        ("machines may be started: 20:00-06:00 UTC", "machines may be started: 20:00-06:00 UTC"),
        ("at 99:99 UTC", "at 99:99 UTC"),
        ("the day (UTC)", "the day (UTC)"),
    ],
)
def test_sentences_have_local_time_for_people(text: str, local: str) -> None:
    assert localised(text, AT) == local
