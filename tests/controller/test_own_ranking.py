"""A ranking key of another package: what the file and slurm-elasticd make of a good one, of one that
raises or returns nonsense, and of one that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile, ranking_kinds
from slurm_elastic.config.ranking_kinds import checked_key, table
from slurm_elastic.model.cluster import Location, Market, Offer
from slurm_elastic.policies.launch.pool_order import JobShape, job_order, terms_of
from slurm_elastic.policies.launch.ranking import KEYS, Scope, rank
from slurm_elastic.testing.ranking import NOW, REQUEST
from tests.outside import announce, imported_from, site_text

CODE = """
from slurm_elastic.config.ranking_kinds import RankingKind

def far(request, offer):
    NUMBER

KEY = RankingKind(name="far", key=far, api=1)
"""
GOOD = "return {'near': 1, 'mid': 2}.get(offer.zone, 3)"
SITE = site_text("ranking: [far, price]")
WRONG = {
    "raises": ("raise ZeroDivisionError('a\\nb')", "ZeroDivisionError: a b"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "text": ("return 'first'", "found 'first', expected a finite number"),
    "none": ("return None", "found None, expected a finite number"),
    "nan": ("return float('nan')", "found nan, expected a finite number"),
    "endless": ("return float('-inf')", "found -inf, expected a finite number"),
}


def put(folder: Path, number: str = GOOD, name: str = "far", code: str = CODE) -> None:
    (folder / "outside_far.py").write_text(code.replace("NUMBER", number))
    announce(folder, ranking_kinds.GROUP, name, "outside_far:KEY")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    ranking_kinds._reported.clear("far")
    with imported_from(tmp_path, monkeypatch, table.cache_clear) as folder:
        yield folder


def offer(zone: str, price: float) -> Offer:
    return Offer(
        cloud="mist", location=Location.PUBLIC, instance_type="t", zone=zone,
        market=Market.ON_DEMAND, price=price, cpus=2, memory=4096,
    )  # fmt: skip


def zones(*ranking: str) -> list[str]:
    offers = [offer("out", 0.1), offer("near", 0.3), offer("mid", 0.2)]
    return [row.offer.zone for row in rank(REQUEST, offers, Scope(), NOW, ranking).ranked]


def test_a_file_may_name_it_and_offers_are_ranked_by_it(folder: Path) -> None:
    put(folder)
    assert configfile.parse(SITE, "site.yaml").ranking == ("far", "price")
    assert zones("far", "price") == ["near", "mid", "out"]
    assert zones("price", "far") == ["out", "mid", "near"]
    assert tuple(KEYS) == ("location", "market", "price", "risk", "waste", "far")


def test_it_orders_clouds(folder: Path) -> None:
    put(folder)
    ranking = ("far", "price")
    rows = [
        terms_of(REQUEST, zone, [offer(zone, price)], Scope(), NOW, ranking, boot_s=0.0)
        for zone, price in (("out", 0.1), ("near", 0.3))
    ]
    job = JobShape(machines={"burst": 1}, seconds=60.0)
    assert [row.terms.partition for row in job_order(job, rows, ranking)] == ["near", "out"]


@pytest.mark.parametrize("wrong", WRONG)
def test_one_that_fails_decides_nothing_and_is_reported_once(
    folder: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    number, trouble = WRONG[wrong]
    put(folder, number)
    assert zones("far", "price") == ["out", "mid", "near"], "the next key decides"
    assert zones("far", "price") == ["out", "mid", "near"]
    assert caplog.text.count("ranking key far ranks an offer last") == 1
    assert trouble in caplog.text


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("far", "1/0", "'far', but outside_far:KEY cannot be imported: ZeroDivisionError"),
        ("far", CODE.replace("api=1", "api=2"), "is made for interface 2 of ranking keys, this release has 1"),
        ("far", "KEY = 1", "but outside_far:KEY is no RankingKind"),
        ("price", CODE, "'price', which several packages have: slurm_elastic.policies.launch.ranking:price"),
        ("Far-off", CODE.replace('"far"', '"Far-off"'), "a key's name has lower-case letters"),
        ("available", CODE.replace('"far"', '"available"'), "a key's name has lower-case letters"),
    ],
)  # fmt: skip
def test_a_person_is_stopped_by_one_that_cannot_be_used_and_a_service_is_not(
    folder: Path, name: str, code: str, why: str
) -> None:
    put(folder, name=name, code=code)
    text = site_text(f"ranking: [{name}, waste]")
    with pytest.raises(ConfigError) as caught:
        configfile.parse(text, "site.yaml")
    assert why in " ".join(str(caught.value).split())
    assert configfile.parse(text, "site.yaml", whole=False).ranking == (name, "waste")
    assert len(zones(name)) == 3


def test_an_unknown_key_is_named_with_those_that_exist(folder: Path) -> None:
    put(folder)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace("far", "fra"), "site.yaml")
    assert "expected one of location, market, price, risk, waste, far" in str(caught.value)
    assert "did you mean far?" in str(caught.value)
    with pytest.raises(KeyError):
        checked_key("fra")
