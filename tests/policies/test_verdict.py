"""Why a pending job gets no machine: a table of one failing predicate each."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.verdict import (
    Asker,
    PoolBar,
    PoolCase,
    PoolNodeCounts,
    ReservedNodes,
    Verdict,
    could_run,
    grouped,
    most_nodes,
    need,
    verdicts,
)
from slurm_elastic.policies.launch.waiting import fixed_arrays, is_counted, is_limit_fixed, sentence
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.nodes.out_of_service import DrainTerms

POOL = Pool(
    name="gpu",
    cloud="aws",
    nodes=("g1", "g2", "g3", "g4"),
    cpus=8,
    real_memory=32000,
    gres={"gpu:a100": 2},
    features=("fast",),
    markets=(Market.SPOT, Market.ON_DEMAND),
)
OFF = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
BUSY = frozenset({"ALLOCATED", "CLOUD"})
DRAINED = frozenset({"IDLE", "CLOUD", "DRAIN"})


def nodes(*states: frozenset[str], reason: str = "") -> PoolNodeCounts:
    return PoolNodeCounts.of(
        [
            SlurmNode(name=name, states=of, reason=reason if "DRAIN" in of else "")
            for name, of in zip(POOL.nodes, states, strict=True)
        ],
        DrainTerms(),
    )


CASE = PoolCase(
    pool=POOL,
    partition="burst",
    accounts=("physics", "bio"),
    groups=("chem",),
    qos=("normal",),
    max_time=7200,
    interactive=False,
    most=4,
    nodes=nodes(OFF, OFF, OFF, OFF),
)
JOB = SlurmJob(
    id=7,
    states=frozenset({"PENDING"}),
    user="erin",
    account="physics",
    qos="normal",
    partitions=("static", "burst"),
    reason="Priority",
    limit=3600,
)
UNLISTED = replace(JOB, partitions=("static",))
ASKER = Asker(
    job=JOB, now=1000.0, groups=frozenset({"chem"}), default="static", ours=frozenset({"burst"}),
    max_times={"static": None, "long": 36_000.0},
)  # fmt: skip


def verdict(job: SlurmJob, case: PoolCase = CASE, **asker: Any) -> Verdict:
    (one,) = verdicts(replace(ASKER, job=job, **asker), [case])
    return one


SPARED = replace(CASE, pool=replace(POOL, on_demand_nodes=2))
OFF_SPOT = "the job may not be requeued (sbatch --requeue, or --comment=spot=ok)"


@pytest.mark.parametrize(
    ("case", "changes", "reason"),
    [
        (CASE, {}, f"it may have spot machines, and {OFF_SPOT}"),
        (CASE, {"comment": "a;spot=ok"}, ""),
        (replace(CASE, no_requeue_on_spot=("Physics",)), {}, ""),
        (replace(CASE, no_requeue_on_spot=("all",)), {}, ""),
        (SPARED, {}, ""),
        (SPARED, {"node_count": 3}, f"all but 2 of its nodes may have spot machines, and {OFF_SPOT}"),
    ],
)  # fmt: skip
def test_a_job_that_must_not_be_requeued_stays_off_spot_machines(
    case: PoolCase, changes: dict[str, Any], reason: str
) -> None:
    row = verdict(replace(UNLISTED, requeue=False, **changes), case)
    assert (row.reason if row.predicate == "requeue" else "") == reason


def test_a_job_that_names_the_partition_of_a_spot_pool_is_not_excluded_from_it() -> None:
    """slurm-elasticd buys its machine on demand."""
    assert verdict(changed(JOB, requeue=False)).predicate != "requeue"


def test_a_listed_spot_pool_is_excluded_if_other_nodes_can_hold_the_job() -> None:
    job = changed(JOB, requeue=False)
    steady = replace(CASE, pool=replace(POOL, name="od", markets=(Market.ON_DEMAND,)))
    rows = verdicts(replace(ASKER, job=job), [CASE, steady])
    assert [row.predicate == "requeue" for row in rows] == [True, False]


@pytest.mark.parametrize(("avoided", "is_users"), [((), False), (("st1",), True)])
def test_nodes_that_the_submit_filter_excludes_are_no_choice_of_the_user(
    avoided: tuple[str, ...], *, is_users: bool
) -> None:
    """The filter excludes the spot nodes of the listed cloud. Another cloud is not listed."""
    other = replace(CASE, partition="far", pool=replace(POOL, name="far", nodes=("f1",)))
    job = changed(JOB, requeue=False, excluded=(*POOL.nodes[:2], *avoided))
    _, row = verdicts(replace(ASKER, job=job, ours=frozenset({"burst", "far"})), [SPARED, other])
    assert ("names nodes to avoid (-x)" in row.reason) == is_users


@pytest.mark.parametrize(
    ("allowed", "partitions", "words"),
    [
        ((), ("other",), "the job names partition other; only jobs that name none may get burst"),
        ((), ("static", "other"), "the job names partition static,other; only jobs that name none"),
        (("gpu",), ("other",), "names partition other; only jobs that name partition gpu may get"),
        (("gpu",), ("static",), "the job is for partition static; only jobs that name partition"),
        (("gpu", "big"), ("gpu", "big"), "names partition gpu,big; only jobs that name partition gpu or big alone may"),
    ],
)  # fmt: skip
def test_a_cloud_for_jobs_of_other_partitions(
    allowed: tuple[str, ...], partitions: tuple[str, ...], words: str
) -> None:
    case = replace(CASE, site_partitions=allowed)
    row = verdict(replace(UNLISTED, partitions=partitions), case)
    assert row.predicate == "partition"
    assert words in row.reason
    assert row.reason.endswith("(allow.partitions of cloud aws)")


def test_a_named_partition_that_the_cloud_allows_is_no_reason() -> None:
    case = replace(CASE, site_partitions=("gpu", "big"))
    row = verdict(replace(UNLISTED, partitions=("gpu",), account="arts"), case)
    assert row.predicate == "account"
    assert verdict(replace(JOB, partitions=("gpu", "burst")), case).predicate == "slurm"


def changed(job: SlurmJob = JOB, **fields: Any) -> SlurmJob:
    return replace(job, **fields)


@pytest.mark.parametrize(
    ("job", "predicate", "words"),
    [
        (changed(partitions=("other",)), "partition", "the job names partition other"),
        (changed(UNLISTED, required=("st1",)), "partition", "names nodes (-w)"),
        (changed(UNLISTED, excluded=("st1",)), "partition", "names nodes to avoid (-x)"),
        (changed(UNLISTED, reservation="beam"), "partition", "names a reservation"),
        (
            changed(UNLISTED, account="arts"), "account",
            "account arts is not in allow.accounts of slurm-elastic.yaml, which names bio, physics",
        ),
        (changed(UNLISTED, account=""), "account", "Slurm knows none for the job"),
        (
            changed(account="arts", reason="AccountNotAllowed", partitions=("burst",)), "account",
            "account arts is not in allow.accounts",
        ),
        (changed(UNLISTED, qos="long"), "qos", "QOS long is not in allow.qos"),
        # Slurm admits accounts below an allowed one, and these limits refuse no account.
        (
            changed(account="bio-sub", reason="AssocGrpCpuLimit"), "kept",
            "AssocGrpCpuLimit: a limit of its account or user is reached",
        ),
        (
            changed(
                account="bio-sub", qos="long", reason="QOSNotAllowed", partitions=("burst",)
            ), "qos",
            "QOS long is not in allow.qos",
        ),
        (changed(UNLISTED, batch=False), "interactive", "use sbatch"),
        (changed(UNLISTED, requeue=False), "requeue", "may not be requeued"),
        (changed(UNLISTED, limit=9000), "time", "time limit is 2h 30m, the partition's 2h"),
        (changed(UNLISTED, features="fast&old"), "features", "lack the feature old"),
        (changed(UNLISTED, gres="gres:gpu:4"), "gres", "have 2 gpu, the job asks for 4"),
        (changed(UNLISTED, gres="gres/gpu:v100:1"), "gres", "have 0 gpu:v100, the job asks for 1"),
        (changed(UNLISTED, gres="gres:tpu"), "gres", "have 0 tpu, the job asks for 1"),
        (changed(UNLISTED, node_cpus=16, cpus=16), "cpus", "have 8 CPUs, the job asks for 16"),
        (changed(UNLISTED, node_memory=64000), "memory", "have 32000 MiB, the job asks for 64000"),
        (changed(UNLISTED, cpu_memory=9000, node_cpus=4), "memory", "asks for 36000 on one"),
        (changed(node_count=5), "size", "asks for 5 nodes, and 4 such can be up together at most"),
        (changed(cpus=33), "size", "asks for 5 nodes"),
        (UNLISTED, "filter", "scontrol update jobid=7 partition=static,burst"),
        (changed(reason="Dependency"), "kept", "Dependency: it waits for the jobs that it depends"),
        (changed(reason="DependencyNeverSatisfied"), "kept", "never starts"),
        (changed(reason="QOSMaxJobsPerUserLimit"), "kept", "has as much as the QOS allows"),
        (changed(reason="BeginTime", start=2000.0), "kept", "its begin time has not come"),
        (changed(reason="JobHeldUser"), "kept", "held by its user"),
        (
            changed(
                reason="JobHeldUser", states=frozenset({"PENDING", "REQUEUE_HOLD"}), exit_code=3
            ),
            "kept",
            "Slurm holds it since its script ended with 3 (--requeue=expedite or RequeueExitHold)",
        ),
        (
            JOB, "slurm",
            "Slurm has not asked for a machine yet: Priority: jobs with a higher priority",
        ),
        (changed(reason="Odd"), "slurm", "Odd: see squeue(1), JOB REASON CODES"),
        (changed(reason=""), "slurm", "slurmctld has not looked at it yet"),
    ],
)  # fmt: skip
def test_the_first_predicate_that_fails_is_told(job: SlurmJob, predicate: str, words: str) -> None:
    found = verdict(job)
    assert (found.cloud, found.pool, found.predicate) == ("aws", "gpu", predicate)
    assert words in found.reason


@pytest.mark.parametrize("reason", ["JobHeldUser", "BeginTime", "DependencyNeverSatisfied"])
def test_another_partition_is_no_advice_for_a_job_that_it_does_not_start(reason: str) -> None:
    found = verdict(changed(UNLISTED, reason=reason, start=2000.0))
    assert found.predicate == "filter"
    assert "do:" not in found.reason


def test_the_rest_of_an_array_that_keeps_no_limit_is_told() -> None:
    rest = changed(array=7, tasks=4, task_list="3-6", limit=None)
    assert verdict(rest).predicate == "slurm", "no task has started"
    found = verdict(rest, fixed_arrays=frozenset({7}))
    assert found.predicate == "time"
    assert found.reason == (
        "its first task started without a time limit, which the other tasks keep; the partition's"
        " is 2h; do: scontrol update jobid='7_[3-6]' timelimit=120"
    )


def test_a_job_that_no_machine_helped_is_told_what_came_up_for_it() -> None:
    row = UnhelpedJob(job=7, asks="", since=400.0, nodes=("pub1", "pub2"), reason="Resources")
    found = verdict(JOB, unhelped=row)
    assert found.predicate == "unhelped"
    assert found.reason == (
        "pub[1-2] came up for it and no job used them (10m ago, Slurm's reason: Resources); the"
        " growth policy starts nothing more for it for 1h 50m, or until what it asks for changes; do:"
        " slurm-elastic clear job:7"
    )
    untouched = changed(id=7, array=7, tasks=4, limit=None)
    assert verdict(untouched).predicate == "slurm", "no task of this array has started"


def test_a_user_of_no_allowed_group_is_told_the_groups() -> None:
    found = verdict(UNLISTED, groups=frozenset({"arts"}))
    assert (found.predicate, found.reason) == (
        "group",
        "erin is in none of the groups that may use it: chem",
    )
    assert verdict(UNLISTED, groups=None).predicate == "filter", "unknown speaks against nothing"


def test_a_child_of_an_allowed_account_that_slurm_let_in_is_believed() -> None:
    assert verdict(changed(account="physics-students")).predicate == "slurm"


def test_bounds_of_the_ledger_come_after_what_the_job_itself_lacks() -> None:
    shut = replace(CASE, bar=PoolBar(pool="gpu", reason="the budget of today is spent"))
    assert verdict(JOB, shut).reason == "the budget of today is spent"
    assert verdict(changed(node_count=5), shut).predicate == "size"
    assert verdict(changed(reason="Dependency"), shut).predicate == "kept"


def test_nodes_out_of_service_and_in_use_are_told() -> None:
    low = "Low RealMemory (reported:22956 < 100.00% of configured:32000)"
    out = replace(CASE, nodes=nodes(DRAINED, DRAINED, DRAINED, OFF, reason=low))
    found = verdict(changed(node_count=2), out)
    assert found.predicate == "health"
    assert found.reason.startswith("3 of its 4 nodes take no jobs: Low RealMemory")
    assert "do: set `real_memory: 22900`" in found.reason
    assert verdict(JOB, out).predicate == "slurm", "one node is there, and one is asked for"
    busy = replace(CASE, nodes=nodes(BUSY, BUSY, BUSY, BUSY))
    assert verdict(JOB, busy).reason == "4 of its 4 nodes are in use"
    assert verdict(JOB, replace(CASE, nodes=None)).predicate == "slurm"


def test_pools_of_one_partition_serve_a_job_together_up_to_the_clouds_cap() -> None:
    mate = replace(CASE, pool=replace(POOL, name="more", nodes=("m1", "m2")), most=2, nodes=None)
    asker = replace(ASKER, job=changed(node_count=6))
    assert [v.predicate for v in verdicts(asker, [CASE, mate])] == ["slurm", "slurm"]
    capped = [replace(case, cloud_most=5) for case in (CASE, mate)]
    assert [v.predicate for v in verdicts(asker, capped)] == ["size", "size"]
    (one,) = grouped(verdicts(asker, capped))
    assert one[:2] == ("aws", ("gpu", "more"))


def test_a_filter_that_is_not_called_is_the_reason() -> None:
    off = replace(CASE, unlisted="the site's job_submit.lua does not call slurm_elastic_submit")
    assert verdict(UNLISTED, off).reason.startswith("the site's job_submit.lua does not call")
    assert verdict(JOB, off).predicate == "slurm"


def test_a_job_that_the_filter_gave_another_cloud_alone_has_not_named_it() -> None:
    elsewhere = changed(partitions=("onprem",), account="arts")
    assert verdict(elsewhere, ours=frozenset({"onprem", "burst"})).predicate == "account"


# what growth policies ask


def test_the_first_task_that_starts_fixes_the_limit_of_the_others() -> None:
    running = SlurmJob(
        id=8, array=7, task=1, states=frozenset({"RUNNING"}), start=5.0, nodes=("st1",)
    )
    others, untouched = changed(array=7, tasks=5), changed(id=9, array=9, tasks=5)
    arrays = fixed_arrays([running, others, untouched, JOB])
    assert arrays == {7}
    assert is_limit_fixed(others, arrays)
    assert not any(is_limit_fixed(one, arrays) for one in (untouched, JOB))
    assert not is_limit_fixed(others, ()), "none of its tasks has started"


def test_what_a_node_has_decides_whether_it_could_be_a_jobs() -> None:
    assert could_run(changed(gres="gres:gpu:a100:2", features="fast,aws,gpu"), POOL)
    assert could_run(changed(gres="cpu:4"), POOL), "since 23.11 a task's CPUs stand there"
    for none in ("none", "NONE", "gres:none", "gres/none"):
        assert could_run(changed(gres=none), POOL), "sbatch --gres=none asks for no gres"
    assert could_run(changed(job_gres="gres/gpu:8"), POOL), "--gpus: Slurm takes more nodes then"
    assert need(changed(job_gres="gres/gpu:8", node_count=1, cpus=1), POOL) == 4
    assert not could_run(changed(job_gres="gres/tpu:1"), POOL)
    assert not could_run(changed(gres="gres/gpu:3", node_count=2), POOL), "that is of each node"
    assert could_run(changed(features="fast|old"), POOL), "an expression is Slurm's to judge"
    assert not could_run(changed(gres="gres:gpu"), replace(POOL, gres={}))
    assert not could_run(changed(features="old"), POOL)


def test_a_job_takes_so_many_nodes_as_its_cpus_need() -> None:
    assert [need(changed(cpus=c), POOL) for c in (1, 8, 9, 64)] == [1, 1, 2, 8]


def test_dollars_and_the_pools_own_limit_bound_its_nodes() -> None:
    assert most_nodes(POOL, 0.5, (None, None)) == 4
    assert most_nodes(replace(POOL, max_nodes=3), 0.5, (5.0, None)) == 3
    assert most_nodes(POOL, 0.1, (0.2, 5.0)) == 2, "a billionth of slack"
    assert most_nodes(POOL, 0.0, (0.2,)) == 4


def test_a_begin_time_keeps_a_job_until_it_comes() -> None:
    later = changed(reason="BeginTime", start=2000.0)
    assert (is_counted(later, 1999), is_counted(later, 2000)) == (False, True)
    assert is_counted(changed(reason="Resources"), 0)


def test_what_slurm_adds_to_its_reason_is_told() -> None:
    job = changed(reason="ReqNodeNotAvail", description="UnavailableNodes:g1")
    assert sentence(job).endswith("is not available (UnavailableNodes:g1)")


# at the very bounds


@pytest.mark.parametrize(
    "job",
    [
        changed(node_cpus=8, cpus=8),
        changed(node_memory=32000),
        changed(cpu_memory=32000),
        changed(cpu_memory=4000, node_cpus=8, cpus=8),
        changed(gres="gres/gpu:2"),
        changed(limit=7200),
        changed(limit=None),
        changed(limit=9000, min_limit=7200),
        # As Slurm shows a job without a limit of its own that it tried there last.
        changed(limit=36_000, partitions=("long", "burst")),
        changed(limit=36_000, partitions=("unknown", "burst")),
        changed(node_count=4),
        changed(cpus=32),
    ],
)
def test_what_is_just_enough_keeps_no_job(job: SlurmJob) -> None:
    assert verdict(job).predicate == "slurm"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (7260, "time limit is 2h 1m, the partition's 2h (sbatch -t)"),
        (7201, "time limit is 2h, the partition's"),
        (36_000, "time limit is 10h, the partition's"),
    ],
)
def test_a_time_limit_is_told_in_hours_and_minutes(limit: int, words: str) -> None:
    assert words in verdict(changed(limit=limit)).reason


@pytest.mark.parametrize(
    ("reason", "predicate"),
    [
        ("Resources", "slurm"),
        ("Priority", "slurm"),
        ("None", "time"),
        ("PartitionTimeLimit", "time"),
    ],
)
def test_a_limit_that_slurm_admits_in_the_only_partition_is_not_over_it(
    reason: str, predicate: str
) -> None:
    """As by a QOS with the flag PartitionTimeLimit."""
    job = changed(limit=9000, partitions=("burst",), reason=reason)
    assert verdict(job).predicate == predicate


def test_a_minimum_over_the_partitions_limit_is_told() -> None:
    job = changed(limit=36_000, min_limit=9000, partitions=("long", "burst"))
    assert verdict(job).reason == (
        "the job's time limit is 2h 30m, the partition's 2h (sbatch --time-min)"
    )


@pytest.mark.parametrize(("most", "words"), [(3540, "59m"), (3599, "59m"), (3600, "1h")])
def test_the_partitions_limit_is_told_in_minutes_up_to_an_hour(most: int, words: str) -> None:
    found = verdict(JOB, replace(CASE, max_time=most - 60.0))
    assert found.reason.startswith("the job's time limit is 1h, the partition's ")
    assert verdict(changed(limit=9000), replace(CASE, max_time=most)).reason.endswith(
        f"the partition's {words} (sbatch -t)"
    )


def test_a_job_that_asks_for_memory_by_cpu_gets_one_cpu_at_least() -> None:
    asked = changed(cpu_memory=33000, node_cpus=0)
    assert verdict(asked).reason == "its nodes have 32000 MiB, the job asks for 33000 on one"


def test_gpus_of_all_nodes_together_ask_for_enough_nodes() -> None:
    assert [need(changed(job_gres=f"gres/gpu:{n}"), POOL) for n in (1, 2, 3, 4, 5)] == [
        1, 1, 2, 2, 3,
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "gres:", "gres/"])
def test_cpus_and_memory_of_each_gpu_count(prefix: str) -> None:
    """The pool's nodes have 2 GPUs, 8 CPUs and 32000 MiB."""

    def asked(**fields: str) -> SlurmJob:
        return changed(node_count=1, cpus=1, **{k: f"{prefix}gpu:{v}" for k, v in fields.items()})

    assert could_run(asked(gres="2", gres_cpus="4", gres_memory="16000"), POOL)
    too_many = asked(gres="2", gres_cpus="5")
    assert verdict(too_many).reason == "its nodes have 8 CPUs, the job asks for 10 on one"
    too_much = asked(gres="a100:2", gres_memory="16001")
    assert verdict(too_much).reason == "its nodes have 32000 MiB, the job asks for 32002 on one"
    assert could_run(asked(job_gres="2", gres_cpus="5"), POOL), "on two nodes"
    assert need(asked(job_gres="2", gres_cpus="5"), POOL) == 2
    assert need(asked(job_gres="4", gres_cpus="4"), POOL) == 2
    assert need(asked(job_gres="4", gres_memory="16001"), POOL) == 4
    assert not could_run(asked(job_gres="1", gres_cpus="9"), POOL)


def test_a_cap_that_is_a_whole_number_of_nodes_allows_them() -> None:
    assert 0.3 / 0.1 < 3, "as computers divide"
    assert most_nodes(POOL, 0.1, (0.3,)) == 3
    assert most_nodes(POOL, 0.1, (0.29,)) == 2
    assert most_nodes(replace(POOL, max_nodes=9), 0.1, ()) == 4


# who is let in


@pytest.mark.parametrize(
    ("job", "predicate"),
    [
        (changed(UNLISTED, account="Physics"), "filter"),
        (changed(UNLISTED, qos="NORMAL"), "filter"),
        (changed(account="arts", reason="AccountNotAllowed", partitions=("burst",)), "account"),
        # The other partition may be the one that refuses it.
        (changed(account="bio-sub", reason="AccountNotAllowed"), "kept"),
        (changed(account="arts", reason="AssocGrpCpuLimit"), "kept"),
        (changed(account="arts", reason="InvalidAccount"), "kept"),
        (changed(account="arts", reason="BadConstraints", partitions=("burst",)), "kept"),
        (changed(qos="long", reason="QOSNotAllowed", partitions=("burst",)), "qos"),
        (changed(qos="long", reason="QOSNotAllowed"), "kept"),
        (changed(qos="long", reason="QOSMaxJobsPerUserLimit"), "kept"),
    ],
)
def test_who_slurm_let_in_is_believed_unless_it_says_otherwise(
    job: SlurmJob, predicate: str
) -> None:
    assert verdict(job).predicate == predicate


def test_a_user_that_nobody_knows_is_told_the_groups() -> None:
    found = verdict(changed(UNLISTED, user=""), groups=frozenset({"arts"}))
    assert found.reason == "its user is in none of the groups that may use it: chem"
    free = replace(CASE, accounts=(), groups=(), qos=())
    stranger = changed(UNLISTED, account="arts", qos="long")
    assert verdict(stranger, free, groups=frozenset()).predicate == "filter"


def test_without_a_default_partition_no_name_is_a_choice() -> None:
    assert verdict(changed(partitions=("other",)), default="").predicate == "filter"


# nodes that take no jobs


@pytest.mark.parametrize(
    ("states", "wanted", "predicate", "words"),
    [
        ((DRAINED, DRAINED, BUSY, OFF), 2, "health",
         "2 of its 4 nodes take no jobs and 1 is busy: low"),
        ((DRAINED, BUSY, BUSY, OFF), 2, "health",
         "1 of its 4 nodes take no jobs and 2 are busy: low"),
        ((DRAINED, BUSY | {"DRAIN"}, OFF, OFF), 3, "health", "2 of its 4 nodes take no jobs: low"),
        ((DRAINED, DRAINED, BUSY, OFF), 1, "slurm", ""),
        ((DRAINED, BUSY, OFF, OFF), 2, "slurm", ""),
        ((BUSY, BUSY, BUSY, OFF), 2, "in use", "3 of its 4 nodes are in use"),
        ((BUSY, BUSY, OFF, OFF), 2, "slurm", ""),
    ],
)  # fmt: skip
def test_nodes_that_are_away_are_told_where_too_few_are_left(
    states: tuple[frozenset[str], ...], wanted: int, predicate: str, words: str
) -> None:
    found = verdict(changed(node_count=wanted), replace(CASE, nodes=nodes(*states, reason="low")))
    assert found.predicate == predicate
    assert words in found.reason


def test_the_reason_of_most_nodes_is_told() -> None:
    reasons = ("", f"{HOLD_MARK} no offer", f"{HOLD_MARK} no offer", "fan")
    some = [
        SlurmNode(name=name, states=DRAINED, reason=reason)
        for name, reason in zip(POOL.nodes, reasons, strict=True)
    ]
    counts = PoolNodeCounts.of(some, DrainTerms())
    assert verdict(JOB, replace(CASE, nodes=counts)).reason == (
        "4 of its 4 nodes take no jobs: no offer"
    )
    bare = replace(CASE, nodes=nodes(*[DRAINED] * 4))
    assert verdict(JOB, bare).reason.endswith(": without a reason")


def test_pools_of_another_partition_do_not_serve_the_job_together() -> None:
    other = replace(CASE, pool=replace(POOL, name="more"), partition="other", nodes=None)
    asker = replace(ASKER, job=changed(node_count=6, partitions=("burst", "other")))
    assert [v.predicate for v in verdicts(asker, [CASE, other])] == ["size", "size"]


def test_a_job_of_two_pools_could_do_with_all_nodes_of_each() -> None:
    mate = replace(CASE, pool=replace(POOL, name="more", nodes=("m1", "m2")), nodes=None)
    busy = replace(CASE, nodes=nodes(BUSY, OFF, OFF, OFF))
    asker = replace(ASKER, job=changed(node_count=6))
    assert [v.predicate for v in verdicts(asker, [busy, mate])] == ["in use", "slurm"]


# reservations and partitions

FUT = ReservedNodes(
    name="fut", nodes=frozenset({"g1", "g2", "g3"}), start=1240.0, end=2440.0,
    text="reservation fut (root, maintenance) will have g[1-3]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (changed(limit=480, node_count=2), FUT.text + "; the job has a limit of 8m, sbatch -t 4"
         " fits before; do: scontrol update jobid=7 timelimit=4"),
        (changed(limit=480, node_count=1), None),  # g4 is free
        (changed(limit=240, node_count=2), None),  # it ends before
        (changed(limit=480, node_count=2, reservation="fut"), None),
        (changed(limit=None, node_count=2), FUT.text + "; the job has no limit, sbatch -t 4"
         " fits before; do: scontrol update jobid=7 timelimit=4"),
        (changed(limit=480, node_count=2, array=7, tasks=4, task_list="3-6"),  # others may run
         FUT.text + "; the job has a limit of 8m, sbatch -t 4"
         " fits before; do: scontrol update jobid='7_[3-6]' timelimit=4"),
    ],
)  # fmt: skip
def test_a_reservation_in_the_way_is_told_with_what_fits_before(
    job: SlurmJob, words: str | None
) -> None:
    asker = replace(ASKER, job=job, now=1000.0)
    (found,) = verdicts(asker, [replace(CASE, max_time=None, reserved=(FUT,))])
    if words is None:
        assert found.predicate != "reserved"
    else:
        assert (found.predicate, found.reason) == ("reserved", words)


def test_a_reservation_that_has_begun_leaves_no_time() -> None:
    asker = replace(ASKER, job=changed(limit=480, node_count=2), now=1300.0)
    (found,) = verdicts(asker, [replace(CASE, reserved=(FUT,))])
    assert (found.predicate, found.reason) == ("reserved", FUT.text)


def test_a_partition_that_starts_nothing_is_told() -> None:
    shut = "partition burst is INACTIVE; do: scontrol update partitionname=burst state=up"
    (found,) = verdicts(ASKER, [replace(CASE, shut=shut)])
    assert (found.predicate, found.reason) == ("partition state", shut)


# what Slurm says


def test_a_requeued_job_is_told_when_slurm_starts_it() -> None:
    again = changed(reason="Priority", restarts=1, start=1090.0)
    found = verdict(again)
    assert (found.predicate, found.reason) == (
        "requeued", "it was requeued: Slurm starts it in 1m 30s at the earliest",
    )  # fmt: skip


def test_a_script_whose_error_nobody_knows_is_held_for_an_error() -> None:
    held = changed(reason="JobHeldUser", states=frozenset({"PENDING", "REQUEUE_HOLD"}))
    assert "since its script ended with an error (" in sentence(held)


def test_a_reason_that_slurm_has_not_yet_is_no_reason() -> None:
    assert sentence(changed(reason="None")) == sentence(changed(reason=""))
