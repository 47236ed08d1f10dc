"""``price``: wrong questions are refused, time limits are Slurm's, and a guess is named so."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from status_cases import config, general_pool

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.local_time import clock
from slurm_elastic.cli.jobs import price, why_not
from slurm_elastic.cli.jobs.price import PartitionRow, Priced
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate.cloud_table import RankedCloudRow
from slurm_elastic.cli.operate.status import kept_of
from slurm_elastic.config import configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.slurm.client.commands.sbatch_test_only import Submission
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.hooks import sbatch_rules
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.questions import PartitionPrice

YEAR = 365 * 86400

YAML = """
cluster: {{name: alps}}
state_dir: {root}/state
slurm: {{conf: {root}/slurm.conf, bin_dir: {root}/bin}}
clouds:
  - {{name: onp, provider: local, location: on-premises}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", slurmd_port: 17001, cpus: 2, memory: 4G}}
"""
SBATCH = """#!/bin/sh
cat >&2 <<END
sbatch: defined options
sbatch: -------------------- --------------------
sbatch: partition           : batch,nosuch
sbatch: -------------------- --------------------
sbatch: end of defined options
sbatch: error: invalid partition specified: batch,nosuch
allocation failure: Invalid partition name specified
END
exit 1
"""


def test_a_partition_that_slurm_lacks_is_named_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    conf = "ClusterName=alps\nNodeName=st1\nPartitionName=batch Nodes=st1\nPartitionName=onp\n"
    (tmp_path / "slurm.conf").write_text(conf)
    file = tmp_path / "slurm-elastic.yaml"
    file.write_text(YAML.format(root=tmp_path))
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    job = str(tmp_path / "job.sh")
    assert main(["--config", str(file), "price", job, "-p", "batch,nosuch"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "slurm-elastic: Slurm has no partition nosuch; slurm.conf has batch, onp\n"


def row(partition: str, limit: int | None, *, jobs: int = 0, slurm: int = 0) -> PartitionRow:
    forecast = PartitionPrice(
        partition=partition, start=(0, 254, 2400), run=(60, 400, 600), low=0.0562, high=0.0962,
        jobs_known=jobs, limit=limit,
    )  # fmt: skip
    return PartitionRow(forecast=forecast, by_slurm=slurm)


def shown(limit: int | None, *rows: PartitionRow) -> str:
    out = io.StringIO()
    found = Priced(at=0.0, job="job.sh", limit=limit, rows=rows, options={})
    price.render(found, Console(file=out, width=80))
    return " ".join(out.getvalue().split())


def limits(
    defaults: Mapping[str, float | None], options: Mapping[str, str]
) -> tuple[Mapping[str, int], Mapping[str, str]]:
    slurm = FakeSlurm()
    slurm.partition_default_times = dict(defaults)
    slurm.partition_max_times = {"batch": None, "aws": 3600.0}
    return price._limits(slurm, price.job_of(options, ("batch", "aws"), requeue=True), options)


def test_a_job_without_a_limit_gets_the_default_of_its_partition() -> None:
    assert limits({"aws": 600.0}, {}) == ({"aws": 600}, {})
    assert limits({"batch": 300.0, "aws": 600.0}, {}) == ({"batch": 300, "aws": 300}, {})


def test_a_cloud_that_cannot_give_the_time_of_the_first_partition_is_left_out() -> None:
    _, left_out = limits({}, {})
    assert left_out["aws"].startswith("without --time the job gets the time limit of batch")
    assert limits({}, {"time": "00:30:00"})[1] == {}
    assert limits({}, {"partition": "batch,aws"})[1] == {}, "Slurm takes the limit of each"
    assert set(limits({"batch": 7200.0}, {"partition": "batch,aws"})[1]) == {"aws"}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("", ["cpu", "onp"]),
        ("cpu", ["cpu"]),
        ("gpu", ["gpu", "own"]),
        ("gpu,cpu", ["gpu", "cpu"]),
        ("own", ["own"]),
    ],
)
def test_a_job_counts_for_the_clouds_that_allow_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, expected: list[str]
) -> None:
    conf = (
        "NodeName=st[1-2]\nPartitionName=cpu Nodes=st1 Default=YES\nPartitionName=gpu Nodes=st2\n"
    )
    (tmp_path / "slurm.conf").write_text(f"ClusterName=alps\n{conf}")
    more = "  - {name: own, provider: local, location: on-premises, socket: /run/own.sock,\n     allow: {partitions: [gpu]}}\npools:"
    text = YAML.format(root=tmp_path).replace("pools:", more)
    text += '  - {name: hall, cloud: own, nodes: "h1", slurmd_port: 17009, cpus: 2, memory: 4G}\n'
    site = configfile.parse(text, "site.yaml")
    monkeypatch.setattr(price.submit_filter, "trouble", lambda conf: "")
    options = {"partition": named} if named else {}
    read = why_not.site_of(site)
    assert price._partitions(site, Submission(options=options), read) == expected
    for option in (*sbatch_rules.CHOSEN, *sbatch_rules.STRANGE):
        asked = Submission(options={**options, option: "st1"})
        assert price._partitions(site, asked, read) == (named or "cpu").split(","), option


def test_a_named_partition_is_no_list_of_the_user() -> None:
    _, left_out = limits({}, {"partition": "batch"})
    assert set(left_out) == {"aws"}


def test_the_limits_that_a_job_without_one_gets_are_shown() -> None:
    text = shown(None, row("batch", None), row("aws", 600), row("onprem", 600))
    limits = "no limit in batch (costs are of a day), 10m in aws, onprem"
    assert f"job.sh, without a time limit (it gets {limits}), if it were" in text
    assert "job.sh, with a time limit of 30m, if it were" in shown(1800, row("aws", 1800))


def test_few_ended_jobs_give_a_rough_guess_without_exact_figures() -> None:
    text = shown(600, row("aws", 600, jobs=3))
    assert "~4m ~40m now ~7m ~$0.06 $0.0962" in text
    assert "This is a rough guess (~): Slurm remembers 3 ended jobs of this site" in text
    text = shown(600, row("aws", 600, jobs=20))
    assert "4m 14s 40m now 6m 40s $0.0562 $0.0962" in text
    assert "rough guess" not in text


def test_a_year_of_slurms_is_no_estimate() -> None:
    text = shown(600, row("batch", 600, slurm=YEAR - 3600))
    assert "364d" not in text
    assert "no limit ~7m" in text
    assert "SLURM SAYS no limit: jobs that come first have no time limit." in text
    assert "30d" in shown(600, row("batch", 600, slurm=30 * 86400))


def test_a_cloud_that_never_runs_the_job_is_not_compared(tmp_path: Path) -> None:
    site, now = config(tmp_path), time.time()
    Ledger(tmp_path / "ledger.db").close()
    listed = tuple(cloud.partition_name for cloud in site.clouds)
    big = price.job_of({"account": "physics", "nodes": "3"}, listed, requeue=True)
    waits = why_not.waits_now(site, big, price._chain(site, now), kept_of(FakeSlurm(), now))
    barred = {v.pool for v in waits.of_all_pools(big) if v.predicate in price.BARS}
    rows = [
        RankedCloudRow(
            rank=rank, partition=pool, pool=pool, cloud=pool, market=None, machines=3, price=None,
            cost=None,
        )
        for rank, pool in ((1, "rack"), (2, "general"))
    ]  # fmt: skip
    assert [row.pool for row in price.possible_rows(rows, barred)] == ["general"]


def test_a_sold_out_cloud_is_named_with_the_time_of_the_next_try(tmp_path: Path) -> None:
    sold_out = "8 offers: cooling down after InsufficientInstanceCapacity"
    now, site, slurm = time.time(), config(tmp_path), FakeSlurm()
    with contextlib.closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for node in general_pool().nodes:
            slurm.set_node(
                node, "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN", reason=f"{HOLD_MARK}{sold_out}"
            )
            ledger.exclusions.add(
                Exclusion(
                    kind=CAPACITY, scope=node, pool="general", cause=Quoted(text=sold_out),
                    until=now + 90,
                )
            )  # fmt: skip
    aws = next(cloud for cloud in site.clouds if cloud.name == "aws")
    job = price.job_of({"account": "physics"}, (aws.partition_name,), requeue=True)
    chain = price._chain(site, now)
    waits = why_not.waits_now(site, job, chain, kept_of(slurm, now))
    closed = price.closed_pools(waits.of_all_pools(job), chain)
    assert [(row.cloud, row.pool, row.retry_at) for row in closed] == [("aws", "general", now + 90)]
    out = io.StringIO()
    priced = Priced(at=now, job="job.sh", limit=60, rows=(), options={}, closed=closed)
    price.render(priced, Console(file=out, width=80))
    text = " ".join(out.getvalue().split())
    assert "Cloud aws (pool general) starts no machine now: " in text
    assert sold_out in text
    assert f"it is asked again at {clock(now + 90)}" in text


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("job.sh --time=10", ["--time=10"]),
        ("--time=10 job.sh", ["--time=10"]),
        ("--time 10 --exclusive job.sh", ["--time", "10", "--exclusive"]),
        ("--json -o out.txt -n2 job.sh", ["-o", "out.txt", "-n2"]),
        ("-o out.txt -N 2 job.sh", ["-o", "out.txt", "-N", "2"]),
    ],
)
def test_options_may_stand_before_the_script_as_for_sbatch(
    words: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def gather(_config: object, script: str, found: list[str], _now: float) -> None:
        asked.append((script, found))
        raise SlurmElasticError("enough")

    monkeypatch.setattr(price, "load", lambda _path: None)
    monkeypatch.setattr(price, "gather", gather)
    monkeypatch.chdir(tmp_path)
    for name in ("job.sh", "out.txt"):
        Path(name).write_text("#!/bin/sh\n")
    assert main(["price", *words.split()]) == 1
    assert asked == [("job.sh", options)]
