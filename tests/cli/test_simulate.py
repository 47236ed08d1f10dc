"""``slurm-elastic simulate`` as a sysadmin meets it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main

DATA = Path(__file__).parent.parent / "data"
WORKLOAD = DATA / "synthetic.swf"
EXAMPLE = Path(__file__).parents[2] / "etc" / "slurm-elastic.yaml"
PRICES = "timestamp,instance_type,az,price\n{begin},c6i.xlarge,us-east-1a,0.05\n{end},c6i.xlarge,us-east-1a,0.06\n"


def simulate(*arguments: str) -> int:
    return main(["--config", str(EXAMPLE), "simulate", "--workload", str(WORKLOAD), *arguments])


def result(tmp_path: Path, *arguments: str) -> dict[str, object]:
    out = tmp_path / "out.json"
    assert simulate(*arguments, "--json", str(out)) == 0
    document: dict[str, object] = json.loads(out.read_text())
    return document


def test_one_command_gives_cost_and_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate() == 0
    out, err = capsys.readouterr()
    assert "configured" in out
    for column in ("cost", "mean wait", "slowdown", "API calls"):
        assert column in out
    assert "pool gpu is left out" in err


def test_a_file_that_is_not_there_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--workload", "/no/such.swf"]
    assert main(["--config", str(EXAMPLE), *words]) == 2
    said = "slurm-elastic: workload /no/such.swf cannot be read: No such file or directory\n"
    assert capsys.readouterr().err.endswith(said)


def test_policies_side_by_side(tmp_path: Path) -> None:
    policies = "slurm,on_demand+idle(60),semi_elastic(wait_limit=60)+delayed(before_end=60)"
    found = result(tmp_path, "--compare", policies)
    rows = found["rows"]
    assert isinstance(rows, list)
    assert [row["policy"] for row in rows] == [
        "slurm",
        "on_demand+idle(60)",
        "semi_elastic(wait_limit=60)+delayed(before_end=60)",
    ]
    assert all(row["figures"]["jobs"] == 116 for row in rows)
    assert found["cancelled"] == 4


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    arguments = ("--compare", "on_demand+random", "--seed", "7", "--json")
    for name in ("a", "b"):
        assert simulate(*arguments, str(tmp_path / name)) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_spot_prices_and_availability(tmp_path: Path) -> None:
    prices, availability = tmp_path / "p.csv", tmp_path / "a.json.gz"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 30 * 86400))
    document = {"metadata": {"gap_seconds": 600}, "data": [1] * 20 + [0] * 2}
    availability.write_bytes(gzip.compress(json.dumps(document).encode()))
    arguments = ("--prices", str(prices), "--availability", str(availability))
    never = result(tmp_path, *arguments)["rows"]
    saved = result(tmp_path, *arguments, "--checkpoint", "first_of(on_notice, daly)")["rows"]
    assert isinstance(never, list)
    assert isinstance(saved, list)
    before, after = never[0]["figures"], saved[0]["figures"]
    assert before["spot"] > 0
    assert before["interruptions"] > 0
    assert after["checkpoints"] > 0
    assert after["lost_hours"] < before["lost_hours"]


def test_the_sites_static_nodes_serve_first(tmp_path: Path) -> None:
    rows = result(tmp_path, "--static", "64x16")["rows"]
    assert isinstance(rows, list)
    assert rows[0]["figures"]["cost"] == 0
    assert rows[0]["figures"]["pools"][0]["name"] == "static"


def test_that_no_machine_was_bought_is_said_before_all_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, page = tmp_path / "site.yaml", tmp_path / "page.html"
    site.write_text(EXAMPLE.read_text().replace("\n  nodes: 24 ", "\n  nodes: 0 "))
    asked = ["--workload", str(WORKLOAD), "--static", "1x4", "--html", str(page)]
    assert main(["--config", str(site), "simulate", *asked]) == 0
    said = " ".join(capsys.readouterr().out.split())
    told = "configured: no machine was ever bought, although 97 jobs waited: pool rack: the limits"
    assert said.startswith(told)
    assert "knows no priorities, fair-share, QOS" in said
    text = page.read_text()
    assert told in text
    assert "knows no priorities, fair-share, QOS" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "burst"], "policy 'burst': there is no 'burst'"),
        (["--compare", "bursts+on_demand"], "bursts start machines ahead of need"),
        (["--compare", ","], "--compare names no policy"),
        (["--checkpoint", "hourly"], "--checkpoint: there is no 'hourly'"),
        (["--prices", "/nowhere.csv"], "price trace /nowhere.csv cannot be read"),
        (["--availability", str(WORKLOAD)], "cannot be read"),
        (["--workload", "/nowhere.swf"], "workload /nowhere.swf cannot be read"),
        (["--compare", f"slurm+idle({10**20})"], "found a number over 1000000000"),
    ],
)
def test_a_mistake_is_answered_in_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("nan,c6i.xlarge,us-east-1a,1", "line 2: nan is not a Unix time"),
        ("1e300,c6i.xlarge,us-east-1a,1", "line 2: 1e+300 is not a Unix time"),
        ("0001-01-01,c6i.xlarge,us-east-1a,1", "line 2: -6.21356e+10 is not a Unix time"),
        ("1,c6i.xlarge,us-east-1a,-1", "line 2: -1.0 is not a price"),
    ],
)
def test_a_damaged_price_is_answered_with_its_line(
    tmp_path: Path, row: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.csv"
    file.write_text(f"timestamp,instance_type,az,price\n{row}\n")
    assert simulate("--prices", str(file)) == 2
    assert words in capsys.readouterr().err


def test_two_files_of_the_same_offer_are_one_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bid of $0.17 is exceeded in the first file alone, whichever is named last."""
    head = "timestamp,instance_type,az,price"
    dear, cheap = tmp_path / "dear.csv", tmp_path / "cheap.csv"
    rows = [
        f"{1394000000 + 3600 * n},c6i.xlarge,us-east-1a,{9 if n % 2 else 0.01}" for n in range(9)
    ]
    dear.write_text("\n".join([head, *rows]))
    cheap.write_text(f"{head}\n{1394000000 + 3600 * 9},c6i.xlarge,us-east-1a,0.01\n")
    for order in ((dear, cheap), (cheap, dear)):
        given = [word for path in order for word in ("--prices", str(path))]
        rows_ = result(tmp_path, *given)["rows"]
        assert isinstance(rows_, list)
        assert rows_[0]["figures"]["interruptions"] > 0


def test_the_bid_of_a_pool_takes_machines_as_it_threatens_them_for_ckptman(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a bid, no price of 2021 takes a machine."""
    site, prices = tmp_path / "site.yaml", tmp_path / "p.csv"
    rows = [
        f"{1614643200 + 3600 * n},c6i.xlarge,us-east-1a,{0.09 if n % 2 else 0.01}"
        for n in range(24 * 30)
    ]
    prices.write_text("\n".join(["timestamp,instance_type,az,price", *rows]))
    asked = ["simulate", "--workload", str(WORKLOAD), "--prices", str(prices)]
    lost = []
    example = EXAMPLE.read_text()
    types = "{types: {c6i.xlarge: 0.05}}"
    for bid in ("null", "{spot: 0.05}", types, "{of_on_demand: 0.3}"):
        site.write_text(example.replace("max_price: 0.25 ", f"max_price: {bid} "))
        out = tmp_path / "out.json"
        assert main(["--config", str(site), *asked, "--json", str(out)]) == 0
        lost.append(json.loads(out.read_text())["rows"][0]["figures"]["interruptions"])
    assert lost[0] == 0 < lost[1]
    assert len(set(lost[1:])) == 1, "three spellings of a bid between both prices"
    err = capsys.readouterr().err
    assert err.count("lost when the price exceeds the bid of $0.05\n") >= 2
    assert "lost when the price exceeds the bid of $0.051\n" in err


@pytest.mark.release
def test_each_availability_counts_or_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "p.csv"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 30 * 86400))
    for name, data in (("us-east-1a", [3] * 5), ("us-east-1a_more", [4] * 5), ("us-west-2b", [9])):
        document = {"metadata": {"gap_seconds": 600}, "data": data}
        (tmp_path / f"{name}_x.json").write_text(json.dumps(document))
    one, more, west = (
        str(tmp_path / f"{n}_x.json") for n in ("us-east-1a", "us-east-1a_more", "us-west-2b")
    )
    given = ("--availability", one, "--availability", more, "--availability", west)
    assert simulate("--prices", str(prices), *given) == 0
    err = capsys.readouterr().err
    assert f"pool compute: spot machines are available as in {one} and {more}" in err
    assert f"availability {west} is ignored" in err
    assert simulate("--prices", str(prices), *given, "--availability", f"compute={west}") == 0
    err = capsys.readouterr().err
    assert f"pool compute: spot machines are available as in {west}" in err
    assert simulate("--availability", one) == 0
    assert f"availability {one} is ignored: no pool" in capsys.readouterr().err
    assert simulate("--prices", str(prices), "--availability", f"nope={one}") == 2
    assert "found pool 'nope', expected one of rack, compute" in capsys.readouterr().err


@pytest.mark.release
def test_lifetimes_of_machines_are_an_availability(tmp_path: Path) -> None:
    prices, lives = tmp_path / "p.csv", tmp_path / "lives.json"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 30 * 86400))
    arguments = ("--prices", str(prices), "--availability", str(lives))
    lives.write_text(json.dumps({f"m{n}": {"time_in_sec": 900.0} for n in range(50)}))
    short = result(tmp_path, *arguments)["rows"]
    lives.write_text(json.dumps({"m": {"time_in_sec": 9e6, "zone": "z"}}))
    long = result(tmp_path, *arguments)["rows"]
    assert isinstance(short, list)
    assert isinstance(long, list)
    assert short[0]["figures"]["interruptions"] > long[0]["figures"]["interruptions"]


@pytest.mark.parametrize("content", [b"\x1f\x8bxx", b"[" * 100_000, b"{}"])
def test_a_damaged_availability_is_answered(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, file = tmp_path / "p.csv", tmp_path / "a.json"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 86400))
    file.write_bytes(content)
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(content)
    for one in (file, packed):
        assert simulate("--prices", str(prices), "--availability", str(one)) == 2
        assert f"availability trace {one} cannot be read" in capsys.readouterr().err


def test_a_short_price_trace_is_not_repeated_for_ever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One price holds always; two that are a second apart are not repeated for 200 years."""
    prices, workload = tmp_path / "p.csv", tmp_path / "w.swf"
    line = "{} {} 5 10 4 -1 -1 4 60 -1 1 1 1 -1 1 1 -1 -1\n"
    workload.write_text(line.format(1, 0) + line.format(2, 200 * 365 * 86400))
    prices.write_text("timestamp,instance_type,az,price\n1,c6i.xlarge,us-east-1a,0.05\n")
    assert simulate("--workload", str(workload), "--prices", str(prices)) == 0
    with prices.open("a") as file:
        file.write("2,c6i.xlarge,us-east-1a,0.05\n")
    capsys.readouterr()
    assert simulate("--workload", str(workload), "--prices", str(prices)) == 2
    assert "prices: a trace of 2 s, repeated over the 73,000 days" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--boot", "--dump", "--notice", "--rebalance", "--requeue-delay", "--depth"]
)
def test_numbers_beyond_all_measure_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        simulate(option, "9" * 20)
    assert stop.value.code == 2
    assert "up to 1000000000" in capsys.readouterr().err


def test_a_damaged_history_is_answered_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "d.swf"
    damaged.write_text(WORKLOAD.read_text() + "121 nonsense\n")
    assert main(["--config", str(EXAMPLE), "simulate", "--workload", str(damaged)]) == 0
    assert "line 124: too short, left out: 2 fields, expected 18" in capsys.readouterr().err


def test_a_page_with_plots_opens_without_a_network(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES.format(begin="2024-01-01T00:00:00Z", end="2024-02-01T00:00:00Z"))
    pages = []
    for name in ("one.html", "two.html"):
        out = tmp_path / name
        compare = "slurm,on_demand+idle(60)"
        assert simulate("--compare", compare, "--prices", str(prices), "--html", str(out)) == 0
        pages.append(out.read_text())
    assert pages[0] == pages[1]  # the same seed, the same bytes
    assert pages[0].count("<svg") >= 5
    assert "on_demand+idle(60)" in pages[0]
    for outside in ('src="http', "@import", 'href="http', "<script"):
        assert outside not in pages[0]


def test_the_page_says_what_comes_of_it_from_what_and_for_whom(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert simulate("--compare", "on_demand+idle(60),slurm", "--html", str(out)) == 0
    page = out.read_text()
    for title in ("Assumptions", "Prices", "Over time", "By month", "How long jobs wait",
                  "By account", "Spot prices"):  # fmt: skip
        assert f"<h2>{title}</h2>" in page
    assert "costs least: 116 jobs cost" in page
    assert "Compared with on_demand+idle(60): " in page
    assert "Random choices start from seed 0" in page
    assert '<th scope="row">2021-03</th>' in page
    assert "No spot prices were given" in page


@pytest.mark.release
def test_the_page_follows_the_browser_and_has_the_site_without_clouds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert simulate("--static", "12x4", "--html", str(out)) == 0
    page = out.read_text()
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "stroke: var(--spot)" in page
    assert "Without public clouds 116 jobs cost $0.00" in page
    assert "without clouds" not in capsys.readouterr().out, "the table is of what was asked for"
    site = tmp_path / "site.yaml"
    site.write_text(EXAMPLE.read_text().replace("\n  nodes: 24 ", "\n  nodes: 0 "))
    asked = ["--workload", str(WORKLOAD), "--static", "1x4", "--html", str(out)]
    assert main(["--config", str(site), "simulate", *asked]) == 0
    assert "Without public clouds" not in out.read_text(), "its own machines are far too few"


@pytest.mark.release
def test_the_page_draws_the_threshold_that_is_simulated(tmp_path: Path) -> None:
    prices, page = tmp_path / "prices.csv", tmp_path / "page.html"
    prices.write_text(PRICES.format(begin="2014-01-01T00:00:00Z", end="2014-02-01T00:00:00Z"))
    drawn = []
    for policy in ("none", "threshold", "first_of(on_notice, threshold_static(0.3))"):
        assert simulate("--prices", str(prices), "--checkpoint", policy, "--html", str(page)) == 0
        drawn.append(page.read_text().count("saved above"))
    assert drawn[0] == 0
    assert drawn[1] >= 1
    assert drawn[2] >= 1


def test_accounting_as_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "JobIDRaw|Submit|ElapsedRaw|TimelimitRaw|AllocCPUS|State\n"
    text += "".join(f"{n}|{1700000000 + 60 * n}|600|20|4|COMPLETED\n" for n in range(20))
    file = tmp_path / "sacct.txt"
    file.write_text(text)
    out = tmp_path / "out.json"
    assert (
        main(["--config", str(EXAMPLE), "simulate", "--sacct", str(file), "--json", str(out)]) == 0
    )
    assert json.loads(out.read_text())["rows"][0]["figures"]["jobs"] == 20


def test_budgets_of_the_configuration_stop_public_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second job waits for the next day, and with it nothing is different but its wait."""
    file = tmp_path / "sacct.txt"
    rows = ("1|ann|physics|86400|7200|120|32|32", "2|ann|physics|90000|60|10|32|32",
            "3|bob|chemistry|90000|60|10|32|32")  # fmt: skip
    head = "JobIDRaw|User|Account|Submit|ElapsedRaw|TimelimitRaw|ReqCPUS|AllocCPUS"
    file.write_text("\n".join((head, *rows)) + "\n")
    waits = []
    for budgets in ("", "  account_budgets: {physics: {per_day: 0.01}, nobody: {per_day: 1}}\n"):
        site = tmp_path / "site.yaml"
        policies = f"policies:\n{budgets}" if budgets else ""
        site.write_text(EXAMPLE.read_text() + policies)
        out = tmp_path / "out.json"
        arguments = ["simulate", "--sacct", str(file), "--json", str(out)]
        assert main(["--config", str(site), *arguments]) == 0
        waits.append(json.loads(out.read_text())["rows"][0]["figures"]["mean_wait"])
    assert waits[1] > waits[0] + 20_000, "a day for one of three"
    told = " ".join(capsys.readouterr().err.split())
    assert "the history has no job of account nobody, which has a budget" in told


@pytest.mark.release
def test_limits_of_markets_hold(tmp_path: Path) -> None:
    """The example's limits: 8 machines on demand, 16 on the spot market (of 16 nodes)."""
    prices = tmp_path / "p.csv"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 30 * 86400))
    without = result(tmp_path)["rows"]
    with_spot = result(tmp_path, "--prices", str(prices))["rows"]
    assert isinstance(without, list)
    assert isinstance(with_spot, list)
    peaks = [
        {pool["name"]: pool["peak"] for pool in rows[0]["figures"]["pools"]}
        for rows in (without, with_spot)
    ]
    assert peaks[0]["compute"] <= 8 < peaks[1]["compute"] <= 16


POLICIES = """
policies:
  growth: on_demand
  release: delayed(on_premises=60, before_end=120)
  machine_order: min_margin
  billing_increment: 1h
  expected_boot_time: 3m
"""


def test_the_site_is_simulated_as_it_is_configured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default, and the same as by its policies' texts."""
    site, out = tmp_path / "site.yaml", tmp_path / "out.json"
    site.write_text(EXAMPLE.read_text() + POLICIES)
    text = "on_demand+delayed(on_premises=60, before_end=120)+min_margin"
    arguments = ["--config", str(site), "simulate", "--workload", str(WORKLOAD), "--json", str(out)]
    assert main(arguments) == 0
    (alone,) = json.loads(out.read_text())["rows"]
    assert alone["policy"] == "configured"
    assert main([*arguments, "--compare", f"configured,{text},slurm"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert rows[0]["figures"] == rows[1]["figures"] == alone["figures"]
    assert rows[2]["figures"] != rows[0]["figures"]
    plain = [*arguments, "--boot", "120", "--billing", "per_second"]
    assert main(plain) == 0
    assert json.loads(out.read_text())["rows"][0]["figures"] != alone["figures"]
    assert "configured:" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "arguments", "words"),
    [
        (
            POLICIES,
            ["--billing", "hourly(seconds=100)"],
            "delayed waits until 2m before the end",
        ),
        ("", [], "there are no pools"),
    ],
)
def test_a_configured_site_that_makes_no_sense_here_is_refused(
    tmp_path: Path, more: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second site has machines with GPUs alone."""
    text = EXAMPLE.read_text()
    if not more:
        text = text[: text.index("\npools:")] + "\npools:\n" + text[text.index("  - name: gpu") :]
        text = "\n".join(line for line in text.split("\n") if not line.startswith("  spot:"))
    site = tmp_path / "site.yaml"
    site.write_text(text + more)
    command = ["--config", str(site), "simulate", "--workload", str(WORKLOAD), *arguments]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "policy 'configured': " in err
    assert words in err


def test_what_of_the_configuration_is_not_simulated_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, prices = tmp_path / "site.yaml", tmp_path / "p.csv"
    prices.write_text(PRICES.format(begin=1614643200, end=1614643200 + 30 * 86400))
    text = EXAMPLE.read_text().replace(
        "  - name: rack\n", "  - name: rack\n    policies: {growth: bursts}\n", 1
    )
    checkpoints = "checkpoint: {policy: hour, method: signal}\n"
    site.write_text(text + "policies: {growth: on_demand}\n" + checkpoints)
    arguments = ["--config", str(site), "simulate", "--workload", str(WORKLOAD)]
    assert main([*arguments, "--prices", str(prices)]) == 0
    err = capsys.readouterr().err
    assert "configured: growth of pool rack is not simulated: on_demand for all" in err
    assert "configured: jobs on spot machines are saved by hour" in err
    assert main([*arguments, "--prices", str(prices), "--compare", "slurm"]) == 0
    assert "configured:" not in capsys.readouterr().err


def test_warm_machines_and_booting_caps_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pool rack and its cloud have them; only the configured policies have warm machines."""
    site, out = tmp_path / "site.yaml", tmp_path / "out.json"
    cloud, rack = "  - name: onprem\n", "  - name: rack\n"

    def waits(*changes: tuple[str, str], compare: str = "configured") -> float:
        text = EXAMPLE.read_text()
        for at, more in changes:
            assert at in text
            text = text.replace(at, at + more, 1)
        site.write_text(text)
        arguments = ["--workload", str(WORKLOAD), "--compare", compare, "--json", str(out)]
        assert main(["--config", str(site), "simulate", *arguments]) == 0
        mean: float = json.loads(out.read_text())["rows"][0]["figures"]["mean_wait"]
        return mean

    plain = waits()
    warm = (rack, "    policies: {min_idle_machines: 2}\n")
    assert waits(warm) < plain
    assert waits(warm, compare="slurm") == waits(compare="slurm")
    assert waits((rack, "    max_booting: 1\n")) > plain
    assert waits((cloud, "    max_booting: 1\n")) > plain
    assert "max_booting" not in capsys.readouterr().err


@pytest.mark.release
def test_boots_by_batch_size_and_every_way_to_pay(tmp_path: Path) -> None:
    def figures(*arguments: str) -> dict[str, object]:
        rows = result(tmp_path, *arguments)["rows"]
        assert isinstance(rows, list)
        found: dict[str, object] = rows[0]["figures"]
        return found

    plain = figures("--boot", "100")
    assert figures("--boot", "1:100") == plain
    assert figures("--boot", "40", "--configure", "60") == plain
    assert figures("--boot", "1:100,8:900") != plain
    costs = [
        figures("--billing", how)["cost"]
        for how in ("per_second", "per_second(minimum=600)", "hourly", "hourly(seconds=86400)")
    ]
    assert costs == sorted(costs)  # type: ignore[type-var]
    assert len(set(costs)) == 4  # type: ignore[arg-type]
    assert figures("--billing", "hourly(refund=false)") == figures("--billing", "hourly")
    pools = figures("--reserved", "compute=2@0.05")["pools"]
    assert isinstance(pools, list)
    kept = next(pool for pool in pools if pool["name"] == "compute reserved at $0.05")
    assert kept["peak"] == 2
    assert kept["on_demand"] == pytest.approx(kept["hours"] * 0.05)
    assert max(pool["peak"] for pool in pools if pool["name"] == "compute") <= 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--boot", "8:1,1:2"], "boot times need ascending batch sizes"),
        (["--boot", "x"], "--boot: 'x' is not a positive number up to 1000000000"),
        (["--boot", "nan"], "--boot: 'nan' is not a positive number up to 1000000000"),
        (["--boot", "9" * 400], "is not a positive number up to 1000000000"),
        (["--boot", "9" * 5000], "is not a positive number up to 1000000000"),
        (["--dump", "nan"], "--dump: 'nan' is not a positive number up to 1000000000"),
        (["--notice", "soon"], "--notice: 'soon' is not a number of seconds up to 1000000000"),
        (["--static", "x"], "--static: 'x' is not NODESxCPUS, such as 4x16"),
        (["--static", "2xy"], "--static: '2xy' is not NODESxCPUS, such as 4x16"),
        (["--billing", "daily"], "there is no 'daily', expected one of per_second, hourly"),
        (["--billing", "hourly(seconds=0)"], "seconds is 0, expected whole seconds over 0"),
        (["--billing", "hourly(refund=maybe)"], "refund is 'maybe', expected true or false"),
        (["--reserved", "compute"], "compute is not POOL=MACHINES@PRICE"),
        (["--reserved", "compute=2@nan"], "compute=2@nan is not POOL=MACHINES@PRICE"),
    ],
)
def test_odd_boots_and_bills_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        simulate(*arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_machines_reserved_of_no_pool_or_too_many_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("--reserved", "nope=2@0.1") == 2
    assert "--reserved: found pool 'nope', expected one of" in capsys.readouterr().err
    assert simulate("--reserved", "compute=99@0.1") == 2
    assert "found more machines than the 8 that the pool may have" in capsys.readouterr().err


@pytest.mark.release
def test_windows_of_the_configuration_and_a_requeue_delay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sacct.txt"
    rows = ("1|ann|1700006400|60|10|32|32", "2|ann|1700010000|60|10|32|32")  # 00:00 and 01:00 UTC
    file.write_text(
        "\n".join(("JobIDRaw|User|Submit|ElapsedRaw|TimelimitRaw|ReqCPUS|AllocCPUS", *rows))
    )
    site, out = tmp_path / "site.yaml", tmp_path / "out.json"
    waits = []
    for hours in ("00:00-00:30", "00:00-02:00"):
        site.write_text(EXAMPLE.read_text() + f'policies: {{start_windows: ["{hours}"]}}\n')
        arguments = ["--sacct", str(file), "--requeue-delay", "90", "--json", str(out)]
        assert main(["--config", str(site), "simulate", *arguments]) == 0
        waits.append(json.loads(out.read_text())["rows"][0]["figures"]["mean_wait"])
    assert waits[0] > waits[1] + 40_000, "a day for one of two"
    with pytest.raises(SystemExit):
        simulate("--requeue-delay", "-1")
    assert "'-1' is not a number of seconds" in capsys.readouterr().err


@pytest.mark.release
def test_the_site_without_public_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result(tmp_path, "--compare", "none,configured", "--static", "16x4")
    rows = found["rows"]
    assert isinstance(rows, list)
    none, configured = (row["figures"] for row in rows)
    assert none["cost"] < configured["cost"] or none["mean_wait"] >= configured["mean_wait"]
    assert all(pool["launched"] == 0 for pool in none["pools"] if pool["name"] == "burst")
    words = " ".join(capsys.readouterr().out.split())
    assert "saving: share of the first policy's cost" in words
    assert "peak: most machines at a time" in words


def test_jobs_that_were_cancelled_before_they_ran_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.swf"
    row = "{n} 0 0 {run} 1 -1 -1 1 100 -1 {status} 1 1 1 1 1 -1 -1"
    rows = [row.format(n=n, run=60 if n < 4 else -1, status=1 if n < 4 else 5) for n in range(1, 7)]
    file.write_text("\n".join(rows) + "\n")
    assert main(["--config", str(EXAMPLE), "simulate", "--workload", str(file)]) == 0
    assert "3 of 6 jobs were cancelled before they ran, and are left out" in capsys.readouterr().err


@pytest.mark.release
def test_a_zone_that_is_dear_for_minutes_is_bought_but_for_these(tmp_path: Path) -> None:
    """A price is in the file for each change: twenty of them within 22 minutes say little. The
    other zone never costs what the history as a whole would have cost there.
    """
    start, day = 1614643200, 86400
    rows = [f"{start},c6i.xlarge,us-east-1a,0.05", f"{start},c6i.xlarge,us-east-1b,0.12"]
    rows += [f"{start + day + 66 * n},c6i.xlarge,us-east-1a,{0.5 + n / 100}" for n in range(20)]
    rows += [f"{start + day + 1320},c6i.xlarge,us-east-1a,0.05"]
    rows += [f"{start + 30 * day},c6i.xlarge,us-east-1b,0.12"]
    prices = tmp_path / "p.csv"
    prices.write_text("\n".join(["timestamp,instance_type,az,price", *rows]) + "\n")
    (row,) = result(tmp_path, "--prices", str(prices))["rows"]  # type: ignore[misc, attr-defined]
    (pool,) = (pool for pool in row["figures"]["pools"] if pool["name"] == "compute")
    assert pool["on_demand"] == 0
    assert pool["spot"] / pool["billed_hours"] < 0.06


@pytest.mark.parametrize("history", ["starve.swf", "starve2.swf"])
def test_a_pool_with_a_small_max_booting_starves_no_job(history: str, tmp_path: Path) -> None:
    """The second history pays idle machines for a day if the first job does not start."""
    folder, out = DATA / "growth-starves", tmp_path / "out.json"
    growths = ("slurm", "on_demand", "bursts", "group_bursts", "ratio", "semi_elastic")
    asked = ["simulate", "--workload", str(folder / history), "--json", str(out)]
    policies = ",".join(f"{growth}+idle(600)" for growth in growths)
    assert main(["--config", str(folder / "starve3.yaml"), *asked, "--compare", policies]) == 0
    rows = [row["figures"] for row in json.loads(out.read_text())["rows"]]
    assert [row["unserved"] for row in rows] == [0] * len(growths)
    assert all(row["cost"] < 5 * rows[0]["cost"] for row in rows)


HISTORIES = Path(__file__).parents[1] / "data" / "histories"


@pytest.mark.parametrize("option", ["--workload", "--sacct"])
def test_a_history_in_the_wrong_option_names_the_right_one(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = HISTORIES / "into-the-wrong-option.sacct"
    told = f"--workload: {path} is the output of sacct: use --sacct {path}"
    if option == "--sacct":
        path = tmp_path / "history"
        path.write_text("; Version: 2.2\n1 0 10 60 2 -1 -1 2 60 -1 1 1 1 -1 1 1 -1 -1\n")
        told = f"--sacct: {path} is in the Standard Workload Format: use --workload {path}"
    assert main(["--config", str(EXAMPLE), "simulate", option, str(path)]) == 2
    assert told in capsys.readouterr().err


def test_records_that_are_no_jobs_are_counted_in_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = HISTORIES / "per-node-memory-and-requeues.sacct"
    assert main(["--config", str(EXAMPLE), "simulate", "--sacct", str(path)]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "1 records of the history are runs that were requeued, and are left out" in told


def test_individual_rents_machines_for_each_job_alone(tmp_path: Path) -> None:
    """Niu et al.'s baseline: nothing is shared or kept, so each hour of each job is rounded up."""
    found = result(tmp_path, "--compare", "individual,slurm+idle(600)", "--billing", "hourly")
    rows = found["rows"]
    assert isinstance(rows, list)
    individual, shared = (row["figures"] for row in rows)
    (pool,) = individual["pools"]
    assert pool["launched"] >= individual["jobs"] > shared["pools"][-1]["launched"]
    assert individual["cost"] > shared["cost"]


EC3 = """\
cluster: {name: demo}
allow: {accounts: [physics], max_time: 7d}
limits: {dollars_per_hour: 9}
clouds:
  - name: aws
    provider: fake
    location: public
    zones: [a]
    types: {m3.medium: {cpus: 1, memory: 1G, price: 0.067}}
pools:
  - {name: p, cloud: aws, nodes: "n[1-4]", cpus: 1, memory: 1G, markets: [spot]}
"""


def ec3(tmp_path: Path, *arguments: str) -> dict[str, float]:
    """One job of five hours on spot machines. Their price is above the on-demand price for ten
    minutes after two and a half hours.
    """
    site, prices, history = tmp_path / "s.yaml", tmp_path / "p.csv", tmp_path / "h.swf"
    site.write_text(EC3)
    history.write_text(
        "; UnixStartTime: 1441756800\n1 0 0 18000 1 -1 -1 1 18000 -1 1 1 1 1 1 1 -1 -1\n"
    )
    lines = [
        f"{1441756800 + second},m3.medium,a,{price}"
        for second, price in ((0, 0.01), (9000, 0.07), (9600, 0.01), (40000, 0.01))
    ]
    prices.write_text("\n".join(["timestamp,instance_type,az,price", *lines]) + "\n")
    out = tmp_path / "out.json"
    words = ["simulate", "--workload", str(history), "--prices", str(prices), "--json", str(out)]
    words += ["--checkpoint", "hour(margin=200)", "--dump", "160", "--boot", "672"]
    assert main(["--config", str(site), *words, "--billing", "hourly", *arguments]) == 0
    figures: dict[str, float] = json.loads(out.read_text())["rows"][0]["figures"]
    return figures


def test_restart_period_and_saves_in_the_background_are_options(tmp_path: Path) -> None:
    """EC3's table 3: a restart of 74 s, a look each 30 s."""
    found = ec3(tmp_path, "--restart", "74", "--checkpoint-period", "30", "--no-blocking")
    assert found["interruptions"] == 1
    # The saves cost no time, so what is left is one restart.
    assert found["overhead_hours"] * 3600 == pytest.approx(74)
    stopped = ec3(tmp_path, "--restart", "74", "--checkpoint-period", "30")
    assert stopped["overhead_hours"] * 3600 == pytest.approx(74 + 160 * stopped["checkpoints"])
    assert ec3(tmp_path, "--restart", "0", "--no-blocking")["overhead_hours"] == 0
    # ckptman looks only twice an hour, and so never in the last 200 s of an hour.
    assert ec3(tmp_path, "--checkpoint-period", "1800")["checkpoints"] == 0


def test_a_bid_decides_which_prices_take_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ec3(tmp_path)["interruptions"] == 1
    assert ec3(tmp_path, "--max-price", "0.08")["interruptions"] == 0
    assert "lost when the price exceeds the bid of $0.08" in capsys.readouterr().err
    assert ec3(tmp_path, "--max-price", "0.08", "--max-price", "p=0.06")["interruptions"] == 1
    with pytest.raises(AssertionError):
        ec3(tmp_path, "--max-price", "q=1")
    assert "--max-price q=1: found pool 'q', expected one of p" in capsys.readouterr().err


def test_a_pool_that_is_reserved_as_a_whole_needs_no_reason_why_nothing_was_bought(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("--reserved", "rack=4@0.45", "--compare", "none") == 0
    assert "no machine was ever bought" not in capsys.readouterr().out


def test_power_shows_the_energy_of_machines_that_are_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--static", "2x8", "--power", "100", "--power", "static=300")
    rows = result(tmp_path, *words, "--compare", "slurm+idle(60),slurm+idle(7200)")["rows"]
    assert "kWh" in capsys.readouterr().out
    assert isinstance(rows, list)
    early, late = (row["figures"] for row in rows)
    for figures in (early, late):
        watts = {
            pool["name"]: 300 if pool["name"] == "static" else 100 for pool in figures["pools"]
        }
        energy = sum(pool["hours"] * watts[pool["name"]] / 1000 for pool in figures["pools"])
        assert figures["energy"] == pytest.approx(energy)
    # Machines that leave earlier take less.
    assert early["energy"] < late["energy"]
    assert simulate("--power", "nowhere=1") == 2
    assert "--power nowhere=1: found pool 'nowhere', expected one of static, rack" in (
        capsys.readouterr().err
    )
    assert simulate() == 0
    assert "kWh" not in capsys.readouterr().out
