"""``doctor`` where nothing can burst: each cause is told, and it ends with what sbatch answers."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_cases import T0
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.cli.jobs.offers import gather
from slurm_elastic.cli.operate import doctor
from slurm_elastic.config import Config, SlurmSettings, configfile
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.cluster import Limits, Location, Market, Offer, Pool
from slurm_elastic.model.exclusion import POLICY, Exclusion
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.ranking import unsold
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.commands.doctor_commands import ProbingCli
from slurm_elastic.slurm.client.commands.sbatch_test_only import joined
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import bursting, clouds

ME = pwd.getpwuid(os.geteuid()).pw_name
YAML = """
cluster: {{name: alps, uuid: 11111111-1111-4111-8111-111111111111}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf, bin_dir: {state}, user: {me}}}
allow: {{accounts: [physics], qos: [normal]}}
limits: {{dollars_per_hour: 0.50}}
clouds:
  - name: far
    provider: fake
    location: public
    partition: burst
    types: {{small: {{cpus: 2, memory: 4G, price: 0.10}}}}
pools:
  - {{name: wide, cloud: far, nodes: "pub[1-4]", cpus: 2, memory: 4G, markets: [spot, on-demand]}}
"""
OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
DRAINED = frozenset({"IDLE", "CLOUD", "DRAIN"})
CALLS = "function slurm_job_submit(d, p, u)\n  return slurm_elastic_submit(d, p, u)\nend\n"


class ProbingSlurm(FakeSlurm):
    """The test decides what slurmdbd has and sbatch says; ``asked`` keeps the probes."""

    known: frozenset[str] | SlurmError = frozenset({"physics"})
    says: str | SlurmError = "Job 12 to start at 2026-11-21T03:00:00 on nodes pub1"

    def __init__(self) -> None:
        super().__init__([SlurmNode(name=f"pub{n}", states=OFF) for n in range(1, 5)])
        self.asked: list[tuple[str, str, str]] = []

    def accounts(self) -> frozenset[str]:
        if isinstance(self.known, SlurmError):
            raise self.known
        return self.known

    def member(self, account: str) -> str:
        return f"one-of-{account}"

    def test_only(self, partition: str, *, account: str = "", qos: str = "", user: str = "") -> str:
        self.asked.append((partition, account, qos))
        if isinstance(self.says, SlurmError):
            raise self.says
        return self.says


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=alps\nJobSubmitPlugins=lua\n"
        "AccountingStorageType=accounting_storage/slurmdbd\n"
        "AccountingStorageEnforce=associations\n"
    )
    (tmp_path / "job_submit.lua").write_text(CALLS)
    (tmp_path / "requests").mkdir()
    tmp_path.chmod(0o700)
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=tmp_path, me=ME))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.health.beat("slurm-elasticd", T0 - 3, os.getpid())
    yield configfile.load(path)
    ledger.close()


@pytest.fixture
def slurm() -> ProbingSlurm:
    return ProbingSlurm()


def found(config: Config, slurm: FakeSlurm) -> dict[str, Finding]:
    parts = doctor.diagnose(config, slurm, T0, quick=True).parts
    return {f.subject: f for part in parts for f in part.findings}


def test_where_all_is_well_it_ends_with_what_sbatch_answers(
    config: Config, slurm: ProbingSlurm
) -> None:
    diagnosis = doctor.diagnose(config, slurm, T0, quick=True)
    assert diagnosis.wrong == 0
    assert diagnosis.parts[-1].name == "a job of one node"
    (probe,) = diagnosis.parts[-1].findings
    assert probe.subject.startswith("sbatch --test-only in partition burst")
    assert (probe.level, probe.observed) == (FindingLevel.OK, slurm.says)
    assert slurm.asked == [("burst", "physics", "normal")]


def test_a_refused_probe_is_wrong_with_sbatchs_words(config: Config, slurm: ProbingSlurm) -> None:
    slurm.says = SlurmError(("sbatch",), 1, "Invalid account or account/partition combination")
    probe = next(f for what, f in found(config, slurm).items() if what.startswith("sbatch"))
    assert probe.level is FindingLevel.WRONG
    assert probe.observed == "Invalid account or account/partition combination"


def test_a_probe_that_the_sites_own_script_refuses_is_a_note(
    config: Config, slurm: ProbingSlurm
) -> None:
    stderr = "sbatch: error: name a project\nallocation failure: Unspecified error"
    slurm.says = SlurmError(("sbatch",), 1, stderr)
    (config.state / "job_submit.lua").write_text(f"-- the site's own\n{CALLS}")
    probe = next(f for what, f in found(config, slurm).items() if what.startswith("sbatch"))
    assert probe.level is FindingLevel.NOTE
    assert probe.observed == "refused by the site's own job_submit.lua: name a project"
    assert "slurm-elastic doctor --account NAME" in probe.advice


def test_a_named_account_is_that_of_the_probes_where_it_is_allowed(
    config: Config, slurm: ProbingSlurm
) -> None:
    everybody = replace(config, allow=Who(groups=("root",)))
    doctor.diagnose(everybody, slurm, T0, quick=True, account="maths")
    doctor.diagnose(config, slurm, T0, quick=True, account="maths")
    assert [account for _, account, _ in slurm.asked] == ["maths", "physics"]


GROWN = "\npolicies: {growth: on_demand, release: idle(600)}\n"


def hold(slurm: ProbingSlurm, *names: str) -> None:
    for name in names:
        slurm.set_node(name, *OFF, "DRAIN", reason=f"{HOLD_MARK}{GrowthStartsIt()}")


def test_nodes_that_a_growth_policy_holds_are_no_news_and_not_probed(
    config: Config, slurm: ProbingSlurm
) -> None:
    """sbatch would call a job impossible there that is served as soon as it is submitted."""
    slurm.says = SlurmError(("sbatch",), 1, "Requested node configuration is not available")
    names = [f"pub{n}" for n in range(1, 5)]
    hold(slurm, *names)
    grown = again(config, GROWN)
    with contextlib.closing(Ledger(grown.state / "ledger.db")) as ledger:
        held = [Exclusion(kind=POLICY, scope=n, pool="wide", cause=GrowthStartsIt()) for n in names]
        ledger.exclusions.add(*held)
    told = found(grown, slurm)
    probe = told["a job in partition burst"]
    assert (probe.level, probe.observed) == (
        FindingLevel.OK,
        "not tried: its growth policies start a node once a job waits",
    )
    assert slurm.asked == []
    assert [f for f in told.values() if "are held" in f.observed] == []
    assert [f for f in told.values() if f.level is FindingLevel.WRONG] == []


def test_a_node_that_no_growth_policy_holds_is_probed(config: Config, slurm: ProbingSlurm) -> None:
    hold(slurm, "pub1", "pub2", "pub3")
    found(again(config, GROWN), slurm)
    assert len(slurm.asked) == 1


def test_a_cloud_whose_nodes_take_no_job_for_now_is_no_fault(
    config: Config, slurm: ProbingSlurm
) -> None:
    """A pool that cools down, is paused or has just worked is no night's page."""
    slurm.says = SlurmError(("sbatch",), 1, "Requested node configuration is not available")
    for name in ("pub1", "pub2"):
        slurm.set_node(name, *OFF, "DRAIN", reason=f"{HOLD_MARK}pool wide cools down")
    slurm.set_node("pub3", "IDLE", "CLOUD", "POWERING_DOWN")
    slurm.set_node("pub4", *OFF, "DRAIN", reason="disk", reason_user="anna")
    probe = found(config, slurm)["a job in partition burst"]
    assert probe.level is FindingLevel.NOTE
    assert probe.observed == (
        "not tried: no node takes a job now (2 held, 1 powering down, 1 drained)"
    )
    assert slurm.asked == []


def test_a_probe_of_who_may_not_burst_is_no_fault(
    config: Config, slurm: ProbingSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root asks as somebody else, who is in the allowed account."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    slurm.says = SlurmError(("sbatch",), 1, "Invalid account or account/partition combination")
    probe = next(f for what, f in found(config, slurm).items() if what.startswith("sbatch"))
    assert probe.level is FindingLevel.NOTE
    assert probe.advice == "run this as root, which can ask as a user who is allowed there"


def test_a_cloud_that_may_not_be_used_yet_is_not_probed(
    config: Config, slurm: ProbingSlurm
) -> None:
    found(replace(config, limits=Limits()), slurm)
    assert slurm.asked == []


def test_without_an_answer_of_slurmctld_nothing_is_probed(
    config: Config, slurm: ProbingSlurm
) -> None:
    slurm.broken = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
    assert doctor.diagnose(config, slurm, T0, quick=True).parts[-1].name == "head node"
    assert slurm.asked == []


def test_accounts_that_slurmdbd_lacks_are_wrong(config: Config, slurm: ProbingSlurm) -> None:
    assert found(config, slurm)["accounts of allow.accounts"].level is FindingLevel.OK
    slurm.known = frozenset({"phisics"})
    one = found(config, slurm)["accounts of allow.accounts"]
    assert (one.level, one.observed) == (FindingLevel.WRONG, "slurmdbd has no account physics")
    slurm.known = SlurmError(("sacctmgr",), 1, "no slurmdbd")
    assert found(config, slurm)["accounts of allow.accounts"].level is FindingLevel.NOTE


def test_accounts_that_nobody_checks_are_told(
    config: Config, slurm: ProbingSlurm, tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    assert found(config, slurm)["accounts"].level is FindingLevel.OK
    conf.write_text(conf.read_text().replace("AccountingStorageEnforce=associations\n", ""))
    open_ = found(config, slurm)["accounts"]
    assert open_.level is FindingLevel.WRONG
    assert "sbatch -A" in open_.observed
    assert "the submit filter keeps jobs off" in open_.advice
    conf.write_text("ClusterName=alps\n")
    assert found(config, slurm)["accounts"].level is FindingLevel.NOTE


DAILY = "policies: {budget: {per_day: 10}}"
PAYERS = "policies: {account_budgets: {physics: {per_day: 10}}}"


@pytest.mark.parametrize("budget", [DAILY, PAYERS])
def test_a_budget_that_jobs_without_a_longest_time_may_pass_is_a_note(
    config: Config, slurm: ProbingSlurm, budget: str
) -> None:
    told = found(again(config, budget), slurm)["budget of far"]
    assert (told.level, "allow.max_time" in told.advice) == (FindingLevel.NOTE, True)


def test_a_budget_is_no_note_where_jobs_have_a_longest_time(
    config: Config, slurm: ProbingSlurm
) -> None:
    assert "budget of far" not in found(config, slurm), "there is no budget"
    timed = again(config, DAILY)
    who = replace(timed.allow, max_time=86400.0)
    assert "budget of far" not in found(replace(timed, allow=who), slurm)
    (near,) = (replace(cloud, location=Location.ON_PREMISES) for cloud in timed.clouds)
    assert "budget of far" not in found(replace(timed, clouds=(near,)), slurm)
    assert "budget of far" not in found(replace(timed, limits=Limits()), slurm), "it is shut"


@pytest.mark.parametrize(("time", "told"), [("1-00:00:00", False), ("UNLIMITED", True)])
def test_a_longest_time_of_the_sites_partitions_bounds_a_budget(
    config: Config, slurm: ProbingSlurm, time: str, *, told: bool
) -> None:
    """As our partitions inherit it."""
    with Path(config.slurm.conf).open("a") as conf:
        conf.write(f"PartitionName=DEFAULT MaxTime={time}\n")
    assert ("budget of far" in found(again(config, DAILY), slurm)) is told


def again(config: Config, more: str) -> Config:
    """The configuration with a section more."""
    path = config.state / "slurm-elastic.yaml"
    path.write_text(path.read_text() + more)
    return configfile.load(path)


def test_without_slurmdbd_accounts_are_any_words(
    config: Config, slurm: ProbingSlurm, tmp_path: Path
) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=alps\nJobSubmitPlugins=lua\n")
    slurm.known = frozenset()
    assert "accounts of allow.accounts" not in found(config, slurm)


def test_a_job_submit_lua_that_does_not_call_the_filter_is_wrong(
    config: Config, slurm: ProbingSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(config, slurm)["submit filter"].level is FindingLevel.OK
    (tmp_path / "job_submit.lua").write_text("function slurm_job_submit() return 0 end\n")
    monkeypatch.setattr(bursting, "has_plugin", lambda *_: True)
    one = found(config, slurm)["submit filter"]
    assert one.level is FindingLevel.WRONG
    assert one.observed == "the site's job_submit.lua does not call slurm_elastic_wrap"
    monkeypatch.setattr(bursting, "has_plugin", lambda *_: False)
    assert found(config, slurm)["submit filter"].level is FindingLevel.NOTE, "this Slurm has no lua"


def test_a_pool_with_most_nodes_drained_is_wrong(config: Config, slurm: ProbingSlurm) -> None:
    for n in (1, 2):
        slurm.set_node(f"pub{n}", *DRAINED, reason="broken fan", reason_user="alice")
    assert "nodes of pool wide" not in found(config, slurm), "half of them are there"
    slurm.set_node("pub3", *DRAINED, reason=f"{HOLD_MARK} no offer left")
    assert "nodes of pool wide" not in found(config, slurm), "a hold of ours comes and goes"
    slurm.set_node("pub3", *DRAINED, reason="broken fan", reason_user="alice")
    one = found(config, slurm)["nodes of pool wide"]
    assert (one.level, one.observed) == (FindingLevel.WRONG, "3 of 4 take no jobs: broken fan")


# what the cloud sells


class Sells(FakeProvider):
    """A cloud that tells prices of these markets alone."""

    markets: tuple[Market, ...] = (Market.ON_DEMAND,)

    def offers(self, pool: Pool) -> list[Offer]:
        return [offer for offer in super().offers(pool) if offer.market in self.markets]


def looked(config: Config, limits: Limits | None = None) -> dict[str, Finding]:
    cloud = config.cloud("far")
    provider = Sells(cloud, config.cluster)  # type: ignore[arg-type]
    pools = doctor.plan.pools_of(config)
    return {f.subject: f for f in clouds.look(provider, cloud, pools, limits or config.limits)}


def test_a_market_without_any_price_is_wrong(config: Config) -> None:
    one = looked(config)["spot offers of pool wide"]
    assert (one.level, one.observed) == (FindingLevel.WRONG, "the cloud gives no price for small")


def test_offers_of_which_none_can_ever_be_used_are_wrong(config: Config) -> None:
    assert looked(config)["offers of pool wide"].level is FindingLevel.OK
    one = looked(config, Limits(dollars_per_hour=0.05))["offers of pool wide"]
    assert one.level is FindingLevel.WRONG
    assert "1, none can ever be used: the cluster may spend $0.05/h" in one.observed


def test_offers_lists_what_the_cloud_does_not_sell(
    config: Config, slurm: ProbingSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = "slurm_elastic.cli.jobs.offers.open_provider"
    monkeypatch.setattr(opened, lambda cloud, cluster, _: Sells(cloud, cluster))
    (pool,) = gather(config, slurm, T0).pools
    assert [r.offer for r in pool.ranked] == ["far/small/zone-1/on-demand"]
    assert [(r.offer, r.price, r.room, r.reason) for r in pool.rejected] == [
        ("far/small/*/spot", None, 0, "the cloud gives no spot price for it")
    ]


def test_a_type_that_some_zone_sells_is_not_missing() -> None:
    pool = Pool(name="p", cloud="far", nodes=("n",), cpus=1, real_memory=1, markets=tuple(Market))
    assert unsold(pool, [], ["small"]) == tuple(("small", of) for of in Market)
    assert unsold(pool, [], []) == (), "machines are whatever the pool says"


# the commands


def test_sbatchs_words_are_told_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").touch()
    client = ProbingCli(SlurmSettings(conf=str(tmp_path / "slurm.conf"), bin_dir=str(tmp_path)))
    sbatch, scontrol = tmp_path / "sbatch", tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "Slurmctld(primary) at head is UP"\n')
    scontrol.chmod(0o755)
    sbatch.write_text('#!/bin/sh\necho "sbatch: Job 3 to start at noon: $*" >&2\n')
    sbatch.chmod(0o755)
    said = client.test_only("burst", account="physics", user="alice")
    assert said.startswith("Job 3 to start at noon: --test-only")
    assert said.endswith("--partition=burst --account=physics --uid=alice --wrap=true")
    failed = "sbatch: error: Batch job submission failed: Invalid qos specification"
    sbatch.write_text(f'#!/bin/sh\necho "{failed}" >&2\nexit 1\n')
    with pytest.raises(SlurmError) as caught:
        client.test_only("burst")
    assert joined(caught.value.stderr) == "Invalid qos specification"


def test_waiting_jobs_of_the_default_partition_alone_are_counted(tmp_path: Path) -> None:
    config = configfile.parse(YAML.format(state=tmp_path, me=ME), "slurm-elastic.yaml")
    slurm = FakeSlurm(
        jobs=[
            SlurmJob(id=n, states=frozenset({state}), partitions=partitions, uid=1001)
            for n, state, partitions in (
                (1, "PENDING", ("batch",)), (2, "PENDING", ("batch",)), (3, "PENDING", ("gpu",)),
                (4, "PENDING", ("batch", "burst")), (5, "RUNNING", ("batch",)),
            )
        ]
    )  # fmt: skip
    slurm.site_default = "batch"
    (finding,) = bursting.left_on_own_nodes(config, slurm)
    assert finding.observed == "2 of 4 are for partition batch alone, so they use no cloud"
    assert "allow: {partitions: [default]}" in finding.advice
    assert "slurm-elastic explain 1 " in finding.advice
    listed = replace(config, allow=replace(config.allow, partitions=("default",)))
    assert not [*bursting.left_on_own_nodes(listed, slurm)]
    slurm.site_default = ""
    assert not [*bursting.left_on_own_nodes(config, slurm)]
