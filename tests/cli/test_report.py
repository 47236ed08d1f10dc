"""``report``: its simulation, its page and its PDF."""

from __future__ import annotations

import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import month_cases
import pytest
from month_cases import NOW
from msgspec.structs import replace
from needs import unless
from patience import patience

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.month import Month
from slurm_elastic.cli.main import main
from slurm_elastic.cli.reports import month_jobs, month_pdf
from slurm_elastic.cli.reports import month_sentences as sentences
from slurm_elastic.cli.reports import report as module
from slurm_elastic.cli.reports.month_page import web_page
from slurm_elastic.cli.reports.month_tables import curve_rows
from slurm_elastic.config import configfile
from slurm_elastic.model.directive import Directive, LimitChange
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.simulate.studies.certainty import Interval
from slurm_elastic.simulate.studies.month_replay import CurvePoint, Replay
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view.month_report import MonthReport

OCTOBER = 1_790_812_800
SACCT = """#!{python}
import os, sys
record = {record!r}
open(record, "a").write(repr((sys.argv[1:], os.environ["TZ"], os.environ["SLURM_TIME_FORMAT"])))
if os.path.exists(record + ".off"):
    sys.exit("sacct: error: Slurm accounting storage is disabled")
for number in range(200):
    at = {october} + number // 8 * 80000
    print(f"{{number}}|ann|physics|batch|{{at}}|{{at}}|3600|60|4|4|1G|cpu=4,mem=1G,node=1|COMPLETED")
print("201|ben|geo|batch|{october}|Unknown|0|60|4|0|1G|cpu=4,node=1|CANCELLED by 0")
print("202|ben|geo|batch|1|1|5|60|4|0|1G|cpu=4,node=1|COMPLETED")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Few machines of October, and a sacct that knows its jobs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    sacct = programs / "sacct"
    sacct.write_text(
        SACCT.format(python=sys.executable, record=str(tmp_path / "asked"), october=OCTOBER)
    )
    sacct.chmod(0o755)
    path = month_cases.config_file(tmp_path, str(programs))
    (tmp_path / "state" / "slurm.conf").write_text("ClusterName=alps\n")
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    month_cases.one_machine(ledger, OCTOBER + 3600)
    ledger.close()
    monkeypatch.setattr(module.time, "time", lambda: NOW)
    # The simulation runs in a process that yields to all others of a busy machine.
    monkeypatch.setattr(module, "SIMULATION_S", patience(10 * module.SIMULATION_S))
    monkeypatch.setenv("COLUMNS", "80")
    return path


def report(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["--config", str(path), "report", "--static", "1x4", *words]) == 0
    said = capsys.readouterr()
    files = [words[n + 1] for n, word in enumerate(words) if word in ("--html", "--pdf")]
    assert said.err == "".join(f"wrote {file}\n" for file in files)
    return said.out


def test_a_budget_that_an_operator_has_raised_is_the_one_in_the_report(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    raised = LimitChange(scope="", key="per_month", value=8000.0)
    ledger.directives.give(Directive(word=raised, who="ann", since=NOW - 60, starts=NOW - 60))
    ledger.close()
    found = json.loads(report(capsys, site, "--json", "--no-simulation"))
    assert found["budget_micro_dollars"] == 8_000_000_000


def test_the_simulation_replays_the_months_jobs_of_slurmdbd(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(report(capsys, site, "--json"))
    asked = (tmp_path / "asked").read_text()
    assert "--starttime=2026-10-01T00:00:00" in asked
    assert "--endtime=2026-11-01T00:00:00" in asked
    assert "'UTC0', '%s'" in asked
    assert found["no_replay"] == ""
    replay = found["replay"]
    assert replay["jobs"] == 200, "not the cancelled one, nor that of another month"
    assert replay["avoided"]["value"] > 20, "three of eight wait for five machines"
    assert replay["without"]["mean_wait_s"] > replay["configured"]["mean_wait_s"]
    assert replay["curve"][0]["dollars"] == 0.0


def test_the_simulation_boots_machines_as_long_as_they_took(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each machine booted in a minute. Two are too few to count, three are not."""
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    month_cases.one_machine(ledger, OCTOBER + 90_000, "pub2")
    assert month_jobs.measured_boots(ledger.machines.live(ended_since=0.0)) == {}
    month_cases.one_machine(ledger, OCTOBER + 180_000, "pub3")
    ledger.close()
    notes = json.loads(report(capsys, site, "--json"))["replay"]["notes"]
    assert "each machine of burst boots in 1m, the median of 3 measured boots" in notes
    assert any("of leased is assumed to boot in 2m" in note for note in notes)


def test_the_text_says_that_it_is_a_simulation(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = report(capsys, site)
    assert max(map(len, text.splitlines())) <= 80
    flat = re.sub(r"\s+", " ", text)
    assert "By simulation of the month's 200 jobs: clouds avoided" in flat
    assert "the range of 9 in 10 random draws" in flat
    assert "without public clouds" in flat
    assert "now $" in flat
    assert "The simulated scheduler serves jobs in the order" in flat


def test_without_accounting_the_report_says_so(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "asked.off").touch()
    flat = re.sub(r"\s+", " ", report(capsys, site))
    assert "No simulation: no job history: slurmdbd and slurmctld do not answer" in flat
    assert "Spent $" in flat


@pytest.mark.parametrize(
    ("value", "low", "high", "sentence"),
    [
        (260.0, 200.0, 333.0, "clouds avoided 260 hours of waiting (200 hours to 333 hours,"),
        (0.2, -0.001, 1.2, "clouds avoided 12 minutes of waiting (0 minutes to 1 hour,"),
        (-0.0, -0.0, 0.0, "clouds avoided 0 minutes of waiting (0 minutes to 0 minutes,"),
        (-0.1, -0.2, -0.0, "clouds added 6 minutes of waiting (0 minutes to 12 minutes,"),
    ],
)
def test_waiting_below_an_hour_is_in_minutes_and_never_minus_zero(
    site: Path, value: float, low: float, high: float, sentence: str
) -> None:
    point = CurvePoint(policy="configured", dollars=1.0, mean_wait=60.0)
    result = Replay(
        jobs=2, configured=point, without=point, never=0,
        avoided=Interval(value=value, low=low, high=high), curve=(), tried=1, is_complete=True,
    )  # fmt: skip
    found = replace(of(site), replay=result)
    assert sentence in next(iter(sentences.waiting(found)))


def test_amounts_of_the_curve_have_the_digits_that_they_need(site: Path) -> None:
    now = CurvePoint(policy="configured", dollars=0.0042, mean_wait=60.0)
    cheap = CurvePoint(policy="slurm", dollars=0.0031, mean_wait=90.0)
    result = Replay(
        jobs=2, configured=now, without=None, never=0, avoided=None, curve=(cheap, now), tried=2,
        is_complete=True,
    )  # fmt: skip
    found = replace(of(site), replay=result)
    assert [row[:2] for row in curve_rows(found)] == [("", "$0.003100"), ("now", "$0.004200")]
    assert "costs $0.004200 in the simulation" in next(iter(sentences.curve(found)))


def test_dollars_of_pools_on_spot_are_an_upper_bound_if_none_was_bought(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upper_bound = "it reckons with on-demand prices for pool burst. Its dollars are an upper bound."
    assert upper_bound not in re.sub(r"\s+", " ", report(capsys, site))
    pool = "{name: burst, cloud: aws,"
    site.write_text(site.read_text().replace(pool, f"{pool} markets: [spot],"))
    (tmp_path / "state" / "ledger.db").unlink()
    Ledger(tmp_path / "state" / "ledger.db").close()
    flat = re.sub(r"\s+", " ", report(capsys, site))
    assert upper_bound in flat
    assert month_jobs.PAID_PRICES not in flat


def test_pools_on_spot_are_simulated_at_the_prices_that_were_paid(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = "{name: burst, cloud: aws,"
    # A reservation costs the same with any prices.
    text = re.sub(r"    reservations:\n      - \{.*?\}\n", "", site.read_text(), flags=re.DOTALL)
    site.write_text(text.replace("    location: public", "    location: public\n    zones: [a]"))
    on_demand = json.loads(report(capsys, site, "--json"))["replay"]
    site.write_text(site.read_text().replace(pool, f"{pool} markets: [spot],"))
    found = json.loads(report(capsys, site, "--json"))["replay"]
    assert found["on_demand_pools"] == []
    assert month_jobs.PAID_PRICES in found["notes"]
    # The ledger's only spot machine cost $0.10 an hour; on demand it costs $0.36.
    ratio = found["configured"]["dollars"] / on_demand["configured"]["dollars"]
    assert ratio == pytest.approx(0.1 / 0.36, rel=0.01)


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ([], "slurmctld no longer remembers a job of October 2026. slurmctld keeps ended jobs"),
        (
            [SlurmJob(id=1, states=frozenset({"PENDING"}), submit=OCTOBER + 60.0)],
            "1 job of October 2026 waits or runs, and slurmctld remembers no ended job of it.",
        ),
    ],
)
def test_a_month_without_an_ended_job_says_why_and_what_helps(
    site: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[SlurmJob], reason: str
) -> None:
    config, slurm = configfile.load(site), PromptCli(configfile.load(site).slurm)
    monkeypatch.setattr(slurm, "jobs", lambda: jobs)
    monkeypatch.setattr(month_jobs, "jobs_between", lambda *_: ((), "no slurmdbd"))
    with pytest.raises(ConfigError, match=reason) as raised:
        month_jobs._own_history(config, slurm, Month(2026, 10), NOW)
    assert str(raised.value).endswith("MinJobAge only; use slurmdbd, or --sacct FILE")


def test_a_history_of_a_file_is_cut_to_the_month(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["; UnixStartTime: 1790000000"]
    for number in range(1, 21):
        at = (number - 10) * 86400 + OCTOBER - 1_790_000_000
        lines.append(f"{number} {at} 0 600 4 -1 -1 4 600 -1 1 1 1 -1 -1 -1 -1 -1")
    file = tmp_path / "h.swf"
    file.write_text("\n".join(line for line in lines if " -" not in line[:12]) + "\n")
    found = json.loads(report(capsys, site, "--workload", str(file), "--json"))
    assert found["replay"]["jobs"] == 11
    main(["--config", str(site), "report", "--workload", str(file), "--month", "2026-08"])
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "the history has no ended job that was submitted in August 2026" in said


class Outside(HTMLParser):
    """Every reference of a page, and its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.references += [v or "" for n, v in attrs if n in ("src", "href", "action", "data")]


def test_the_file_needs_nothing_else(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "october.html"
    assert report(capsys, site, "--html", str(out)) == ""
    text = out.read_text()
    page = Outside()
    page.feed(text)
    assert page.references == []
    assert "script" not in page.tags
    assert "style" not in page.attributes
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert '<svg class="budget"' in text
    assert "Waiting avoided" in text


def test_names_are_no_html(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    month_cases.one_machine(ledger, OCTOBER + 90_000, node="pub2", account="<script>alert(1)")
    ledger.close()
    out = tmp_path / "october.html"
    report(capsys, site, "--html", str(out), "--no-simulation")
    assert "<script" not in out.read_text()
    assert "&lt;script&gt;alert(1)" in out.read_text()


def test_a_month_without_costs_names_the_running_month(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module.time, "time", lambda: OCTOBER - 26 * 86_400.0)
    text = report(capsys, site, "--no-simulation")
    assert "Nothing was spent in August 2026." in text
    assert "This month so far: slurm-elastic report --month 2026-09" in text
    assert "This month" not in report(capsys, site, "--no-simulation", "--month", "2026-08")


def of(site: Path) -> MonthReport:
    return module.gather(configfile.load(site), Month(2026, 10), NOW)


def test_the_web_page_has_no_style_of_its_own_and_links_months(site: Path) -> None:
    text = web_page(of(site), [Month(2026, 9), Month(2026, 10)])
    page = Outside()
    page.feed(text)
    links = ["./", "icon.svg", "report?month=2026-09", "report?month=2026-10", "style.css"]
    assert sorted(page.references) == sorted(links)
    assert "style" not in page.tags | page.attributes


def test_a_pdf_by_weasyprint(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("weasyprint")
    out = tmp_path / "october.pdf"
    report(capsys, site, "--pdf", str(out), "--no-simulation")
    assert out.read_bytes().startswith(b"%PDF-")


def test_a_pdf_fetches_nothing() -> None:
    with pytest.raises(ValueError, match="fetches nothing, not http"):
        month_pdf._refuse("http://192.0.2.1/x")


@unless("chromium")
def test_a_pdf_by_chromium(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    out = tmp_path / "october.pdf"
    report(capsys, site, "--pdf", str(out), "--no-simulation")
    assert out.read_bytes().startswith(b"%PDF-")


def test_without_both_the_error_names_both(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "october.pdf"
    words = ("report", "--pdf", str(out), "--no-simulation")
    assert main(["--config", str(site), *words]) == 1
    said = capsys.readouterr().err
    assert "WeasyPrint" in said
    assert "pip install '.[report]'" in said
    assert "no chromium in PATH" in said
    assert not out.exists()


def test_a_browser_that_fails_is_told(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    os.chmod(browser, 0o755)
    with pytest.raises(Exception, match="made no PDF: no display"):
        month_pdf._by_browser(str(browser), "<p>x</p>")
