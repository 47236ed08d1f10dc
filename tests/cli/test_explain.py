from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from ckpt_cases import migration_of
from ledger_cases import T0, offer
from msgspec.structs import replace
from rich.console import Console
from status_cases import busy_ledger, busy_slurm, buy, config, config_file, general_pool

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.local_time import clock
from slurm_elastic.base.units import utc_minute
from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.jobs.explain import Explanation
from slurm_elastic.cli.main import main
from slurm_elastic.cli.orders import forgotten_jobs
from slurm_elastic.cli.orders.subjects import subjects
from slurm_elastic.cli.reports.shortened import offers
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.holds import GrowthStartsIt
from slurm_elastic.model.causes.pool_failures import BootsCounted, BootsFailed
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.grouping import braces
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.audit_trail import FOLLOWED, tell_job, tell_node
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.heartbeat import Mark, leave_mark
from slurm_elastic.state.ledger import Decision, Health, Ledger
from slurm_elastic.watch.view.own_jobs import ENDED, OwnJob, OwnJobs


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def explained(state_dir: Path, subject: str, slurm: FakeSlurm | None = None) -> Explanation:
    return explain.explain(config(state_dir), slurm or busy_slurm(), subject)


def text_of(explanation: Explanation, width: int) -> str:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render(explanation, console)
    return captured.get()


def chain(explanation: Explanation) -> list[str]:
    return [f"{d.at - T0:.0f} {d.kind}" for d in explanation.decisions]


# following


def test_a_nodes_chain_is_in_time_order_with_its_jobs(ledger: Ledger, tmp_path: Path) -> None:
    found = explained(tmp_path, "pub1")
    assert chain(found) == [
        *("90 dropped", "100 ranked", "101 launched", "900 terminated", "2000 launched"),
    ]
    assert found.now == "node pub1 is CLOUD MIXED"
    assert [m.instance.id for m in found.machines] == ["i-0aaaaaaaaaaaaaaa1"]


def test_a_jobs_chain_follows_its_nodes_until_another_job_has_them(
    ledger: Ledger, tmp_path: Path
) -> None:
    found = explained(tmp_path, "42")
    assert chain(found) == ["100 ranked", "101 launched", "400 requeued", "900 terminated"]
    assert found.now == "job 42 of bob is RUNNING on pub1"
    assert explained(tmp_path, "job:42") == found


def test_a_job_whose_machines_boot_says_since_when(ledger: Ledger, tmp_path: Path) -> None:
    slurm = busy_slurm()
    slurm.set_job(42, "CONFIGURING", user="bob", nodes=("pub1",), start=T0)
    found = explain.explain(config(tmp_path), slurm, "42")
    assert found.now == (
        "job 42 of bob is CONFIGURING on pub1;"
        f" its machines boot since {utc_minute(T0 + 101)}: pub1"
    )


def test_a_job_that_slurm_has_forgotten_is_still_explained(ledger: Ledger, tmp_path: Path) -> None:
    slurm = FakeSlurm()
    both = (("pub[1-2]", 1_000_000),)
    ledger.usage.write([ChargedRun(job=42, begin=T0 + 150, end=T0 + 400, shares=both)])
    found = explained(tmp_path, "42", slurm)
    assert found.now == "job 42 is no longer in Slurm's queue"
    assert chain(found) == ["100 ranked", "101 launched", "400 requeued", "900 terminated"]
    assert {m.instance.node for m in found.machines} == {"pub1", "pub2"}


def machine_ids(state_dir: Path, subject: str, slurm: FakeSlurm | None = None) -> list[str]:
    return [m.instance.id for m in explained(state_dir, subject, slurm or FakeSlurm()).machines]


def test_a_job_has_the_machines_on_which_it_was_in_its_order(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A node's name has many machines; a machine may be older than the one left for it."""
    general = general_pool()
    for number, at, ended in ((1, 0, 50), (2, 4000, 5100), (3, 5110, 6000), (4, 6100, None)):
        buy(ledger, f"h{number}", general, offer(), T0 + at, pub7=f"i-7{number}")
        if ended:
            ledger.machines.record_end(
                "aws", [f"i-7{number}"], Quoted(text="suspended by Slurm"), T0 + ended
            )
    buy(ledger, "h8", general, offer(), T0 + 5000, pub8="i-81")
    story = [("pub7", 4100, 5120), ("pub8", 5150, 5300), ("op1", 5310, 5400)]
    ledger.usage.write([
        ChargedRun(job=60, begin=T0 + begin, end=T0 + end, shares=((node, 1_000_000),))
        for node, begin, end in story
    ])  # fmt: skip
    ledger.decisions.record(
        Decision(
            at=T0 + 4000,
            correlation="r",
            kind="ranked",
            subjects=("pub7", "job:60"),
            cause=Quoted(text=""),
        )
    )
    assert machine_ids(tmp_path, "60") == ["i-72", "i-81", "local-op1-1"]


def test_a_run_that_only_slurm_and_the_moves_know_counts(ledger: Ledger, tmp_path: Path) -> None:
    buy(ledger, "h7", general_pool(), offer(), T0 + 4000, pub7="i-71")
    ledger.machines.record_end("aws", ["i-71"], Quoted(text="suspended by Slurm"), T0 + 4200)
    buy(ledger, "h8", general_pool(), offer(), T0 + 4300, pub7="i-72")
    move = migration_of(61, uid=1)
    run = replace(move.run, nodes=("pub7",), started=T0 + 4100)
    with contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state:
        state.put(replace(move, run=run, changed=T0 + 4350))
    over = frozenset({"COMPLETED"})
    job = SlurmJob(id=61, states=over, nodes=("op1",), start=T0 + 4340, end=T0 + 4400)
    ledger.decisions.record(
        Decision(
            at=T0 + 4000,
            correlation="r",
            kind="ranked",
            subjects=("pub7", "job:61"),
            cause=Quoted(text=""),
        )
    )
    assert machine_ids(tmp_path, "61", FakeSlurm(jobs=[job])) == ["i-71", "local-op1-1"]


def test_a_job_that_took_machines_of_others_has_no_decision_and_is_told_so(
    ledger: Ledger, tmp_path: Path
) -> None:
    """As who submits while a machine is idle: nothing was bought for it, and nothing is lost."""
    buy(ledger, "h1", general_pool(), offer(), T0 + 3000, pub7="i-71")
    shares = (("pub7", 1_000_000),)
    ledger.usage.write([ChargedRun(job=61, begin=T0 + 3100, end=T0 + 3200, shares=shares)])
    slurm = FakeSlurm()
    slurm.set_job(61, "COMPLETED", nodes=("pub7",), start=T0 + 3100, end=T0 + 3200)
    found = explained(tmp_path, "61", slurm)
    assert [m.instance.id for m in found.machines] == ["i-71"]
    text = "slurm-elastic started no machine for it: it took machines that were there already."
    assert text in text_of(found, 200)
    own = tuple(replace(machine, jobs=(61,)) for machine in found.machines)
    assert "slurm-elastic" not in text_of(replace(found, machines=own), 200)


def test_the_chain_does_not_need_slurm(ledger: Ledger, tmp_path: Path) -> None:
    slurm = busy_slurm()
    slurm.broken = SlurmError(("squeue",), 1, "away")
    assert explained(tmp_path, "42", slurm).now == "Slurm does not answer: squeue: exit 1: away"
    assert len(explained(tmp_path, "pub1", slurm).decisions) == 5


def test_a_job_without_decisions_does_not_read_as_an_error(ledger: Ledger, tmp_path: Path) -> None:
    text = text_of(explained(tmp_path, "50"), 80)
    assert "job 50 of erin is PENDING (Resources)" in text
    assert "Why it gets no machine" in text
    slurm = FakeSlurm()
    slurm.set_job(62, "RUNNING", nodes=("st1",), start=T0)
    at_home = text_of(explained(tmp_path, "62", slurm), 80)
    assert at_home.index("nodes of the site itself") < at_home.index("has not acted on this job.")
    assert "ledger" not in text + at_home


def test_a_job_is_found_by_its_name_and_a_cloud_by_its_partition(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for number, submit in ((7, T0 + 5), (9, T0), (8, T0 + 9)):
        slurm.set_job(number, "RUNNING", name="train", submit=submit)
    site = config(tmp_path)
    assert subjects(site, slurm, "train") == ("8",)
    (aws,) = (cloud for cloud in site.clouds if cloud.name == "aws")
    assert subjects(site, slurm, aws.partition_name) == ("general",)
    for asked in ("cloud:aws", "pool:general"):
        assert subjects(site, slurm, asked) == ("general",), "as orders write it"
    assert subjects(site, slurm, "cloud:general") == ("cloud:general",)
    slurm.set_node("train", "IDLE")
    assert subjects(site, slurm, "train") == ("train",), "a node goes before a job"
    slurm.broken = SlurmError(("sinfo",), 1, "away")
    assert subjects(site, slurm, "trains") == ("trains",)


def test_nodes_and_partitions_of_the_site_itself_are_left_alone(
    ledger: Ledger, tmp_path: Path
) -> None:
    slurm = FakeSlurm()
    slurm.set_node("st1", "IDLE")
    slurm.partitions = {"batch": "UP"}
    node, partition = explained(tmp_path, "st1", slurm), explained(tmp_path, "batch", slurm)
    assert (node.about, partition.about) == ("site", "site")
    assert node.now == "st1 is a node of the site itself (IDLE): slurm-elastic leaves it alone"
    assert text_of(partition, 80).strip() == (
        "batch is a partition of the site itself (UP): slurm-elastic leaves it alone"
    )


def test_a_boot_that_failed_has_the_next_step(ledger: Ledger, tmp_path: Path) -> None:
    def decided(kind: str, at: float, cause: AnyCause = Quoted(text="why")) -> None:  # noqa: B008
        ledger.decisions.record(
            Decision(at=at, correlation="r", kind=kind, subjects=("pub8", "job:50"), cause=cause)
        )

    decided("launched", T0)
    decided("boot-failed", T0 + 60)
    for subject in ("pub8", "50"):
        (*_, text) = explained(tmp_path, subject).attention
        assert text.startswith("The last machine of pool general did not register; do: ")
        assert "slurm-elastic try general (it starts one machine" in text
    decided("launched", T0 + 90)
    assert not any("try general" in text for text in explained(tmp_path, "pub8").attention)
    ill = BootsFailed(node_reason="Low RealMemory", remedy="lower the pool's memory")
    decided("boot-failed", T0 + 99, BootsCounted(pool="general", in_a_row=1, failure=ill))
    (*_, text) = explained(tmp_path, "pub8").attention
    assert text == (
        "Slurm took the last machine of pool general out of service: Low RealMemory; do: lower the"
        " pool's memory"
    )
    decided("launched", T0 + 120)
    lost = BootsFailed(ended_by_others=True, remedy="find out who ends it")
    decided("boot-failed", T0 + 130, BootsCounted(pool="general", in_a_row=1, failure=lost))
    (*_, text) = explained(tmp_path, "pub8").attention
    assert text == (
        "The last machine of pool general was ended in the cloud by others, minutes after the"
        " start; do: find out who ends it"
    )


def test_a_sold_out_job_is_told_when_its_cloud_is_asked_again_and_nothing_twice(
    tmp_path: Path,
) -> None:
    error = "InsufficientInstanceCapacity: we have too few c6i.large in this zone"
    sold_out = f"8 offers: cooling down until 09:05:05 UTC after {error}"
    now, ledger, slurm = time.time(), Ledger(tmp_path / "ledger.db"), FakeSlurm()
    site = config(tmp_path)
    for node in general_pool().nodes:
        slurm.set_node(
            node, "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN", reason=f"{HOLD_MARK}{sold_out}"
        )
        ledger.exclusions.add(
            Exclusion(
                kind=CAPACITY,
                scope=node,
                pool="general",
                cause=Quoted(text=sold_out),
                until=now + 90,
            )
        )
    partition = next(cloud.partition_name for cloud in site.clouds if cloud.name == "aws")
    slurm.set_job(50, "PENDING", reason="Resources", partitions=(partition,), account="physics")
    for order, (kind, reason) in enumerate((
        ("launch-refused", f"8 offers: aws: {error}"), ("refused", sold_out),
        ("requeued", f"no machine is available for its nodes: {sold_out}"),
    )):  # fmt: skip
        detail = {"refused": [[f"aws: {error}", 8, ["aws/c6i.large/a/spot"]]]}
        ledger.decisions.record(
            Decision(
                at=now + order, correlation="r", kind=kind, subjects=("job:50",), cause=Quoted(text=reason),
                detail=detail if kind == "launch-refused" else None,
            )
        )  # fmt: skip
    found = explain.explain(site, slurm, "50")
    (text,) = found.attention
    assert text.startswith("You need to do nothing: slurm-elastic asks cloud aws again at ")
    assert clock(now + 90) in text
    console = Console(width=120, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(found, console)
    screen = " ".join(captured.get().split())
    assert screen.count(error) == 1
    assert "launch-refused 8 offers: aws: (see above) job 50" in screen
    assert "requeued no machine is available for its nodes: for the same reason" in screen
    ledger.health.report(Health(name="aws", checked=now, error="refused", code="auth"))
    assert explain.explain(site, slurm, "50").attention == ()
    ledger.close()


def test_a_configured_node_without_decisions_is_said_to_be_undecided(
    ledger: Ledger, tmp_path: Path
) -> None:
    text = text_of(explained(tmp_path, "op1"), 80)
    assert "node op1 is ALLOCATED CLOUD" in text
    assert "local-op1-1" in text
    assert "not acted" not in text


def decision(at: float, *subjects: str, kind: str = "k") -> Decision:
    return Decision(
        at=at, correlation="r", kind=kind, subjects=subjects, cause=Quoted(text=f"at {at}")
    )


def reader(*decisions: Decision):
    return lambda subject: [d for d in decisions if subject in d.subjects]


def test_a_request_for_very_many_nodes_is_not_followed_node_by_node() -> None:
    nodes = [f"n{i}" for i in range(FOLLOWED + 1)]
    whole = decision(1, *nodes, "job:7")
    later = decision(2, "n0", kind="terminated")
    assert tell_job(7, reader(whole, later)) == [whole]
    assert tell_job(7, reader(whole, later), held_now=["n0"]) == [whole, later]


def test_a_short_explanation_has_no_numbers_of_requests(ledger: Ledger, tmp_path: Path) -> None:
    console = Console(width=80, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(explained(tmp_path, "42"), console)
    assert "req-g2" not in captured.get()
    assert "          pub[1-2], job 42\n" in captured.get()
    assert "[req-g2]  pub[1-2], job 42" in text_of(explained(tmp_path, "42"), 80)


def shortly(ledger: Ledger, place: Path, saves: Mapping[int, str]) -> str:
    """The short explanation of a node on which these jobs were saved."""
    for job, reason in saves.items():
        ledger.decisions.record(
            Decision(
                at=T0 + 3000 + job, kind="ckpt-saved", cause=Quoted(text=reason), correlation="c",
                subjects=("pub1", f"job:{job}"),
            )
        )  # fmt: skip
    console = Console(width=100, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(explained(place, "pub1"), console)
    return captured.get()


def test_what_befell_several_jobs_for_one_cause_is_told_of_all_of_them(
    ledger: Ledger, tmp_path: Path
) -> None:
    told = shortly(ledger, tmp_path, dict.fromkeys((11, 12), "save 1 is whole: 4 bytes in 0.1 s"))
    assert "pub1, jobs 12, 11, 2 times since " in told


def test_the_figures_of_one_job_are_not_told_of_another(ledger: Ledger, tmp_path: Path) -> None:
    reason = "save {} is whole: 4 bytes in 0.1 s"
    told = shortly(ledger, tmp_path, {11: reason.format(2), 12: reason.format(1)})
    assert f"{reason.format(2)}\n          pub1, job 11\n" in told
    assert f"{reason.format(1)}\n          pub1, job 12\n" in told


def test_decisions_before_the_job_are_not_its_own() -> None:
    before, own = decision(1, "n1"), decision(2, "n1", "job:7")
    assert tell_job(7, reader(before, own)) == [own]


def test_a_node_shows_what_befell_its_jobs_then_but_not_later() -> None:
    own = decision(10, "n1", "job:7")
    then, later = decision(12, "job:7", kind="requeued"), decision(500, "job:7", kind="requeued")
    elsewhere = decision(13, "n2", "job:7")
    assert tell_node("n1", reader(own, then, later, elsewhere)) == [own, then]


def test_nothing_is_told_twice() -> None:
    both = decision(1, "n1", "n2", "job:7", "job:8")
    assert tell_job(7, reader(both)) == [both]
    assert tell_node("n1", reader(both)) == [both]


# what is printed


@pytest.mark.parametrize("width", [80, 160])
def test_it_reads_well(ledger: Ledger, tmp_path: Path, width: int) -> None:
    text = text_of(explained(tmp_path, "42"), width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    for wanted in (
        "ranked best offer for 2 node(s) of pool general",
        "[req-g2] pub[1-2], job 42",
        "ranked aws/c6i.xlarge/eu-west-1a/spot for 8 nodes: cheapest of 2",
        "rejected aws/c6i.xlarge/eu-west-1b/spot: cools down for 100 s: Insufficient",
        "rejected aws/c6i.xlarge/eu-west-1a/on-demand: dearer than the limit [5 $/h] allows",
        "requeued no machine is available for its nodes: spot reclaim",
    ):
        assert wanted in words
    lines = text.splitlines()
    assert all(x.startswith(" " * 12) for x in lines if "rejected" in x)


def test_long_lists_of_offers_are_cut_and_say_so(ledger: Ledger, tmp_path: Path) -> None:
    rejected = [[f"aws/t{i}/z/spot", "too dear"] for i in range(30)]
    detail: dict[str, object] = {"rejected": rejected, "note": "x", "limits": {"nodes": 3}}
    kept = Decision(
        at=T0 + 9,
        correlation="r",
        kind="ranked",
        subjects=("op1",),
        cause=Quoted(text="why"),
        detail=detail,
    )
    ledger.decisions.record(kept)
    text = text_of(explained(tmp_path, "op1"), 100)
    assert text.count("too dear") == 20
    assert "and 10 more (--json has all)" in text
    assert "note: x" in text
    assert 'limits: {"nodes":3}' in text


def test_why_a_pool_starts_no_machine_is_told_first(ledger: Ledger, tmp_path: Path) -> None:
    paused = Directive(word=Pause(scope="pool:rack"), who="ann", since=0.0, starts=0.0)
    ledger.directives.give(paused)
    found = explained(tmp_path, "rack")
    assert "; no machine starts: pool rack is paused by ann; growth slurm" in found.now
    assert "Decisions about its nodes: slurm-elastic explain NODE" in text_of(found, 200)


def test_a_reason_that_stands_just_above_is_not_repeated() -> None:
    why = "aws: ExpiredToken: The security token included in the request is expired"
    said = [
        Decision(at=T0, correlation="r", kind=kind, subjects=("job:7",), cause=Quoted(text=reason))
        for kind, reason in (
            ("no-offers", why), ("refused", why), ("requeued", f"no machine is available for its nodes: {why}"),
            ("launched", "c6i"),
        )
    ]  # fmt: skip
    found = Explanation(subject="7", about="job", now="", machines=(), decisions=tuple(said))
    console = Console(width=200, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(found, console)
    text = captured.get()
    assert text.count(why) == 1
    assert "no machine is available for its nodes: for the same reason" in text
    assert text_of(found, 200).count(why) == 3, "--all has each whole"


def test_a_decision_on_many_jobs_names_a_few(ledger: Ledger, tmp_path: Path) -> None:
    ledger.decisions.record(decision(T0 + 9, "op1", *(f"job:{n}" for n in range(100, 120))))
    assert "jobs 100, 101, 102, 103, 104, 105 and 14 more" in text_of(
        explained(tmp_path, "op1"), 80
    )


def test_json_has_everything(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.show(config(tmp_path), busy_slurm(), "42", as_json=True) == 0
    out = capsys.readouterr().out
    found = msgspec.json.decode(out, type=Explanation)
    assert found.job is not None
    assert (found.job.id, found.job.nodes) == (42, "pub1")
    assert replace(found, job=None) == explained(tmp_path, "42")
    assert msgspec.json.decode(out)["version"] == 1


# cost and start


@pytest.mark.parametrize("whole", [True, False])
def test_a_jobs_explanation_ends_with_its_cost_and_start(
    ledger: Ledger, tmp_path: Path, *, whole: bool
) -> None:
    cloud = next(cloud for cloud in config(tmp_path).clouds if cloud.name == "aws")
    waits = SlurmJob(
        id=45, states=frozenset({"PENDING"}), user="ann", reason="Priority", cpus=1, limit=3600,
        partitions=(cloud.partition_name,), submit=T0,
    )  # fmt: skip
    slurm = FakeSlurm(nodes=tuple(busy_slurm().nodes().values()), jobs=(waits,))
    console = Console(width=100, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.show(config(tmp_path), slurm, "45", whole=whole, console=console)
    cost, start = captured.get().splitlines()[-2:]
    assert re.fullmatch(r"Cost: \$0\.00 so far, at most \$[\d.]+ \(by the dearest price\)\.", cost)
    assert re.fullmatch(
        r"Expected start: (now|in ~\w+) in partition \S+\. This is a rough guess: .*", start
    )


def test_an_explanation_has_no_cost_of_a_job_that_its_reader_may_not_see(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise SlurmElasticError("slurm-elasticd answers as many as it can at once")

    monkeypatch.setattr(explain, "own_jobs_of", refused)
    console = Console(width=100, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        assert explain.show(config(tmp_path), busy_slurm(), "42", console=console) == 0
    assert "Cost:" not in captured.get()
    assert "launched" in captured.get()


# unknown subjects


@pytest.mark.parametrize(
    "subject", ["nonsense", "42_1", "static9", "", "-1", "٤٢", "\udcff", "9" * 5000]
)
def test_an_unknown_subject_gets_a_sentence(ledger: Ledger, tmp_path: Path, subject: str) -> None:
    with pytest.raises(SlurmElasticError, match="neither a node, a partition, a pool"):
        explained(tmp_path, subject)


def test_an_unknown_job_gets_a_sentence(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(SlurmElasticError, match="nothing is known about job 999: no decision"):
        explained(tmp_path, "999")
    slurm = busy_slurm()
    slurm.broken = SlurmError(("squeue",), 1, "away")
    with pytest.raises(SlurmElasticError, match="and Slurm does not answer"):
        explained(tmp_path, "999", slurm)


def test_the_command_ends_with_1_and_a_sentence(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path)
    assert main(["--config", str(path), "explain", "nonsense"]) == 1
    err = capsys.readouterr().err
    assert "nothing is known about 'nonsense'" in err
    assert "Traceback" not in err
    assert main(["--config", str(path), "explain", "pub1"]) == 0
    assert "launched" in capsys.readouterr().out


def test_without_a_ledger_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path)
    assert main(["--config", str(path), "explain", "op1"]) == 1
    assert "there is no ledger at" in capsys.readouterr().err
    (tmp_path / "ledger.db").write_text("no database" * 100)
    assert main(["--config", str(path), "explain", "op1"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_pools_chain_is_what_its_policies_did(ledger: Ledger, tmp_path: Path) -> None:
    plan = {"now": {"queue": [1, 2, 3]}, "plan": {"starts": [["general", 2, "work"]]}}
    ledger.decisions.record(
        Decision(
            at=T0 + 5, correlation="policy", kind="policy",
            subjects=("pool:general", "pub1", "pub2"), cause=Quoted(text="2 more in pool general: work"),
            detail=plan,
        )
    )  # fmt: skip
    found = explained(tmp_path, "general")
    assert found.about == "pool"
    states = "1 in use, 2 booting, 2 held, 1 down, 1 powered down, 1 powering down"
    assert found.now.startswith(f"pool general of cloud aws: {states}; ")
    assert found.now.endswith("; growth slurm, release by Slurm's SuspendTime")
    assert "pub2: down: Not responding" in found.attention
    last = [one.instance.node for one in found.machines[-2:]]
    assert "pub2" in last, "what needs somebody is not left out where only some are shown"
    assert chain(found) == ["5 policy"]
    assert {m.pool for m in found.machines} == {"general"}
    shown = text_of(found, 120)
    assert "2 more in pool general: work" in shown
    assert "[policy]  pub[1-2]" in shown
    assert "queue" not in shown, "what was measured is for programs"
    assert "5 policy" in chain(explained(tmp_path, "pub1"))


def test_a_pool_names_the_nodes_that_a_health_check_keeps_after_their_machine(
    ledger: Ledger, tmp_path: Path
) -> None:
    slurm = FakeSlurm()
    slurm.set_node(
        "pub3", "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN", reason="NHC: /scratch", reason_user="root"
    )
    (text,) = explain.explain(config(tmp_path), slurm, "general").attention[-1:]
    assert text.startswith("node pub3 is drained by root: NHC: /scratch")
    assert text.endswith("do: after its repair: scontrol update nodename=pub3 state=idle")


# what it is asked about


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("pub1", ("pub1",)),
        ("general", ("general",)),
        ("aws", ("general",)),
        ("onprem", ("rack",)),
        ("pub[1-2],op1", ("pub1", "pub2", "op1")),
        ("18", ("18",)),
        ("18.batch", ("18",)),
        ("18.0", ("18",)),
        ("18_3", ("21",)),
        ("18_3.extern", ("21",)),
        ("18_9", ("18",)),
        ("18_[3-5]", ("18",)),
        ("18_[1-100]", ("18",)),
        ("18_[1-10%2]", ("18",)),
        ("18_[1-10]%2", ("18",)),
        ("18_[1,3-5...]", ("18",)),
        ("18_[1,3-5,...]", ("18",)),
        ("18_[0-99:3]", ("18",)),
        ("18+0", ("18",)),
        ("18+3", ("21",)),
        ("job:18", ("job:18",)),
        ("ghost", ("ghost",)),
        ("node.example", ("node.example",)),
    ],
)
def test_what_slurms_commands_show_may_be_asked_about(
    tmp_path: Path, asked: str, meant: tuple[str, ...]
) -> None:
    job = SlurmJob(id=21, states=frozenset({"RUNNING"}), array=18, task=3)
    assert subjects(config(tmp_path), FakeSlurm(jobs=[job]), asked) == meant


@pytest.mark.parametrize(("asked", "number"), [("50+0", "50"), ("49+1", "50")])
def test_a_part_of_a_heterogeneous_job_is_explained_by_the_name_that_squeue_shows(
    ledger: Ledger, tmp_path: Path, asked: str, number: str
) -> None:
    (meant,) = subjects(config(tmp_path), busy_slurm(), asked)
    assert meant == number
    assert "job 50 of erin is PENDING" in text_of(explained(tmp_path, meant), 80)


def test_a_task_of_an_array_is_named_as_squeue_names_it(ledger: Ledger, tmp_path: Path) -> None:
    slurm = busy_slurm()
    slurm.set_job(51, "RUNNING", user="erin", array=18, task=3, nodes=("pub1",))
    (meant,) = subjects(config(tmp_path), slurm, "18_3")
    assert "job 18_3 of erin is RUNNING on pub1" in text_of(explained(tmp_path, meant, slurm), 80)


def test_the_number_of_an_array_leads_to_its_other_tasks(ledger: Ledger, tmp_path: Path) -> None:
    """After scancel the number is that of a task that never ran."""
    slurm = busy_slurm()
    slurm.set_job(18, "CANCELLED", user="erin", array=18, task=5)
    for number, task in ((51, 3), (52, 4)):
        slurm.set_job(number, "CANCELLED", user="erin", array=18, task=task, nodes=("pub1",))
    text = " ".join(text_of(explained(tmp_path, "18", slurm), 80).split())
    assert "2 other tasks of this array had machines and costs of their own" in text
    assert "do: slurm-elastic explain 18_3" in text
    assert "has not acted" not in text


def test_a_task_that_slurm_has_forgotten_is_found_in_the_records(
    ledger: Ledger, tmp_path: Path
) -> None:
    """It took a machine of others, so that no decision names it; ``mine`` lists it."""
    buy(ledger, "h1", general_pool(), offer(), T0 + 3000, pub7="i-71")
    shares = (("pub7", 1_000_000),)
    ledger.usage.write([
        ChargedRun(job=17, label="17_3", begin=T0 + 3100, end=T0 + 3200, shares=shares),
        ChargedRun(job=61, label="17_2", begin=T0 + 3100, end=T0 + 3200, shares=shares),
    ])  # fmt: skip
    (meant,) = subjects(config(tmp_path), FakeSlurm(), "17_2")
    assert meant == "61"
    found = explained(tmp_path, meant, FakeSlurm())
    assert found.now == "job 17_2 is no longer in Slurm's queue"
    assert [m.instance.id for m in found.machines] == ["i-71"]


def test_decisions_name_the_tasks_of_an_array_as_squeue_does(
    ledger: Ledger, tmp_path: Path
) -> None:
    """Task 33_2 is still in Slurm, task 33_1 only in the records."""
    share = (("pub1", 1_000_000),)
    ledger.usage.write([ChargedRun(job=35, label="33_1", begin=T0, end=T0 + 9, shares=share)])
    ledger.decisions.record(
        Decision(
            at=T0 + 950,
            correlation="r",
            kind="requeued",
            subjects=("pub1", "job:35", "job:36", "job:42"),
            cause=Quoted(text="x"),
        )
    )
    slurm = busy_slurm()
    slurm.set_job(36, "RUNNING", user="erin", array=33, task=2, nodes=("pub1",))
    for subject in ("pub1", "36"):
        found = explained(tmp_path, subject, slurm)
        assert "jobs 33_1, 33_2, 42" in text_of(found, 120)
        assert found.labels == {35: "33_1", 36: "33_2"}


def test_a_forgotten_task_on_nodes_of_the_site_is_found_as_mine_lists_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = OwnJob(
        id=61, label="17_2", state=ENDED, user="ann", slurm_state="COMPLETED", nodes="st1", ended=T0
    )
    rows = OwnJobs(at=T0, user="ann", since=0.0, jobs=(row,))
    monkeypatch.setattr(forgotten_jobs, "own_jobs_of", lambda *_: rows)
    (meant,) = subjects(config(tmp_path), FakeSlurm(), "17_2")
    found = explained(tmp_path, meant, FakeSlurm())
    assert found.now.startswith("job 17_2 of ann ended at ")
    assert found.now.endswith(" (COMPLETED) on st1; Slurm's queue no longer has it")


def test_a_name_that_is_none_is_told_all_forms_of_a_jobs_name(
    ledger: Ledger, tmp_path: Path
) -> None:
    with pytest.raises(SlurmElasticError, match=re.escape("(18, 18_3, 18+1, 18.batch)")):
        explained(tmp_path, "17+")


def test_a_node_that_a_growth_policy_holds_calls_for_nobody(ledger: Ledger, tmp_path: Path) -> None:
    """Its growth policy starts it when a job waits, though it is a drained one for Slurm."""
    slurm = busy_slurm()
    reason = f"{HOLD_MARK}{GrowthStartsIt()}"
    slurm.set_node("pub7", "IDLE", "CLOUD", "POWERED_DOWN", "DRAIN", reason=reason)
    found = explained(tmp_path, "pub7", slurm)
    assert found.attention == ()
    assert reason in text_of(found, 120)


def test_a_task_of_an_array_is_asked_for_by_the_array_while_slurm_is_away(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.broken = SlurmError(("squeue",), 1, "away")
    assert subjects(config(tmp_path), slurm, "18_3") == ("18",)


@pytest.mark.parametrize(
    ("asked", "said"), [("pub[1-17]", "17 nodes, and at most 16"), ("pub[1-", "hostlist")]
)
def test_a_hostlist_that_is_none_or_too_long_gets_a_sentence(
    tmp_path: Path, asked: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        subjects(config(tmp_path), FakeSlurm(), asked)


def test_each_node_of_a_hostlist_is_explained(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.show(config(tmp_path), busy_slurm(), "pub[1-2]", as_json=True) == 0
    documents = [
        msgspec.json.decode(x, type=Explanation) for x in capsys.readouterr().out.splitlines()
    ]
    assert [d.subject for d in documents] == ["pub1", "pub2"]


def test_a_decision_on_very_many_nodes_is_told_in_a_few_lines(
    ledger: Ledger, tmp_path: Path
) -> None:
    names = tuple(f"pub{n}" for n in range(1, 4000, 2))
    ledger.decisions.record(decision(T0, *names, "job:77", kind="launched"))
    console = Console(width=80, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        explain.render_short(explained(tmp_path, "77"), console)
    text = captured.get()
    assert "launched" in text
    assert "pub[1,3,5," in text
    assert len(text.splitlines()) <= explain.LINES


def test_a_daemon_that_does_not_run_is_told_first(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_mark(tmp_path, Mark(time.time() - 900, os.getpid()))
    explain.show(config(tmp_path), busy_slurm(), "42")
    said = capsys.readouterr().out
    assert said.startswith("slurm-elasticd is NOT RUNNING (last sign of life 15m ago)")
    leave_mark(tmp_path, Mark(time.time(), os.getpid()))
    explain.show(config(tmp_path), busy_slurm(), "42")
    assert "NOT RUNNING" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["aws/c5/a/spot"], "aws/c5/a/spot"),
        (["aws/c5/a/spot", "aws/m5/a/spot"], "aws c5, m5 in a (spot)"),
        (
            ["aws/c5/a/spot", "aws/c5/b/spot", "aws/c5/b/on-demand"],
            "aws c5 in a (spot), b (on-demand, spot)",
        ),
        (["aws/c5/a/spot/pool", "aws/c5/b/spot/pool"], "aws/c5/{a, b}/spot/pool"),
        (["aws/*/*/spot"], "aws/*/*/spot"),
    ],
)
def test_offers_are_named_so_that_no_name_is_broken_inside(keys: list[str], told: str) -> None:
    assert [offers(text) for text in braces(sorted(keys))] == [told]
