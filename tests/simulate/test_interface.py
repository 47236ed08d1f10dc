"""The interface for other people's programs says what the command says, and keeps its promise."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import history
from slurm_elastic.config.configfile import load
from slurm_elastic.simulate import Options, SimulationResult, simulate

ROOT = Path(__file__).parents[2]
SITE = ROOT / "etc" / "slurm-elastic.yaml"
SWF = ROOT / "tests" / "data" / "synthetic.swf"
SACCT = ROOT / "examples" / "simulate.sacct"
POLICY = "on_demand+random"
POLICIES = "configured,slurm,on_demand+idle(60)"
PRICES = "timestamp,instance_type,az,price\n{0},c6i.xlarge,us-east-1a,0.05\n{1},c6i.xlarge,us-east-1a,0.06\n"
TABLES = {
    "totals": "policy jobs unserved too_large cost on_demand spot mean_wait p95_wait slowdown utilisation makespan "
    "lost_hours overhead_hours interruptions checkpoints api_calls peak reserved unused energy unbought",
    "pools": "policy pool jobs launched peak hours busy_hours billed_hours on_demand spot reserved energy",
    "jobs": "policy job submit start end wait run cpus user account pool",
    "machines": "policy pool time machines",
    "queue": "policy time waiting",
}
"""What is promised: a column here may be added, and none taken away or renamed (docs/simulate.md)."""


def by_command(out: Path, *words: str, site: Path = SITE) -> dict[str, Any]:
    """Its document."""
    assert main(["--config", str(site), "simulate", *words, "--json", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def agrees(result: SimulationResult, document: dict[str, Any]) -> None:
    """All figures, of pools, too; and what is told beside them."""
    for total, row in zip(result.totals, document["rows"], strict=True):
        of = {"policy": row["policy"]}
        assert {**total, "pools": row["figures"]["pools"]} == {**of, **row["figures"]}
        own = [pool for pool in result.pools if pool["policy"] == row["policy"]]
        assert [{**pool, "name": pool["pool"]} for pool in own] == [
            {**of, "pool": pool["name"], **pool} for pool in row["figures"]["pools"]
        ]
    assert list(result.notes) == document["notes"]
    assert list(result.complaints) == document["complaints"]
    assert result.totals[0]["jobs"] == document["jobs"]


def test_figures_are_the_commands(tmp_path: Path) -> None:
    """On a history with a damaged line and a cancelled job, which both tell."""
    file = tmp_path / "some.swf.gz"
    file.write_bytes(gzip.compress(SWF.read_bytes() + b"nonsense\n"))
    document = by_command(tmp_path / "out", "--workload", str(file), "--compare", POLICIES)
    assert document["complaints"]
    assert document["cancelled"]
    for site in (SITE, str(SITE), load(SITE)):
        agrees(simulate(file, site, POLICIES), document)


SPOT_WORDS = (
    "--static 1x4 --boot 1:90,4:150 --configure 7 --billing hourly(seconds=600) --reserved compute=1@0.05 "
    "--prices p.csv --availability a.json --notice 30 --rebalance 200 --requeue-delay 600 "
    "--checkpoint first_of(on_notice,daly) --dump 20 --seed 11"
)
SPOT = (
    SPOT_WORDS,
    Options(
        static=(1, 4), boot=((1, 90.0), (4, 150.0)), configure=7, billing="hourly(seconds=600)",
        reserved=[("compute", 1, 0.05)], prices=["p.csv"], availability=["a.json"], notice=30, rebalance=200,
        requeue_delay=600, checkpoint="first_of(on_notice, daly)", dump=20, seed=11,
    ),
)  # fmt: skip
SAVES = (
    ("--prices p.csv --availability b.json --billing hourly(seconds=300) --checkpoint hour(margin=120) "
    "--restart 90 --checkpoint-period 50 --no-blocking --max-price compute=0.055 --power 250"),
    Options(
        prices=["p.csv"], availability=["b.json"], billing="hourly(seconds=300)",
        checkpoint="hour(margin=120)", restart=90, checkpoint_period=50, blocking=False,
        max_price=[("compute", 0.055)], power=[(None, 250.0)],
    ),
)  # fmt: skip
QUEUE = [
    ("--depth 1", Options(depth=1)),
    ("--reservations 3", Options(reservations=3)),
    ("--whole-nodes", Options(whole_nodes=True)),
    ("--max-jobs 5", Options(max_jobs=5)),
]


@pytest.mark.parametrize(("words", "options"), [SPOT, SAVES, *QUEUE])
def test_every_option_is_the_commands(
    words: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each counts: without it the figures are others."""
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text(PRICES.format(1614643200, 1614643200 + 30 * 86400))
    trace = {"metadata": {"gap_seconds": 600}, "data": [1] * 20 + [0] * 2}
    Path("a.json").write_text(json.dumps(trace))
    Path("b.json").write_text(json.dumps({**trace, "data": [9, 9, 9, 0]}))
    asked = ("--workload", str(SWF), "--compare", POLICY, *words.split())
    document = by_command(tmp_path / "out", *asked)
    result = simulate(SWF, SITE, POLICY, options)
    agrees(result, document)
    for name in set_in(options):
        without = replace(options, **{name: getattr(Options(), name)})
        assert simulate(SWF, SITE, POLICY, without).totals != result.totals, name


def set_in(options: Options) -> set[str]:
    usual = Options()
    return {n for n in Options.__struct_fields__ if getattr(options, n) != getattr(usual, n)}


def test_no_option_is_untried() -> None:
    tried = {name for _, options in (SPOT, SAVES, *QUEUE) for name in set_in(options)}
    # The month's report alone gives the prices that were paid (tests/cli/test_report.py).
    assert tried == set(Options.__struct_fields__) - {"paid"}


def test_what_is_left_out_is_as_in_the_command() -> None:
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    args = parser.parse_args(["--workload", str(SWF)])
    args.config = str(SITE)
    assert msgspec.to_builtins(history.read_inputs(args)[2]) == {
        **msgspec.to_builtins(Options()),
        **{name: [] for name in ("reserved", "prices", "availability", "max_price", "power")},
    }


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text, delimiter="|"))


def test_rows_and_files_of_sacct_are_the_same_history(tmp_path: Path) -> None:
    packed, document = tmp_path / "packed", tmp_path / "jobs.json"
    packed.write_bytes(gzip.compress(SACCT.read_bytes()))
    document.write_text(json.dumps({"jobs": [as_json(row) for row in rows_of(SACCT)]}))
    told = by_command(tmp_path / "out", "--sacct", str(SACCT), "--compare", POLICIES)
    results = [simulate(one, SITE, POLICIES) for one in (SACCT, packed, document, rows_of(SACCT))]
    for result in results:
        agrees(result, told)
        assert result.jobs == results[0].jobs
    assert {job["user"] for job in results[0].jobs} == {"ann", "bob", "cleo"}
    assert {job["account"] for job in results[0].jobs} == {"physics", "chemistry"}
    late = tmp_path / "late"
    late.write_text("\n\n" + SACCT.read_text())
    assert simulate(late, SITE, POLICIES).jobs == results[0].jobs, "the first line is blank"
    frame = [
        {n: float(v) if v.isdecimal() else v for n, v in row.items()} for row in rows_of(SACCT)
    ]
    floats = simulate(
        [{**row, "ReqTRES": None, "ReqMem": float("nan")} for row in frame], SITE, POLICIES
    )
    assert floats.jobs == results[0].jobs, "numbers as dataframes have them"


def as_json(row: dict[str, str]) -> dict[str, Any]:
    cancelled = row["State"].startswith("CANCELLED")
    cpus = [{"type": "cpu", "count": int(row["AllocCPUS"])}]
    return {
        "job_id": int(row["JobIDRaw"]), "user": row["User"], "account": row["Account"],
        "time": {"submission": int(row["Submit"]), "elapsed": int(row["ElapsedRaw"]), "limit": int(row["TimelimitRaw"])},
        "state": {"current": ["CANCELLED" if cancelled else "COMPLETED"]},
        "required": {"CPUs": int(row["ReqCPUS"])}, "tres": {"allocated": cpus},
    }  # fmt: skip


def test_nodes_alone_are_a_site(tmp_path: Path) -> None:
    words = ("--workload", str(SWF), "--compare", "none", "--static", "2x16")
    document = by_command(tmp_path / "out", *words, site=ROOT / "examples" / "simulate.yaml")
    result = simulate(SWF, (2, 16), "none")
    assert result.pools[0]["pool"] == "static"
    agrees(
        result, document | {"notes": [note for note in document["notes"] if "burst" not in note]}
    )


def test_tables_agree_with_the_totals() -> None:
    result = simulate(SWF, SITE, POLICIES)
    for total in result.totals:
        own = {
            name: [row for row in getattr(result, name) if row["policy"] == total["policy"]]
            for name in TABLES
        }
        jobs = own["jobs"]
        assert len(jobs) == total["jobs"]
        assert mean(job["wait"] for job in jobs) == pytest.approx(total["mean_wait"])
        assert all(job["end"] - job["start"] == job["run"] for job in jobs)
        assert min(job["submit"] for job in jobs) > 1_614_643_200, "UnixStartTime of the history"
        assert sum(pool["on_demand"] for pool in own["pools"]) == pytest.approx(total["cost"])
        for pool in own["pools"]:
            steps = [row for row in own["machines"] if row["pool"] == pool["pool"]]
            assert max((row["machines"] for row in steps), default=0) == pool["peak"]
            seconds = [
                row["machines"] * (after["time"] - row["time"]) for row, after in pairwise(steps)
            ]
            assert sum(seconds) / 3600 == pytest.approx(pool["hours"])
        assert own["queue"][-1]["waiting"] == 0
        waited = sum(
            row["waiting"] * (after["time"] - row["time"]) for row, after in pairwise(own["queue"])
        )
        assert waited == sum(job["wait"] for job in jobs)


def test_jobs_that_cannot_run_have_no_times() -> None:
    rows = [
        {"JobIDRaw": n, "Submit": 9, "ElapsedRaw": 60, "ReqCPUS": cpus}
        for n, cpus in ((1, 1), (2, 64))
    ]
    result = simulate(rows, (1, 4), "none")
    ran, never = result.jobs
    assert (ran["submit"], ran["start"], ran["end"], ran["wait"]) == (9, 9, 69, 0)
    assert (ran["user"], ran["account"], ran["pool"]) == (None, None, "static")
    assert [never[name] for name in ("start", "end", "wait", "pool")] == [None] * 4
    assert result.notes == ("none: 1 jobs need more than any pool has",)


def test_what_is_promised_is_there_and_plain() -> None:
    result = simulate(SACCT, SITE, POLICIES)
    page = (
        (ROOT / "docs" / "simulate.md")
        .read_text()
        .partition("## From Python")[2]
        .partition("\n## ")[0]
    )
    for name, columns in TABLES.items():
        rows = getattr(result, name)
        assert rows
        assert f"- `{name}`, a row" in page
        for column in columns.split():
            assert f"`{column}`" in page, column
        for row in rows:
            assert set(row) >= set(columns.split())
            assert {type(value) for value in row.values()} <= {int, float, str, type(None)}
    with pytest.raises(AttributeError):
        result.runs = ()  # type: ignore[misc]
    assert repr(result) == f"<Result of {POLICIES.replace(',', ', ')}>"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("/nowhere.swf", SITE), "workload /nowhere.swf cannot be read"),
        ((SWF, "/nowhere.yaml"), "/nowhere.yaml: cannot be read"),
        ((SITE, SITE), "holds no job that ran"),
        ((SWF, SITE, "burst"), "policy 'burst': there is no 'burst'"),
        ((SWF, SITE, ","), "--compare names no policy"),
        ((SWF, (0, 16), "none"), "policy 'none': without public clouds there are no machines"),
        ((SWF, (2, 0)), "static: 2 standing machines of 2, 0 processors each, are impossible"),
        (([], (1, 1)), "rows: found no job that ran"),
        (([{"Submit": 5}], (1, 1)), "row 1: cannot be used: ElapsedRaw: found '', expected a number"),
        ((SWF, SITE, "slurm", Options(prices=["/nowhere.csv"])), "price trace /nowhere.csv cannot be read"),
        ((SWF, SITE, "slurm", Options(checkpoint="hourly")), "--checkpoint: there is no 'hourly'"),
        ((SWF, SITE, "slurm", Options(billing="hourly(seconds=0)")), "--billing: hourly: seconds is 0, expected whole seconds over 0"),
        ((SWF, SITE, "slurm", Options(reservations=0)), "reservations is 0, expected 1 or more"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_in_the_commands_sentence(asked: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        simulate(*asked)
    assert words in str(raised.value)


def test_options_that_make_no_sense_cannot_be() -> None:
    with pytest.raises(ConfigError, match="notice: found -1, expected a number from 0"):
        Options(notice=-1)
    with pytest.raises(ConfigError, match="boot: boot times need ascending batch sizes"):
        Options(boot=((8, 1.0), (1, 2.0)))
