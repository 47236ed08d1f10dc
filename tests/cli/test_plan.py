"""``slurm-elastic plan`` as a sysadmin meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from slurm_elastic.cli.main import main
from slurm_elastic.config.configfile import load
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.studies import together

WORKLOAD = Path(__file__).parent.parent / "data" / "synthetic.swf"
EXAMPLE = Path(__file__).parents[2] / "etc" / "slurm-elastic.yaml"
PRICING = """\
on_demand: 1.0
classes:
  - {name: month, term: 28d, upfront: 0, hourly: 0.6}
  - {name: quarter, term: 84d, upfront: 500, hourly: 0.2}
"""


def plan(kind: str, *arguments: str) -> int:
    return main(["--config", str(EXAMPLE), "plan", kind, *arguments])


@pytest.fixture
def pricing(tmp_path: Path) -> Path:
    file = tmp_path / "pricing.yaml"
    file.write_text(PRICING)
    return file


@pytest.fixture
def steady(tmp_path: Path) -> Path:
    """Twelve weeks in which jobs always keep a machine."""
    file = tmp_path / "steady.swf"
    day = 86400
    lines = [
        f"{n} {n * day} 0 {day} 4 -1 -1 4 {day} -1 1 1 1 1 1 1 -1 -1" for n in range(1, 12 * 7 + 2)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_reserve_says_what_when_saving_regret_and_risk(
    steady: Path, pricing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    arguments = ["--workload", str(steady), "--pricing", str(pricing), "--pool", "rack"]
    assert plan("reserve", *arguments, "--json", str(out)) == 0
    text = capsys.readouterr().out
    for word in (
        "pays from use",
        "best of each rank, all known",
        "greedy, all known",
        "by forecast",
        "week by week",
        "no portfolio is below",
        "to buy now",
    ):
        assert word in text
    assert "if only 50% of the machines had been needed" in text
    found = json.loads(out.read_text())
    assert "held now: nothing (--held FILE.yaml says what is held)" in text
    assert "weeks: 1 x quarter, $500 upfront" in text, "the advice is for who holds nothing"
    missed = found["choices"][1]["saving"] - found["choices"][3]["saving"]
    assert missed > 0
    assert found["missed"] == pytest.approx(missed)
    assert f"would have saved another {missed:.1%} of the on-demand cost" in text
    bare, best, greedy, stepwise, forecast = found["choices"]
    assert found["bound"] <= best["bill"]["cost"] <= greedy["bill"]["cost"] < bare["bill"]["cost"]
    assert best["bought"][0] == [0, 0, 1]
    assert bare["bill"]["cost"] > stepwise["bill"]["cost"] >= best["bill"]["cost"]
    assert forecast["bill"]["cost"] >= found["bound"]
    outlook = found["outlook"]
    assert outlook["low"] <= outlook["value"] <= outlook["high"] < 1
    assert f"then save {outlook['value']:.1%} of the on-demand cost" in text
    assert "knows no priorities, fair-share, QOS" in text


def test_a_short_history_says_nothing_of_years(
    pricing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", str(WORKLOAD), "--pricing", str(pricing), "--pool", "rack"]
    assert plan("reserve", *arguments) == 2
    assert "expected at least 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file, expected on_demand and classes"),
        ("on_demand: 1\nclasses: []\n", "pricing.yaml:2: classes: found"),
        ("on_demand: -1\nclasses: [{name: a, term: 1d}]\n", "pricing.yaml:1: on_demand: found -1"),
        ("on_demand: 1\nclasses: [{name: a, term: 1d, hourli: 2}]\n", "did you mean hourly?"),
        (
            "on_demand: 1\nclasses: [{name: a, term: 1d}, {name: a, term: 2d}]\n",
            "classes[1].name: found 'a' twice",
        ),
    ],
)
def test_a_wrong_price_list_is_refused(
    tmp_path: Path, steady: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pricing.yaml"
    file.write_text(text)
    assert plan("reserve", "--workload", str(steady), "--pricing", str(file), "--pool", "rack") == 2
    assert message in capsys.readouterr().err


def test_the_sites_own_nodes_are_not_reserved(
    steady: Path, pricing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", str(steady), "--pricing", str(pricing), "--static", "4x16"]
    assert plan("reserve", *arguments, "--pool", "static") == 2
    told = capsys.readouterr().err
    assert "--pool: the machines of 'static' always run" in told


def test_no_wait_at_all_is_a_limit(steady: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", str(steady), "--static", "4x16", "--policies", "slurm"]
    assert plan("policy", *arguments, "--max-wait", "0") == 0
    assert "at most" in capsys.readouterr().out


def test_an_unknown_pool_is_refused(
    steady: Path, pricing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", str(steady), "--pricing", str(pricing), "--pool", "none"]
    assert plan("reserve", *arguments) == 2
    assert "--pool: found 'none', expected one of" in capsys.readouterr().err


def test_policy_prints_the_front_and_lines_that_the_configuration_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "found.json", tmp_path / "front.html"
    arguments = ["--workload", str(WORKLOAD), "--json", str(out), "--plot", str(picture)]
    assert plan("policy", *arguments, "--max-wait", "120") == 0
    text = capsys.readouterr().out
    lines = text[text.index("policies:") :]
    assert set(yaml.safe_load(lines)["policies"]) <= {"growth", "release", "order"}
    found = json.loads(out.read_text())
    figures = {one["policy"]: one["figures"] for one in found["tried"]}
    assert figures[found["chosen"]]["mean_wait"] <= 120
    assert set(found["front"]) <= set(figures)
    assert found["tried"][0]["policy"] == "configured"
    assert "current configuration" in text
    assert picture.read_text().count("<svg") == 1
    site = tmp_path / "site.yaml"
    site.write_text(EXAMPLE.read_text() + "\n" + lines)
    load(site)


@pytest.fixture
def daily(tmp_path: Path) -> Path:
    """Twelve weeks in which twenty jobs of an hour come each day at once."""
    file = tmp_path / "daily.swf"
    jobs = ((20 * day + n, 86400 * day + n) for day in range(85) for n in range(20))
    lines = (f"{n} {at} 0 3600 4 -1 -1 4 3600 -1 1 1 1 1 1 1 -1 -1" for n, at in jobs)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_choice_stands_beside_the_site_as_it_is_with_how_sure_that_is(
    daily: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    arguments = ["--workload", str(daily), "--json", str(out), "--rounds", "1"]
    policies = "on_demand+idle(60),semi_elastic(wait_limit=1800)+idle(60)"
    assert plan("policy", *arguments, "--policies", policies) == 0
    text = " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    beside = found["beside"]
    assert found["chosen"] == "on_demand+idle(60)"
    assert beside["weeks"] == 12
    assert 0 < beside["saving"]["low"] <= beside["saving"]["value"] <= beside["saving"]["high"]
    assert "on_demand+idle(60) compared with the current configuration: " in text
    assert "% cheaper (" in text
    assert "as many coming weeks, from the variation between these 12 weeks" in text
    assert "nine in ten ranges also held for as many following weeks" in text
    assert "knows no priorities, fair-share, QOS" in text
    assert " now configured " in text


@pytest.mark.parametrize(
    ("limit", "how"),
    [
        ([], "the best compromise, by the distance to the lowest cost and the shortest wait"),
        (["--max-wait", "7200"], "the cheapest policy with a mean wait of at most 2h"),
        (["--budget", "9000"], "the policy with the shortest mean wait for at most $9,000.00"),
    ],
)
def test_on_80_columns_a_long_name_is_broken_at_its_release_and_the_choice_says_why(
    daily: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    limit: list[str],
    how: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, long = "group_bursts(group=2)+idle(60)", "semi_elastic(wait_limit=1800)+idle(3600)"
    arguments = ["--workload", str(daily), "--rounds", "1", "--policies", f"{short},{long}"]
    assert plan("policy", *arguments, *limit) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.partition("best trade-offs")[0].splitlines()]
    assert any(short in row for row in rows)
    first = next(n for n, row in enumerate(rows) if "semi_elastic(wait_limit=1800)" in row)
    assert rows[first + 1] == ["+idle(3600)"]
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert how in " ".join(text.split())


def test_the_site_as_it_is_may_be_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", str(WORKLOAD), "--policies", "configured", "--rounds", "1"]
    assert plan("policy", *arguments) == 0
    text = capsys.readouterr().out
    assert "The current configuration is the best of these." in text
    assert "# no change" in text


def test_a_policy_under_which_jobs_never_run_is_not_chosen(
    daily: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daily.open("a") as jobs:
        jobs.write("1700 7344100 0 3600 32 -1 -1 32 3600 -1 1 1 1 1 1 1 -1 -1\n")
    arguments = ["--workload", str(daily), "--policies", "none,slurm+idle(60)"]
    assert plan("policy", *arguments, "--rounds", "1", "--max-wait", "9000") == 0
    captured = capsys.readouterr()
    assert "growth: slurm" in captured.out
    assert "note: no choice, because fewer jobs run than under the others: none\n" in captured.err


def test_a_limit_that_nothing_keeps_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", str(WORKLOAD), "--policies", "slurm", "--rounds", "1"]
    assert plan("policy", *arguments, "--budget", "0.001") == 1
    assert "no policy keeps this limit" in capsys.readouterr().out


def test_a_policy_without_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("policy", "--workload", str(WORKLOAD), "--policies", "sometimes") == 2
    assert "there is no 'sometimes'" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "status"), [("policy", 0), ("checkpoint", 0), ("reserve", 2)])
def test_that_no_machine_was_bought_is_said_before_all_else(
    kind: str,
    status: int,
    pricing: Path,
    daily: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Figures of a site whose clouds were never used compare nothing; of reservations there are
    none.
    """
    site = tmp_path / "site.yaml"
    site.write_text(EXAMPLE.read_text().replace("\n  nodes: 24 ", "\n  nodes: 0 "))
    more = {
        "policy": ["--policies", "slurm", "--rounds", "1"],
        "checkpoint": ["--policies", "none"],
        "reserve": ["--pricing", str(pricing), "--pool", "rack"],
    }[kind]
    asked = ["--workload", str(daily), "--static", "1x4", *more]
    assert main(["--config", str(site), "plan", kind, *asked]) == status
    said = " ".join(capsys.readouterr().out.split())
    assert said.partition(": ")[2].startswith("no machine was ever bought, although 1,615 jobs")


@pytest.fixture
def shaky(tmp_path: Path) -> Path:
    """Half of the time there are spot machines, ten hours on and ten off, looked at by minutes."""
    file = tmp_path / "shaky.json"
    ticks = ([1] * 600 + [0] * 600) * 10
    file.write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": ticks}))
    return file


def test_a_deadline_is_kept_with_as_much_spot_as_there_is_time_for(
    shaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    asked = ["--availability", str(shaky), "--work", "20h", "--restart", "6m", "--starts", "50"]
    prices = ["--prices", "0.3,1", "--json", str(out)]
    assert plan("deadline", *asked, "--deadline", "30h", *prices) == 0
    shown = capsys.readouterr().out
    assert "shaky.json" in shown
    assert "by dollars" in shown
    assert "uniform progress" in shown
    assert "0/50" in shown
    rows = {row["policy"]: row for row in json.loads(out.read_text())}
    ours, paying = rows["by dollars"], rows["on demand"]
    assert ours["cost"] <= rows["uniform progress"]["cost"]
    assert ours["odds"]["missed"] == rows["greedy"]["odds"]["missed"] == 0
    assert ours["cost"] < paying["cost"]
    assert paying["odds"]["end"] == 20 * 3600 + 360
    assert paying["cost"] == pytest.approx(20.1)
    assert ours["odds"]["spot"] > 8 * 3600
    assert "9 in 10" not in shown, "such a range does not hold on other days"
    assert "Each trace is simulated alone" in shown
    assert "No range is shown, because" in " ".join(shown.split())
    again = tmp_path / "again.json"
    assert plan("deadline", *asked, "--deadline", "30h", *prices[:3], str(again)) == 0
    assert again.read_bytes() == out.read_bytes()


def test_a_deadline_that_nobody_can_promise_and_prices_that_are_none_are_refused(
    shaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--availability", str(shaky), "--work", "20h", "--restart", "6m"]
    assert plan("deadline", *asked, "--deadline", "20h") == 2
    assert "--deadline: found 20h, expected at least 1213m: the work" in (capsys.readouterr().err)
    for option, value, why in (
        ("--work", "soon", "'soon' is not"),
        ("--deadline", "0", "is not between a second and a year"),
        ("--prices", "1", "is not two prices"),
        ("--prices", "1,-1", "prices must be finite and not negative"),
    ):
        with pytest.raises(SystemExit):
            plan("deadline", *asked, "--deadline", "30h", option, value)
        assert why in capsys.readouterr().err
    missing = tmp_path / "none.json"
    assert plan("deadline", *asked[2:], "--availability", str(missing), "--deadline", "30h") == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.fixture
def taken(tmp_path: Path) -> list[str]:
    """Spot machines that are there for three hours and twenty minutes, and away for twenty."""
    prices, availability = tmp_path / "p.csv", tmp_path / "a.json"
    begin = 1614643200
    rows = [f"{at},c6i.xlarge,us-east-1a,0.05\n" for at in (begin, begin + 30 * 86400)]
    prices.write_text("timestamp,instance_type,az,price\n" + "".join(rows))
    document = {"metadata": {"gap_seconds": 600}, "data": [1] * 20 + [0] * 2}
    availability.write_text(json.dumps(document))
    return ["--prices", str(prices), "--availability", str(availability)]


def test_checkpoint_names_the_cheapest_and_tries_none_at_all(
    taken: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    arguments = ["--workload", str(WORKLOAD), *taken, "--json", str(out)]
    assert plan("checkpoint", *arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    figures = {one["policy"]: one["figures"] for one in found["tried"]}
    assert {"none", "on_notice", "daly", found["site"], found["cheapest"]} <= set(figures)
    assert figures["none"]["checkpoints"] == 0
    saved = figures["first_of(on_notice, daly)"]
    assert saved["lost_hours"] < figures["none"]["lost_hours"]
    least = min(one["cost"] for one in figures.values())
    assert figures[found["cheapest"]]["cost"] == pytest.approx(least, abs=0.01)
    assert found["cheapest"] in text


def test_no_policy_is_broken_within_a_word_at_80_columns(
    taken: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "found.json"
    assert plan("checkpoint", "--workload", str(WORKLOAD), *taken, "--json", str(out)) == 0
    said = capsys.readouterr().out.split()
    policies = [one["policy"] for one in json.loads(out.read_text())["tried"]]
    assert {word for policy in policies for word in policy.split()} <= set(said)


def test_where_saves_cost_more_than_they_save_none_is_the_cheapest(
    taken: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A save that takes half an hour, of jobs that seldom lose as much."""
    out = tmp_path / "found.json"
    arguments = ["--workload", str(WORKLOAD), *taken, "--dump", "1800", "--json", str(out)]
    assert plan("checkpoint", *arguments, "--policies", "none,hour(margin=1800)") == 0
    assert json.loads(out.read_text())["cheapest"] == "none"
    capsys.readouterr()


def test_no_save_pays_where_nothing_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("checkpoint", "--workload", str(WORKLOAD), "--policies", "daly") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "No machine is taken away from a job here, so no save pays off." in text


def test_an_unknown_checkpoint_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("checkpoint", "--workload", str(WORKLOAD), "--policies", "often") == 2
    assert "--policies: " in capsys.readouterr().err


def test_reserve_says_what_to_buy_besides_what_is_held(
    steady: Path, pricing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, out = tmp_path / "held.yaml", tmp_path / "plan.json"
    arguments = ["--workload", str(steady), "--pricing", str(pricing), "--pool", "rack"]
    held.write_text("held: []\n")
    assert plan("reserve", *arguments, "--held", str(held), "--json", str(out)) == 0
    text = capsys.readouterr().out
    assert "held now: nothing" in text
    assert "to buy now besides it, by the use of the last 12 weeks: 1 x quarter, $500 up" in text
    assert "these reservations then save" in text
    assert [case["share"] for case in json.loads(out.read_text())["held"]["cases"]] == [
        0.5, 0.75, 1.0, 1.25, 1.5,
    ]  # fmt: skip
    assert plan("reserve", *arguments, "--held", str(held), "--prefer-short") == 0
    assert "weeks: 1 x month" in capsys.readouterr().out
    assert plan("reserve", *arguments, "--held", str(held), "--at-most", "quarter=0") == 0
    assert "weeks: 1 x month" in capsys.readouterr().out
    assert plan("reserve", *arguments, "--prefer-short") == 0
    assert "weeks: 1 x month" in capsys.readouterr().out, "the bounds need no inventory"
    held.write_text("held: [{class: month, machines: 1, left: 20d}]\n")
    assert plan("reserve", *arguments, "--held", str(held)) == 0
    text = capsys.readouterr().out
    assert "held now: 1 x month (20d" in text
    assert "weeks: nothing" in text
    held.write_text("held: [{class: month, machines: 1, left: 6d}]\n")
    assert plan("reserve", *arguments, "--held", str(held)) == 0
    assert "weeks: 1 x quarter" in capsys.readouterr().out, "it ends within a week"
    for left, answer in (("20d", "nothing"), ("6d", "1 x quarter")):
        held.write_text(f"held: [{{block: training, machines: 1, left: {left}}}]\n")
        assert plan("reserve", *arguments, "--held", str(held)) == 0
        text = capsys.readouterr().out
        assert "held now: 1 x block training (" in text
        assert f"weeks: {answer}" in text


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("held: [{class: mont, machines: 1, left: 1d}]", [],
         "held[0].class: found 'mont', expected a class of the price list: one of quarter, month"),
        ("held: [{machines: 1, left: 1d}]", [], "held[0]: found no 'class', expected text"),
        ("held: [{class: month, block: b, machines: 1, left: 1d}]", [],
         "held[0]: found 'class' and 'block', expected one of them"),
        ("held: []", ["--at-most", "day=1"], "--at-most: found 'day', expected a class"),
        (None, ["--at-most", "day=1"], "--at-most: found 'day', expected a class"),
    ],
)  # fmt: skip
def test_a_wrong_inventory_is_refused(
    steady: Path, pricing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    text: str | None, more: list[str], message: str,
) -> None:  # fmt: skip
    held = tmp_path / "held.yaml"
    arguments = ["--workload", str(steady), "--pricing", str(pricing), "--pool", "rack", *more]
    if text is not None:
        held.write_text(text)
        arguments += ["--held", str(held)]
    assert plan("reserve", *arguments) == 2
    assert message in capsys.readouterr().err


def test_own_shows_below_which_price_owning_pays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own.json"
    arguments = ["--workload", str(WORKLOAD), "--pool", "compute", "--machines", "4,8"]
    assert plan("own", *arguments, "--json", str(out)) == 0
    text = capsys.readouterr().out
    assert "own 4 + rent" in text
    assert "Give --price" in text
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == [
        "rent",
        "own 4",
        "own 4 + rent",
        "own 8",
        "own 8 + rent",
    ]
    rent, own = rows[0]["figures"], rows[3]
    hours = next(pool["hours"] for pool in own["figures"]["pools"] if pool["name"] == "own")
    # At this price both cost the same, so just below it owning is cheaper.
    assert own["pays_below"] * hours == pytest.approx(rent["cost"] - own["figures"]["cost"])
    for factor, is_cheaper in ((0.99, True), (1.01, False)):
        price = str(factor * own["pays_below"])
        assert plan("own", *arguments, "--price", price, "--json", str(out)) == 0
        priced = json.loads(out.read_text())["rows"]
        assert (priced[3]["figures"]["cost"] < priced[0]["figures"]["cost"]) is is_cheaper
    capsys.readouterr()


def test_own_compares_by_the_mean_use_of_rented_machines(
    steady: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(EXAMPLE.read_text())
    config["clouds"] = [cloud for cloud in config["clouds"] if cloud["name"] == "aws"]
    config["pools"] = [pool for pool in config["pools"] if pool["name"] == "compute"]
    site = tmp_path / "site.yaml"
    site.write_text(yaml.safe_dump(config))
    words = ["plan", "own", "--workload", str(steady), "--price", "0.01"]
    assert main(["--config", str(site), *words]) == 0
    text = capsys.readouterr().out
    assert ">  own 1" in text
    assert "the cheapest way to run all jobs: own 1," in text


def test_own_needs_machines_that_are_used_twice(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", str(WORKLOAD), "--pool", "compute", "--policy", "individual"]
    assert plan("own", *arguments) == 2
    assert "each machine serves one job" in capsys.readouterr().err


def test_an_interrupted_search_prints_its_results_and_continues_with_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "slurm,on_demand+idle(60),on_demand+idle(3600),ratio(slots=1)+idle(600)"
    arguments = ["policy", "--workload", str(WORKLOAD), "--policies", policies, "--rounds", "1"]
    runs = []

    def interrupted(*found: object) -> object:
        runs.append(found)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return simulate(*found)  # type: ignore[arg-type]

    assert plan(*arguments, "--json", str(tmp_path / "whole.json")) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr(together, "simulate", interrupted)
    kept, out = tmp_path / "kept", tmp_path / "out.json"
    assert plan(*arguments, "--resume", str(kept), "--json", str(out)) == 130
    captured = capsys.readouterr()
    assert "policies are best trade-offs" in captured.out
    assert "ratio(slots=1)+idle(600)" not in captured.out
    assert f"the same command with --resume {kept} continues" in " ".join(captured.err.split())
    partial = json.loads(out.read_text())
    assert not partial["is_whole"]
    assert 0 < len(partial["tried"]) < 5
    assert plan(*arguments, "--resume", str(kept), "--json", str(out)) == 0
    # The interrupted run is repeated, and no other one.
    again = [found[1] for found in runs[4:]]
    assert again[0] == runs[3][1]
    assert not [one for one in again if one in [found[1] for found in runs[:3]]]
    assert capsys.readouterr().out == whole
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
