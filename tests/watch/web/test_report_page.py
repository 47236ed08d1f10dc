"""The month's report in the browser, and who gets it."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import month_cases
import pytest
from month_cases import NOW
from patience import patience
from selenium.webdriver import Chrome

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli.operate import web
from slurm_elastic.cli.reports import month_jobs, report
from slurm_elastic.config import Config, configfile
from slurm_elastic.features.money.books import Costs, read_books, reports
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.simulate.studies.certainty import Interval
from slurm_elastic.simulate.studies.month_replay import CurvePoint, Replay
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.web.documents import Documents
from slurm_elastic.watch.web.wsgi import application
from tests.watch.web.stage import Page, served

OCTOBER = 1_790_812_800
REPLAY = Replay(
    jobs=200,
    configured=CurvePoint(policy="configured", dollars=90.0, mean_wait=300.0),
    without=CurvePoint(policy="none", dollars=0.0, mean_wait=5000.0),
    never=3,
    avoided=Interval(value=260.0, low=200.0, high=333.0),
    curve=(
        CurvePoint(policy="none", dollars=0.0, mean_wait=5000.0),
        CurvePoint(
            policy="semi_elastic(wait_limit=300, size=first)+delayed(before_end=60)",
            dollars=50.0, mean_wait=900.0,
        ),
        CurvePoint(policy="slurm+idle(600)", dollars=120.0, mean_wait=200.0),
    ),
    tried=44,
    is_complete=True,
)  # fmt: skip
SIZES = [
    (1280, 800, False),
    (390, 844, True),
    pytest.param(1280, 800, True, marks=pytest.mark.release),
    pytest.param(390, 844, False, marks=pytest.mark.release),
]


class Frozen:
    @staticmethod
    def time() -> float:
        return NOW


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, web.DocumentSource]:
    for module in (web, report):
        monkeypatch.setattr(module, "time", Frozen())
    monkeypatch.setattr(month_jobs, "replay_of_month", lambda *_, **__: REPLAY)
    path = month_cases.config_file(tmp_path)
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    month_cases.one_machine(ledger, OCTOBER + 3600)
    month_cases.one_machine(ledger, OCTOBER - 86_400, node="pub2", account="geo")
    ledger.close()
    config = configfile.load(path)
    return dict(web.sources(config, PromptCli(config.slurm), path))


@pytest.fixture
def page(sources: dict[str, web.DocumentSource], browser: Chrome) -> Iterator[Page]:
    with served({name: source.make for name, source in sources.items()}) as address:
        yield Page(browser, address)
        browser.get("about:blank")


def ask(address: str, path: str) -> tuple[int, str, str]:
    link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=patience(30))
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read().decode()
    finally:
        link.close()


def test_the_server_has_it_for_the_last_month_and_others(
    sources: dict[str, web.DocumentSource],
) -> None:
    with served({"report": sources["report"].make}) as address:
        status, kind, text = ask(address, "/report")
        assert (status, kind) == (200, "text/html")
        assert "report of October 2026" in text
        assert "physics" in text
        assert "report?month=2026-09" in text
        assert "report?month=2026-08" not in text, "the first record is of September"
        assert "clouds avoided 260 hours of waiting" in text
        assert (
            "Now it is 5 min. $30.00 more in the month would buy a mean wait of 3 min, "
            "$40.00 less would mean 15 min." in text
        )
        assert "report of September 2026" in ask(address, "/report?month=2026-09")[2]
        status, kind, text = ask(address, "/report?month=October")
        assert (status, kind) == (422, "text/plain")
        assert "is not a month such as 2026-10" in text


def test_a_server_without_one_says_so() -> None:
    with served({"status": lambda _: "{}"}) as address:
        assert ask(address, "/report")[0] == 422


def test_ondemand_serves_it_too(sources: dict[str, web.DocumentSource]) -> None:
    app = application(Documents(sources))
    seen: list[object] = []
    environment = {"PATH_INFO": "/report", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
    body = b"".join(app(environment, lambda *words: seen.extend(words)))  # type: ignore[arg-type]
    assert seen[0] == "200 OK"
    assert ("Content-Type", "text/html; charset=utf-8") in seen[1]  # type: ignore[operator]
    assert b"report of October 2026" in body


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_it_is_accessible_fits_and_asks_nobody_else(
    page: Page, width: int, height: int, dark: bool, tmp_path: Path
) -> None:
    page.requests(), page.complaints()
    page.sized(width, height, dark=dark)
    page.driver.get(f"{page.address}report")
    page.wait(lambda: page.overflow() <= 0)  # once the style sheet is there
    assert page.axe() == []
    assert page.text("h1") == "alps: report of October 2026"
    drawn = page.js("return document.querySelector('svg.budget').getBoundingClientRect().height")
    assert drawn > 100
    if directory := os.environ.get("PICTURES"):
        name = f"report-{width}-{'dark' if dark else 'light'}.png"
        page.driver.save_screenshot(str(Path(directory) / name))
    asked = {url for url in page.requests() if url.startswith("http")}
    assert {url for url in asked if not url.startswith(page.address)} == set()
    assert page.complaints() == []


def test_months_and_the_costs_link_to_each_other(page: Page) -> None:
    page.sized(1280, 800).go("#/cost")
    page.driver.find_element("link text", "The month's report").click()
    page.wait(lambda: page.text("h1") == "alps: report of October 2026")
    page.driver.find_element("link text", "2026-09").click()
    page.wait(lambda: page.text("h1") == "alps: report of September 2026")
    page.driver.find_element("link text", "Cluster").click()
    page.wait(lambda: page.js("return document.querySelector('#pages a') !== null"))


def test_a_user_without_rights_gets_the_own_part_without_a_simulation(
    sources: dict[str, web.DocumentSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the door answers: only the lines of the user's own jobs."""
    config = configfile.load(tmp_path / "slurm-elastic.yaml")

    def own(config_: object, keys: list[str], since: float, until: float, now: float) -> object:
        ledger = Ledger(tmp_path / "state" / "ledger.db", read_only=True)
        try:
            return reports(read_books(config, ledger, since, until, now), keys, uid=1001)
        finally:
            ledger.close()

    def never(*_: object, **__: object) -> Replay:
        raise SlurmElasticError("a user's report asks Slurm for no jobs of others")

    monkeypatch.setattr(report, "costs_by_key", own)
    monkeypatch.setattr(month_jobs, "replay_of_month", never)
    text = sources["report"].make({})
    assert "your own jobs&#x27; part" in text
    assert "physics" in text
    assert "Waiting" not in text
    assert "always on" not in text
    assert "(unused" not in text


def test_a_month_before_the_users_span_is_refused(
    sources: dict[str, web.DocumentSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read door moves the begin of a user's question to three months ago."""
    real = report.costs_by_key

    def later(config: Config, keys: Sequence[By], since: float, *span: float) -> dict[By, Costs]:
        return real(config, keys, since + 5 * 86_400, *span)

    monkeypatch.setattr(report, "costs_by_key", later)
    with pytest.raises(SlurmElasticError, match="August 2026 is too long ago"):
        sources["report"].make({"month": "2026-08"})
