"""``explain JOB`` of a job that waits: the verdict on each pool, as gathered from all sources."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ledger_cases import T0
from msgspec.structs import replace
from rich.console import Console
from status_cases import busy_ledger, config

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.jobs.explain import Explanation
from slurm_elastic.config import Config, PoolSettings, SlurmSettings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.features.growth import closed_pools
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.questions import ChainAsk
from slurm_elastic.watch.door.records import read_chain
from slurm_elastic.watch.door.visibility import Viewer, seen_chain

OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
NODES = ("op1", "op2", *(f"pub{i}" for i in range(1, 9)))
SITE = "ClusterName=alps\nPartitionName=static Nodes=st1 Default=YES\n"
CALLS = "function slurm_job_submit(d, p, u)\n  return slurm_elastic_submit(d, p, u)\nend\n"


@pytest.fixture
def site(tmp_path: Path) -> Config:
    """Nothing is used yet; the filter is called."""
    (tmp_path / "slurm.conf").write_text(SITE + "JobSubmitPlugins=lua\n")
    (tmp_path / "job_submit.lua").write_text(CALLS)
    Ledger(tmp_path / "ledger.db").close()
    return replace(config(tmp_path), slurm=SlurmSettings(conf=str(tmp_path / "slurm.conf")))


def slurm(**job: Any) -> FakeSlurm:
    given: dict[str, Any] = {
        "user": "erin", "account": "physics", "reason": "Priority", "partitions": ("static", "burst")
    }  # fmt: skip
    waits = SlurmJob(id=50, states=frozenset({"PENDING"}), **(given | job))
    fake = FakeSlurm([SlurmNode(name=n, states=OFF) for n in NODES], [waits])
    fake.partition_max_times = {"static": 36_000.0}
    return fake


def explained(site: Config, **job: Any) -> Explanation:
    return explain.explain(site, slurm(**job), "50")


def told(site: Config, pool: str = "general", **job: Any) -> str:
    (one,) = (v for v in explained(site, **job).verdicts if v.pool == pool)
    return f"{one.predicate}: {one.reason}"


def test_every_pool_has_a_verdict_and_all_is_one_document(site: Config) -> None:
    found = explained(site)
    assert [(v.cloud, v.pool, v.predicate) for v in found.verdicts] == [
        ("onprem", "rack", "filter"),
        ("aws", "general", "slurm"),
    ]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found


def test_a_job_that_slurm_has_not_asked_for_is_told_slurms_reason(site: Config) -> None:
    assert told(site) == (
        "slurm: Slurm has not asked for a machine yet: Priority: jobs with a higher priority come "
        "first"
    )


def test_the_allow_list_of_the_configuration_is_asked(site: Config) -> None:
    found = told(site, partitions=("static",), account="arts")
    assert found.startswith("account: account arts is not in allow.accounts of slurm-elastic.yaml")
    grouped = replace(site, allow=Who(groups=("no-such-group",)))
    assert told(grouped, partitions=("static",), user="root").startswith("group: root is in none")


def test_time_and_size_are_those_of_the_configuration(site: Config) -> None:
    timed = replace(site, allow=Who(accounts=("physics",), max_time=3600.0))
    assert told(timed, limit=7200).startswith("time: the job's time limit is 2h")
    assert told(timed, limit=36_000).startswith("slurm: "), "perhaps the MaxTime of static"
    assert told(site, node_count=9).startswith("size: the job asks for 9 nodes, and 8 such")
    capped = replace(site, limits=Limits(nodes=3, dollars_per_hour=5.0))
    assert told(capped, node_count=4).startswith("size: the job asks for 4 nodes, and 3 such")


@pytest.mark.parametrize(
    ("script", "conf", "words"),
    [
        ("function slurm_job_submit() end", "JobSubmitPlugins=lua\n", "does not call slurm_el"),
        ("-- slurm_elastic_submit(a, b, c)\n", "JobSubmitPlugins=lua\n", "does not call slurm_el"),
        ("--[[ slurm_elastic_submit() ]]", "JobSubmitPlugins=lua\n", "does not call slurm_elastic"),
        ("function slurm_elastic_submit() end", "JobSubmitPlugins=lua\n", "does not call"),
        (CALLS, "", "JobSubmitPlugins has no lua"),
        (None, "JobSubmitPlugins=lua\n", "the submit filter is not installed"),
    ],
)
def test_a_filter_that_is_not_called_is_told(
    site: Config, tmp_path: Path, script: str | None, conf: str, words: str
) -> None:
    (tmp_path / "slurm.conf").write_text(SITE + conf)
    lua = tmp_path / "job_submit.lua"
    lua.unlink() if script is None else lua.write_text(script)
    assert words in told(site, partitions=("static",))


def test_a_filter_that_is_called_is_no_trouble(site: Config) -> None:
    assert submit_filter.trouble(site.slurm.conf) == ""
    found = told(site, partitions=("static",))
    assert "its user chose that, an order moved it, or the submit filter added nothing" in found
    assert "scontrol update jobid=50 partition=static,burst" in found


def test_bounds_of_the_ledger_are_told(site: Config, tmp_path: Path) -> None:
    with_breaker = Ledger(tmp_path / "ledger.db")
    with_breaker.exclusions.add(
        Exclusion(kind=BREAKER, scope="general", count=3, until=4e9, cause=Quoted(text="no answer"))
    )
    with_breaker.close()
    assert told(site).startswith("bound: ")
    assert "no answer" in told(site)


def test_a_cloud_that_may_not_be_used_yet_says_what_is_missing(site: Config) -> None:
    capless = replace(site, clouds=(site.clouds[0], replace(site.clouds[1], limits=Limits())))
    assert "bound: cloud aws costs money: it has no spending cap" in told(capless)


def test_what_others_spend_and_hold_is_hidden_with_private_data(tmp_path: Path) -> None:
    busy_ledger(tmp_path / "ledger.db").close()
    site = replace(config(tmp_path), policies=SitePolicies(budget=Budget(per_day=0.01)))
    ask = ChainAsk(about="job", name="50")
    chain = read_chain(site, ask, T0 + 3700)
    (bar,) = (bar for bar in chain.obstacles.bars if bar.pool == "general")
    assert "$" in bar.reason
    for word in ("usage", "accounts", "nodes"):
        seen_bars = seen_chain(chain, Viewer.of(1, {word}, ())).obstacles.bars
        (seen,) = (bar for bar in seen_bars if bar.pool == "general")
        assert "$" not in seen.reason
        assert seen.reason.startswith("a bound of the site")
    seen = seen_chain(chain, Viewer.of(1, {"jobs"}, ()))
    assert seen.obstacles.bars == chain.obstacles.bars


@pytest.mark.parametrize(
    "limits",
    [Limits(nodes=7), Limits(dollars_per_hour=0.5), Limits(nodes=4, spot=1), Limits(on_demand=0)],
)
@pytest.mark.parametrize("wanted", range(1, 9))
def test_the_bar_of_a_pool_holds_for_each_size_of_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, wanted: int
) -> None:
    """The bar is found once, for all nodes of the pool. A pool of the job's size has the same."""
    site = replace(config(tmp_path), limits=limits)

    def reasons(ledger: Ledger) -> dict[str, str]:
        found = {bar.pool: bar.reason_for(wanted) for bar in closed_pools.bars(site, ledger, T0)}
        return {pool: reason for pool, reason in found.items() if reason}

    with contextlib.closing(busy_ledger(tmp_path / "ledger.db")) as ledger:
        of_whole_pool = reasons(ledger)
        pools = closed_pools.domain_pools(site, expand)
        cut = [replace(pool, nodes=pool.nodes[:wanted]) for pool in pools]
        monkeypatch.setattr(closed_pools, "domain_pools", lambda *_: cut)
        of_general = reasons(ledger).get("general")
    assert of_whole_pool.get("general") == of_general


def test_an_end_only_daemon_is_the_reason(site: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = explain.chain_of
    monkeypatch.setattr(
        explain,
        "chain_of",
        lambda *a: replace(chain(*a), obstacles=Obstacles(end_only="the disk is full")),
    )
    assert told(site) == "bound: the disk is full"


def test_what_slurm_does_not_know_is_refused(site: Config) -> None:
    with pytest.raises(SlurmElasticError, match="nothing is known about job 51"):
        explain.explain(site, slurm(), "51")


def test_a_job_that_runs_on_the_sites_own_nodes_needs_no_verdict(site: Config) -> None:
    own = slurm()
    own.set_job(50, "RUNNING", nodes=("st1",), reason="None")
    found = explain.explain(site, own, "50")
    assert found.verdicts == ()
    assert found.now == "job 50 of erin is RUNNING on st1, nodes of the site itself"


@pytest.mark.parametrize("width", [50, 80, 120])
def test_many_pools_are_told_in_forty_lines(site: Config, width: int) -> None:
    pools = tuple(
        PoolSettings(name=f"p{i}", cloud="aws", nodes=f"p{i}n[1-4]", cpus=4, memory=8192 + 1024 * i)
        for i in range(30)
    )
    many = replace(site, pools=pools)
    found = explained(many, partitions=("static",), node_memory=50_000)
    assert len(found.verdicts) == 30
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(found, console)
    lines = captured.get().splitlines()
    assert len(lines) <= explain.LINES
    assert max(map(len, lines)) <= width
    assert "and 22 more reasons (--all)" in captured.get()


@pytest.mark.parametrize("held", [False, True])
def test_a_pause_by_an_operator_is_the_verdict_with_who_and_why(site: Config, held: bool) -> None:
    word = Directive(
        word=Pause(scope="cloud:aws"), who="alice", since=0.0, starts=0.0, reason="new image"
    )
    with contextlib.closing(Ledger(site.state / "ledger.db")) as ledger:
        ledger.directives.give(word)
    asked = slurm()
    if held:
        reason = "slurm-elastic:hold:cloud aws is paused by alice: new image"
        for name in NODES[2:]:
            asked.set_node(name, *OFF, "DRAIN", reason=reason)
    found = explain.explain(site, asked, "50")
    (one,) = (v for v in found.verdicts if v.pool == "general")
    assert "cloud aws is paused by alice: new image" in one.reason
    chain = read_chain(site, ChainAsk(about="job", name="50"), T0)
    seen = seen_chain(chain, Viewer.of(1, {"nodes", "usage"}, ()))
    assert "paused by alice" in next(b.reason for b in seen.obstacles.bars if b.pool == "general")
