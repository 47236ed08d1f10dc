"""The commands of docs/simulate.md and docs/planning.md, as they stand there, on a small site's history."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from needs import unless
from pages import ROOT, shown
from patience import patience

from slurm_elastic.config import configfile

DAY = 86400
BEGIN = 1767225600
"""The first second of 2026."""
SACCT = """\
#!/bin/bash -e
# No accounting is there to ask: the columns that are asked for, if sacct itself has words for them.
for word in "$@"; do
    case $word in --format=*) IFS=, read -ra fields <<<"${word#--format=}" ;; esac
done
declare -A job=([JobIDRaw]=7 [User]=ann [Account]=physics [Partition]=batch [Submit]=2026-01-05T08:00:00
    [ElapsedRaw]=3600 [TimelimitRaw]=120 [ReqCPUS]=4 [AllocCPUS]=4 [ReqMem]=8G
    [ReqTRES]=billing=4,cpu=4,mem=8G,node=1 [State]=COMPLETED)
row=()
for field in "${fields[@]}"; do
    grep -qaw "$field" /usr/bin/sacct || { echo "sacct: no field $field" >&2; exit 1; }
    row+=("${job[$field]}")
done
(IFS='|'; echo "${fields[*]}"; echo "${row[*]}")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all the files that the pages name: nine weeks of a job each 90 minutes.

    It takes an hour, and five machines of a pool that has them.
    """
    job = "{n} {at} 0 3600 20 -1 -1 20 3600 -1 1 1 1 1 1 1 -1 -1"
    lines = [job.format(n=n, at=5400 * n) for n in range(64 * 16)]
    history = "\n".join([f"; UnixStartTime: {BEGIN}", *lines, ""])
    trace = json.dumps({"metadata": {"gap_seconds": 600}, "data": [*[1] * 20, 0, 0] * 500})
    prices = [f"{BEGIN + n * DAY},c6i.xlarge,us-east-1a,0.0{5 + n % 3}" for n in range(90)]
    (tmp_path / "history.swf").write_text(history)
    (tmp_path / "history.swf.gz").write_bytes(gzip.compress(history.encode()))
    (tmp_path / "spot.csv").write_text("\n".join(["timestamp,instance_type,az,price", *prices, ""]))
    for zone in ("2a", "2b"):
        (tmp_path / f"us-west-{zone}_v100_1.json").write_text(trace)
        (tmp_path / f"2022-10_us-west-{zone}_v100_1.json").write_text(trace)
    shutil.copy(ROOT / "etc" / "slurm-elastic.yaml", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sacct").write_text(SACCT)
    (tmp_path / "bin" / "sacct").chmod(0o755)
    here = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(here))
    monkeypatch.setenv("SLURM_ELASTIC_CONFIG", str(tmp_path / "slurm-elastic.yaml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(line: str) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True, text=True, check=False, timeout=patience(300),
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_simulate_compares_three_policies(place: Path) -> None:
    told: list[str] = []
    shown("docs/simulate.md", "slurm-elastic simulate").run(lambda line: told.append(typed(line)))
    (table,) = told
    for words in ("slurm", "on_demand+idle(60)", "1,024"):
        assert words in table


@unless("sacct")
def test_the_own_history_becomes_a_report(place: Path) -> None:
    shown("docs/simulate.md", "sacct -X").run(typed)
    assert (place / "report.html").read_text().count("<svg") > 1


def test_the_same_from_python(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands there: on 100 nodes of its own the site buys nothing."""
    exec(shown("docs/simulate.md", "from slurm_elastic").text, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "slurm"
    assert second.split()[0] == "on_demand+idle(60)"


def test_plan_policy_finds_one_that_the_configuration_takes(place: Path) -> None:
    history = (place / "history.swf").read_text().splitlines(keepends=True)
    (place / "history.swf").write_text(
        "".join(history[:120])
    )  # a week of it: fifty policies are tried
    told: list[str] = []
    block = shown("docs/planning.md", "slurm-elastic --config slurm-elastic.yaml plan policy")
    block.run(lambda line: told.append(typed(line)))
    lines = told[0][told[0].index("policies:") :]
    with (place / "slurm-elastic.yaml").open("a") as file:
        file.write("\n" + lines)
    configfile.load(place / "slurm-elastic.yaml")
    assert "<svg" in (place / "front.html").read_text()


def test_plan_checkpoint_marks_the_cheapest(place: Path) -> None:
    told: list[str] = []
    shown("docs/planning.md", "slurm-elastic plan checkpoint").run(
        lambda line: told.append(typed(line))
    )
    assert "none" in told[0]
    assert ">" in told[0]


def test_plan_own_compares_owned_and_rented_machines(place: Path) -> None:
    told: list[str] = []
    shown("docs/planning.md", "slurm-elastic plan own").run(lambda line: told.append(typed(line)))
    assert "own 93 + rent" in told[0]
    assert "pays below" in told[0]


def test_plan_reserve_goes_by_the_price_list_of_the_page(place: Path) -> None:
    prices = shown("docs/planning.md", "on_demand: 2.40").text
    (place / "pricing.yaml").write_text(prices)
    told: list[str] = []
    block = shown("docs/planning.md", "slurm-elastic --config slurm-elastic.yaml plan reserve")
    block.run(lambda line: told.append(typed(line)))
    for one in yaml.safe_load(prices)["classes"]:
        assert one["name"] in told[0]
    assert "to buy now" in told[0]
    (place / "held.yaml").write_text(shown("docs/planning.md", "held:").text)
    told.clear()
    block.run(lambda line: told.append(typed(f"{line} --held held.yaml")))
    assert "held now: 40 x 1Y no upfront (200d" in told[0]


def test_plan_deadline_is_kept(place: Path) -> None:
    told: list[str] = []
    shown("docs/planning.md", "slurm-elastic plan deadline").run(
        lambda line: told.append(typed(line))
    )
    assert "by dollars" in told[0]
    assert "0/300" in told[0]
