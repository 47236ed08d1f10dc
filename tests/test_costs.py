"""Costs by any key: they sum to what the machines were charged."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from cost_cases import NOW, T, book, config_file, machine
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.reports import cost
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.policies import SitePolicies
from slurm_elastic.features.money.books import CostRows, Costs, charges, read_books, report
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.cost_sums import CostLine
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.model.memory import ChargedRun, part_id, whole_id
from slurm_elastic.policies.money.cost_split import Unused
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.view.focus import COLUMNS, rows
from slurm_elastic.watch.view.unused import NormalUnused, normal_unused, unused_shares


@pytest.fixture
def books(tmp_path: Path) -> CostRows:
    config = configfile.load(config_file(tmp_path))
    ledger = book(config.state / "ledger.db")
    try:
        return read_books(config, ledger, T - 3600, None, NOW)
    finally:
        ledger.close()


def lines(costs: Costs) -> dict[str, int]:
    assert costs.problems == ()
    assert sum(line.micro for line in costs.lines) == costs.micro
    return {f"({x.key})" if x.unused else x.key: x.micro for x in costs.lines}


def test_each_account_pays_what_its_jobs_had_and_the_rest_has_reasons(books: CostRows) -> None:
    found = report(books, By.ACCOUNT)
    assert lines(found) == {
        "physics": 200_000, "chemistry": 50_000, "(none)": 0, "(boot)": 18_000, "(drain)": 50_000,
        "(ending)": 30_000, "(idle)": 732_000,
    }  # fmt: skip
    assert (found.micro, found.machines) == (3 * 360_000, 4)


@pytest.mark.parametrize("by", list(By))
def test_each_key_sums_to_the_same_charge(books: CostRows, by: By) -> None:
    assert report(books, by).micro == 3 * 360_000


def test_other_keys(books: CostRows) -> None:
    assert lines(report(books, By.JOB))["8_1"] == 50_000
    assert lines(report(books, By.USER))["ann"] == 200_000
    assert lines(report(books, By.CLOUD)) == {"aws": 1_080_000, "own": 0}
    assert lines(report(books, By.MARKET)) == {"spot": 1_080_000, "reserved": 0}
    (day,) = report(books, By.DAY).lines
    assert (day.key, day.micro, day.micro_unused) == ("2027-01-15", 1_080_000, 830_000)


def test_types_of_the_same_name_are_told_apart_by_their_cloud(books: CostRows) -> None:
    """Clouds name their types as they like: a small one is another machine in each."""
    (pub1,) = (m for m in books.machines if m.instance.node == "pub1")
    large = replace(pub1, instance=replace(pub1.instance, instance_type="large"))
    others = [m for m in books.machines if m is not pub1]
    found = report(books._replace(machines=[large, *others]), By.TYPE)
    dearest_first = [("aws/small", 720_000), ("aws/large", 360_000), ("own/small", 0)]
    assert list(lines(found).items()) == dearest_first
    unused = {line.key: line.micro_unused for line in found.lines}
    assert unused == {"aws/small": 620_000, "aws/large": 210_000, "own/small": 0}
    assert lines(report(books, By.TYPE, uid=65534)) == {"aws/small": 200_000}


def test_an_hour_costs_what_its_machine_costs_whatever_time_was_asked_for(books: CostRows) -> None:
    found = report(books, By.ACCOUNT)
    hours = {f"({x.key})" if x.unused else x.key: x.hours * 3600 for x in found.lines}
    assert hours == pytest.approx({
        "physics": 2000, "chemistry": 500, "(none)": 2570, "(boot)": 181, "(drain)": 500,
        "(ending)": 300, "(idle)": 7320 + 4629,
    })  # fmt: skip
    assert found.hours == pytest.approx(sum(hours.values()) / 3600)
    for by in By:
        assert report(books, by).hours == pytest.approx(found.hours)
    (own,) = report(books, By.JOB, uid=65534).lines
    assert own.micro / 1e6 / own.hours == pytest.approx(0.36)


def test_the_page_shows_the_table(
    books: CostRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configfile.load(config_file(tmp_path))
    cost.render(report(books, By.ACCOUNT), plain(), config)
    table = capsys.readouterr().out.strip()
    page = Path(__file__).parents[1] / "docs" / "costs.md"
    text = page.read_text()
    shown = re.compile(r"(?<=^```\n)Cost by account .*?(?=\n```$)", re.MULTILINE | re.DOTALL)
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(shown.sub(lambda _: table, text, count=1))
        text = page.read_text()
    assert shown.findall(text) == [table]


def test_unused_parts_are_shared_by_who_used_the_pool(books: CostRows) -> None:
    found = lines(report(books, By.ACCOUNT, share_unused=True))
    assert found == {"physics": 864_000, "chemistry": 216_000, "(none)": 0}


def test_a_user_sees_the_own_jobs_alone(books: CostRows) -> None:
    found = report(books, By.ACCOUNT, uid=65534, share_unused=True)
    assert lines(found) == {"physics": 200_000}
    assert found.own
    assert lines(report(books, By.POOL, uid=65534)) == {"burst": 200_000}
    assert report(books, By.JOB, uid=4711).lines == ()


def test_windows_side_by_side_sum_to_the_whole(tmp_path: Path) -> None:
    config = configfile.load(config_file(tmp_path))
    ledger = book(config.state / "ledger.db")
    edges = [T, T + 0.5, T + 777.777, T + 2500, T + 3600, NOW]
    spans = pairwise(edges)
    parts = [report(read_books(config, ledger, a, b, NOW), By.JOB).micro for a, b in spans]
    ledger.close()
    assert sum(parts) == 1_080_000


def test_a_job_of_a_former_machine_of_the_node_is_not_the_next_ones(tmp_path: Path) -> None:
    config = configfile.load(config_file(tmp_path))
    ledger = book(config.state / "ledger.db")
    again = machine("pub1", T + 4000, 0.36)
    ledger.machines.adopt(
        again.__class__(
            **{f: getattr(again, f) for f in again.__struct_fields__}
            | {"id": "i-2", "generation": "g-2"}
        ),
        "burst",
        T,
    )
    found = report(read_books(config, ledger, T + 3601, None, NOW), By.ACCOUNT)
    ledger.close()
    assert lines(found) == {"(none)": 0, "(boot)": 320_000}


machines = st.lists(
    st.tuples(
        st.sampled_from(["pub1", "pub2", "op1"]), st.integers(0, 20_000), st.integers(0, 9000),
        st.floats(0, 9.5), st.integers(0, 9000), st.booleans(),
    ),
    max_size=6,
)  # fmt: skip
runs = st.lists(
    st.tuples(
        st.sampled_from(["pub[1-2]", "pub1", "op1,pub2"]), st.integers(0, 25_000),
        st.none() | st.integers(0, 9000), st.integers(1, 1_000_000), st.sampled_from("abc"),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=60)
@given(machines, runs, st.booleans())
def test_whatever_ran_where_all_keys_sum_to_the_ledgers_charge(
    bought: list[tuple[str, int, int, float, int, bool]],
    ran: list[tuple[str, int, int | None, int, str]],
    shared: bool,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = configfile.load(config_file(Path(directory)))
        ledger = Ledger(config.state / "ledger.db")
        expected = 0.0
        for number, (node, begin, length, price, up, over) in enumerate(bought):
            cloud = "own" if node == "op1" else "aws"
            base = machine(node, T + begin, price, cloud, Market.SPOT)
            one = base.__class__(
                **{f: getattr(base, f) for f in base.__struct_fields__}
                | {"id": f"i-{number}", "generation": f"g-{number}"}
            )
            ledger.machines.adopt(one, "rack" if node == "op1" else "burst", T)
            ledger.machines.record_registration(cloud, [one.id], T + begin + up)
            if over:
                ledger.machines.record_end(cloud, [one.id], Quoted(text="over"), T + begin + length)
        ledger.usage.write([
            ChargedRun(job=n, begin=T + begin, end=None if length is None else T + begin + length,
                label=str(n), user=who, uid=1, account=who, partition=who, shares=((nodes, part),))
            for n, (nodes, begin, length, part, who) in enumerate(ran)
        ])  # fmt: skip
        now = T + 30_000
        expected = sum(ledger.books.dollars(cloud, T - 1, now) for cloud in ("aws", "own"))
        books = read_books(config, ledger, T - 1, None, now)
        ledger.close()
    sums = {by: report(books, by, share_unused=shared) for by in By}
    assert {costs.problems for costs in sums.values()} == {()}
    (micro,) = {sum(line.micro for line in costs.lines) for costs in sums.values()}
    assert micro == sum(charge.micro for charge in charges(books))
    assert abs(micro / 1e6 - expected) <= 1e-6 * (len(bought) + 1)


def test_a_job_uses_a_machine_no_longer_than_that_was_there(tmp_path: Path) -> None:
    """A minute is paid of one that lived for 20 s, the last ten of them with a job."""
    config = configfile.load(config_file(tmp_path))
    with closing(Ledger(config.state / "ledger.db")) as ledger:
        ledger.machines.adopt(machine("pub1", T, 0.36), "burst", T)
        ledger.machines.record_registration("aws", ["i-pub1"], T + 5)
        ledger.machines.record_end("aws", ["i-pub1"], Quoted(text="taken away"), T + 20)
        ledger.usage.write([
            ChargedRun(job=7, begin=T + 10, end=T + 50, label="7", user="ann", uid=1, account="physics",
                partition="aws", shares=(("pub1", 1_000_000),)),
        ])  # fmt: skip
        books = read_books(config, ledger, T - 1, None, T + 3600)
    sums = lines(report(books, By.ACCOUNT))
    assert sums["physics"] == 10 * 100
    assert sum(sums.values()) == 60 * 100


def test_a_machine_that_cannot_be_ended_runs_no_job_of_its_successor(tmp_path: Path) -> None:
    """The cloud refuses to end it for half an hour; another machine serves the node."""
    config = configfile.load(config_file(tmp_path))
    with closing(Ledger(config.state / "ledger.db")) as ledger:
        old = machine("pub1", T, 0.36)
        ledger.machines.adopt(old, "burst", T)
        ledger.machines.record_registration("aws", ["i-pub1"], T)
        ledger.machines.record_ending("aws", ["i-pub1"], Quoted(text="idle"), T + 1000)
        new = replace(old, id="i-2", generation="g-2", launched=T + 1000)
        ledger.machines.adopt(new, "burst", T + 1000)
        ledger.machines.record_registration("aws", ["i-2"], T + 1000)
        ledger.machines.record_end("aws", ["i-pub1"], Quoted(text="idle"), T + 2800)
        ledger.usage.write([
            ChargedRun(job=n, begin=T + begin, end=T + end, label=str(n), user="ann", uid=1,
                account="physics", partition="aws", shares=(("pub1", 1_000_000),))
            for n, begin, end in ((7, 0, 1100), (8, 1200, 2200))
        ])  # fmt: skip
        books = read_books(config, ledger, T - 1, None, T + 2800)
    by_job = {line.key: line.micro for line in report(books, By.JOB).lines}
    # Job 7 was on the old machine until T + 1000, and the record of its end is late.
    assert by_job["8"] == 1000 * 100
    assert by_job[Unused.ENDING] == 1700 * 100


def test_a_machine_that_was_paid_before_the_span_alone_is_charged_nothing(tmp_path: Path) -> None:
    """It is read with the others: of a cloud by the hour it could have been paid into the span."""
    config = configfile.load(config_file(tmp_path))
    with closing(Ledger(config.state / "ledger.db")) as ledger:
        ledger.machines.adopt(machine("pub1", T, 0.36), "burst", T)
        ledger.machines.record_end("aws", ["i-pub1"], Quoted(text="idle"), T + 600)
        books = read_books(config, ledger, T + 610, None, T + 3600)
    assert [one.instance.id for one in books.machines] == ["i-pub1"]
    assert list(charges(books)) == []


# the command


def run(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    code = main(["--config", str(path), "cost", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = config_file(tmp_path)
    book(tmp_path / "state" / "ledger.db").close()
    monkeypatch.setattr(cost.time, "time", lambda: NOW)
    monkeypatch.setenv("COLUMNS", "80")
    return path


def test_the_table_fits_and_says_that_the_sums_were_checked(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, site, "--since", "2027-01-01")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "physics" in out
    assert "(unused: idle)" in out
    assert out.splitlines()[1].split() == ["ACCOUNT", "DOLLARS", "HOURS", "$/H", "SHARE"]
    assert "$1.0800 in all, of 4 machines" in out
    assert "$0.2000   0.56  0.3600  18.5 %" in out
    assert "checked: parts sum to the charge in each of 5 pieces" in out
    assert out.splitlines()[0] == "Cost by account from 2027-01-01 00:00 to 2027-01-15 10:00 (UTC)"


def test_the_page_in_the_browser_offers_each_key() -> None:
    script = Path(cost.__file__).parents[2] / "watch" / "web" / "static" / "cost.js"
    (keys,) = re.findall(r"^const KEYS = (.*);$", script.read_text(), re.MULTILINE)
    assert json.loads(keys) == list(By)


def test_no_name_of_an_account_makes_a_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever submits a job may choose it where Slurm holds nobody to his accounts."""
    lines = (CostLine(key="a\nroot  $9.000000\x1b[2J", micro=5),)
    cost.render(Costs(by=By.ACCOUNT, since=0.0, until=T, lines=lines, micro=5), plain())
    assert "a\\nroot  $9.000000\\x1b[2J" in capsys.readouterr().out


@pytest.mark.parametrize("by", list(By))
def test_what_nobody_used_is_told_beside_the_sum_whatever_it_is_summed_by(
    books: CostRows, capsys: pytest.CaptureFixture[str], by: By
) -> None:
    found = report(books, by)
    assert cost.document(found)["unused_micro_dollars"] == 830_000
    cost.render(found, plain())
    assert "\n$0.8300 of it (76.9 %) is for unused time\n" in capsys.readouterr().out


def test_of_own_jobs_and_of_what_is_shared_there_is_nothing_that_nobody_used(
    books: CostRows, capsys: pytest.CaptureFixture[str]
) -> None:
    for found in (
        report(books, By.ACCOUNT, uid=65534),
        report(books, By.ACCOUNT, share_unused=True),
        report(books, By.POOL, uid=65534),
    ):
        assert cost.document(found)["unused_micro_dollars"] == 0
        cost.render(found, plain())
    assert "unused time" not in capsys.readouterr().out


def test_without_accounts_a_table_is_by_user(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Ledger(site.parent / "state" / "ledger.db")) as ledger:
        ledger.usage.write([replace(run, account="") for run in ledger.usage.runs(0, NOW)])
    _, out, _ = run(capsys, site, "--since", "2027-01-01")
    assert out.splitlines()[1].split()[0] == "USER"
    assert "ann" in out
    _, out, _ = run(capsys, site, "--since", "2027-01-01", "--by", "account")
    assert "(none)" in out
    _, out, _ = run(capsys, site, "--since", "2027-01-01", "--json")
    assert json.loads(out)["by"] == "account", "programs get the key that they always got"


def test_the_table_has_as_many_lines_as_asked_for_and_the_names_of_jobs(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "job_names", lambda _: {"7": "train\x1b[2J"})
    _, out, _ = run(capsys, site, "--since", "2027-01-01", "--by", "job", "--top", "1")
    assert out.splitlines()[1].split()[:4] == ["JOB", "USER", "NAME", "DOLLARS"]
    assert out.splitlines()[2].split()[:4] == ["7", "ann", "train\\x1b[2J", "$0.2000"]
    assert "and 2 more, $0.0500 together: --format csv has all" in out
    assert "(unused: idle)" in out
    assert max(map(len, out.splitlines())) <= 80


def test_machines_that_never_became_nodes_are_not_normal(books: CostRows, tmp_path: Path) -> None:
    config = configfile.load(config_file(tmp_path))
    normal = normal_unused(config, report(books, By.ACCOUNT))
    registered = next(m for m in books.machines if m.instance.node == "pub1")
    failed = replace(
        registered,
        instance=replace(registered.instance, id="i-failed", node="pub8"),
        life=replace(
            registered.life,
            before=replace(registered.life.before, registered_at=None),  # type: ignore[union-attr]
        ),
    )
    with_failed = books._replace(machines=(*books.machines, failed))
    costs = report(with_failed, By.ACCOUNT)
    assert costs.micro == report(books, By.ACCOUNT).micro + 360_000
    # The fourth machine waits, too, at the mean price of an hour.
    assert normal_unused(config, costs).micro_dollars == normal.micro_dollars + 60_000
    console = Console(width=100)
    with console.capture() as captured:
        cost.render(costs, console, config)
    assert "$0.3600 was paid for machines that never registered." in captured.get()
    assert cost.document(costs, config)["never_registered_micro_dollars"] == 360_000


def test_no_name_of_a_job_is_shown_if_slurm_does_not_answer(site: Path) -> None:
    config = configfile.load(site)
    assert cost.job_names(PromptCli(config.slurm)) == {}


def test_how_much_unused_time_is_normal_and_which_key_lowers_it(
    books: CostRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each of the three machines that cost money, ten minutes at $0.36 an hour are normal."""
    config = configfile.load(config_file(tmp_path))
    costs = report(books, By.ACCOUNT)
    normal = normal_unused(config, costs)
    waits = 3 * 60_000
    assert normal == NormalUnused(micro_dollars=18_000 + 30_000 + waits, wait_s=600.0)
    shares = {share.reason: share.keys for share in unused_shares(config, costs)}
    assert shares == {
        "idle": ("timings.suspend_time",), "drain": ("slurm.replace_reasons",), "ending": (),
        "boot": ("max_stopped",),
    }  # fmt: skip
    eager = replace(
        config,
        policies=SitePolicies(release="delayed(before_end=60)", billing_increment=3600.0),
    )
    by_reason = {share.reason: share for share in unused_shares(eager, costs)}
    assert by_reason["idle"].keys == by_reason["ending"].keys == ("policies.release",)
    assert normal_unused(eager, costs).wait_s == 1800.0
    told = cost.document(costs, config)
    assert told["normal_unused_micro_dollars"] == normal.micro_dollars
    assert str(told["unused_advice"]).startswith("idle: machines waited for another job.")
    assert "unused_advice" not in cost.document(report(books, By.DAY), config)
    cost.render(costs, plain(), config)
    assert "idle: machines waited for another job" in capsys.readouterr().out


def test_the_key_that_lowers_idle_time_is_the_one_in_force(books: CostRows, tmp_path: Path) -> None:
    """A cloud's own suspend_time replaces that of ``timings``."""
    config = configfile.load(config_file(tmp_path))
    public = next(cloud for cloud in config.clouds if cloud.location is Location.PUBLIC)
    clouds = tuple(
        replace(cloud, suspend_time=1800.0) if cloud is public else cloud for cloud in config.clouds
    )
    shares = unused_shares(replace(config, clouds=clouds), report(books, By.ACCOUNT))
    (idle,) = (share for share in shares if share.reason == "idle")
    assert idle.keys == ("suspend_time",)
    assert f"A shorter suspend_time of cloud {public.name} (now 30m)" in idle.advice


def test_json_and_csv_have_the_same_money(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, site, "--since", "12h", "--by", "user", "--format", "json")
    document = json.loads(out)
    assert (document["version"], document["micro_dollars"]) == (1, 1_080_000)
    _, out, _ = run(capsys, site, "--since", "12h", "--by", "user", "--format", "csv")
    table = list(csv.DictReader(io.StringIO(out)))
    assert sum(Decimal(row["dollars"]) for row in table) == Decimal("1.08")
    assert {row["user"] for row in table} == {line["key"] for line in document["lines"]}
    rates = [float(row["dollars_per_hour"]) for row in table]
    assert rates == [line["dollars_per_hour"] for line in document["lines"]]
    free = 0.05 / ((500 + 2570) / 3600)
    assert rates[:2] == pytest.approx([0.36, free], abs=1e-6), "ben's hours on op1 are free"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--by", "colour"), "'colour' (choose from"),
        (("--since", "yesterday"), "neither a date such as 2026-11-01 nor a duration such as 7d"),
        (("--since", "0001-01-01"), "--since: '0001-01-01' is not in the years 1970 to 9999"),
        (("--since", "99999999999d"), "--since: '99999999999d' is not in the years 1970 to 9999"),
        (("--until", "9999-12-31T23:59-02:00"), "--until: '9999-12-31T23:59-02:00' is not in the"),
    ],
)
def test_wrong_options_are_told(
    site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--config", str(site), "cost", *words])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_an_empty_time_is_told(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, site, "--since", "1h", "--until", "2h")
    assert (code, err) == (2, "slurm-elastic: --until must be later than --since\n")
    code, _, err = run(capsys, site, "--since", "2999-01-01")
    assert (code, err) == (2, "slurm-elastic: --since is in the future\n")
    code, _, err = run(capsys, site, "--since", "2999-01-01", "--until", "2999-02-01")
    assert (code, err) == (2, "slurm-elastic: --since is in the future\n")
    code, out, _ = run(capsys, site, "--since", "2026-01-01", "--until", "2026-02-01")
    assert (code, "nothing was paid in that time" in out) == (0, True)


def test_costs_that_are_no_longer_kept_are_told(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, site, "--since", "2020-01-01", "--until", "2021-01-01")
    told = "slurm-elastic: --until is too long ago: costs are kept for 400 days\n"
    assert (code, out, err) == (1, "", told)
    for words in ((), ("--format", "focus")):
        code, out, err = run(capsys, site, "--since", "2020-01-01", *words)
        begins = "slurm-elastic: the costs begin at 2025-12-11 10:00 (UTC): costs are kept"
        assert (code, bool(out), err) == (0, True, f"{begins} for 400 days\n")


def test_sums_that_do_not_add_up_are_told(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import slurm_elastic.policies.money.cost_split as cost_split

    def careless(total: int, weights: dict[object, int]) -> dict[object, int]:
        return dict.fromkeys(weights, total // len(weights) - 1)

    monkeypatch.setattr(cost_split, "apportion", careless)
    code, _, err = run(capsys, site, "--since", "2027-01-15T08:00:01")
    assert code == 1
    assert "slurm-elastic: the sums are wrong: " in err


# FOCUS

MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory",
    "ServiceName",
}  # fmt: skip
"""Mandatory in version 1.2; all our other columns are conditional, recommended, or 1.3's."""
NOT_NULL = (MANDATORY - {"ChargeClass"}) | {"ChargeFrequency", "PricingCategory"}
NUMBERS = {
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingQuantity",
    "ConsumedQuantity", "ListUnitPrice", "ContractedUnitPrice",
}  # fmt: skip
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {
        "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases",
        "Developer Tools", "Multicloud", "Identity", "Integration", "Internet of Things",
        "Management and Governance", "Media", "Migration", "Mobile", "Networking", "Security",
        "Storage", "Web", "Other",
    },
    "ServiceSubcategory": {
        "Containers", "End User Computing", "Quantum Compute", "Serverless Compute",
        "Virtual Machines", "Other (Compute)",
    },
    "BillingCurrency": {"USD"},
}  # fmt: skip
OF_1_3 = {
    "AllocatedMethodId", "AllocatedMethodDetails", "AllocatedResourceId", "AllocatedResourceName",
    "AllocatedTags",
}  # fmt: skip


def conform(found: list[dict[str, str]]) -> None:
    for row in found:
        assert tuple(row) == COLUMNS
        assert row.keys() >= MANDATORY | OF_1_3
        assert all(row[name] for name in NOT_NULL), "none of these may be null"
        assert all(row[name] in values for name, values in ALLOWED.items())
        assert all("E" not in row[name].upper() for name in NUMBERS)
        numbers = {name: Decimal(row[name]) for name in NUMBERS}
        for unit, cost_ in (
            ("ListUnitPrice", "ListCost"),
            ("ContractedUnitPrice", "ContractedCost"),
        ):
            product = numbers[unit] * numbers["PricingQuantity"]
            assert abs(product - numbers[cost_]) <= Decimal("0.000001")
        for name in ("Tags", "AllocatedTags", "AllocatedMethodDetails"):
            tags = json.loads(row[name])
            assert all(isinstance(value, str) for value in tags.values())
        times = [
            row[f"{kind}Period{end}"] for kind in ("Billing", "Charge") for end in ("Start", "End")
        ]
        assert times[0] <= times[2] <= times[3] <= times[1]
        assert all(len(time) == 20 and time.endswith("Z") and "T" in time for time in times)
        assert all(n.startswith("x_") or n[0].isupper() for n in row)


def test_the_rows_conform_to_the_specification(books: CostRows) -> None:
    found = [
        {name: row[name] for name in COLUMNS} for row in rows(charges(books), books.runs, "alps")
    ]
    conform(found)
    assert sum(Decimal(row["BilledCost"]) for row in found) == Decimal("1.08")
    parts = [row for row in found if row["AllocatedResourceId"] == "job/7"]
    assert [row["AllocatedTags"] for row in parts] == [
        '{"account": "physics", "user": "ann", "partition": "aws"}'
    ] * len(parts)
    assert {row["x_UnusedReason"] for row in found} == {"", "boot", "idle", "drain", "ending"}


def test_parts_of_a_life_are_one_machine(books: CostRows) -> None:
    """As the cloud's bill has it: it ran, was stopped, and ran again."""
    whole, *others = books.machines
    one = whole.instance
    parts = [
        replace(whole, instance=replace(one, id=name)) for name in (f"{one.id}@1", f"{one.id}@12")
    ]
    books = books._replace(machines=[whole, *others, *parts])
    found = [row["ResourceId"] for row in rows(charges(books), books.runs, "alps")]
    assert set(found) == {m.instance.id for m in (whole, *others)}
    assert report(books, By.POOL).machines == 4


@pytest.mark.parametrize("name", ["i-1", "a@b", "@7", "x@y1", "i@"])
def test_ids_of_clouds_stay_as_they_are(name: str) -> None:
    assert whole_id(name) == name
    assert whole_id(part_id(name, 3)) == name


def test_the_file_conforms_too(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, site, "--since", "12h", "--format", "focus")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows
    conform(rows)


def test_what_it_would_cost_on_demand_is_told_beside(books: CostRows) -> None:
    """Half of the machines have an on-demand price of twice their own."""
    dear = [replace(m, worst_price=2 * m.instance.price) for m in books.machines[:2]]
    changed = books._replace(machines=[*dear, *books.machines[2:]])
    for by in By:
        found = report(changed, by)
        own = sum(c.micro for c in charges(books._replace(machines=books.machines[:2])))
        assert found.micro_on_demand == found.micro + own
    assert report(books, By.USER, uid=99).micro_on_demand == 0, "of the own jobs alone"


def test_a_machine_bought_on_demand_saves_nothing(tmp_path: Path) -> None:
    """Its worst price, which counts in the caps, is that of spot in another zone."""
    config = configfile.load(config_file(tmp_path))
    with closing(Ledger(config.state / "ledger.db")) as ledger:
        bought = machine("pub1", T, 0.36, market=Market.ON_DEMAND)
        ledger.machines.adopt(bought, "burst", T, 0.48)
        books = read_books(config, ledger, T, T + 3600, T + 3600)
    costs = report(books, By.ACCOUNT)
    assert (costs.micro, costs.micro_on_demand) == (360_000, 360_000)
    assert costs.fleet is not None
    assert costs.fleet.micro_per_hour == 360_000
    listed = {row["ListUnitPrice"] for row in rows(charges(books), books.runs, "alps")}
    assert listed == {"0.36"}
