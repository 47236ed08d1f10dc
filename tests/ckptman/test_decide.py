"""The decisions over all situations: pure, so that any situation can be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.ckptman.decide import MOVE, JobFacts, plan_all
from slurm_elastic.config.job_checkpoint import MethodChoice, policy_of, resolve, resolve_for
from slurm_elastic.config.sections.checkpoint import (
    CheckpointSettings,
    PoolCheckpoint,
    SignalSettings,
)
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import Mount
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.save_refusals import NO_COMPONENTS
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import Never, save_seconds
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.checkpoint.threat import ThreatCause
from tests.controller.world import FakeCloud, make_config

NOW = 1_800_000_000.0
SLACK = 5.0


def facts(
    *,
    job: int = 7,
    left: float | None = None,
    dump: float = 10.0,
    worked: float = 600.0,
    threatened: bool = True,
    choice: MethodChoice | None = None,
) -> JobFacts:
    deadline = None if left is None else NOW + left
    notice = Notice(instance="i", kind=NoticeKind.INTERRUPTION, seen=NOW, deadline=deadline)
    run = JobRun(
        job=job, label=str(job), attempt=0, user="", uid=1, gid=1, nodes=("n",), partition="p",
        started=NOW - worked,
    )  # fmt: skip
    situation = Situation(
        job=str(job), now=NOW, launched=NOW - worked, started=NOW - worked, dump=dump,
        notices=(notice,) if threatened else (),
    )  # fmt: skip
    return JobFacts(
        run=run, choice=choice or MethodChoice(method="fake", policy=policy_of("on_notice")),
        situations=(situation,), threatened=("n",) if threatened else (),
        cause=ThreatCause.RECLAIM if threatened else None,
        deadline=deadline if threatened else None, threat=Quoted(text="a notice") if threatened else None,
    )  # fmt: skip


times = st.floats(0, 600) | st.none()


@given(left=times, dump=st.floats(0, 300), worked=st.floats(1, 1e6))
def test_no_save_is_begun_that_would_end_after_the_deadline(
    left: float | None, dump: float, worked: float
) -> None:
    (plan,) = plan_all([facts(left=left, dump=dump, worked=worked)], SLACK)
    assert plan.kind == MOVE
    if plan.saves and left is not None:
        assert NOW + dump + SLACK <= NOW + left


@given(st.lists(st.tuples(times, st.floats(1, 1e5)), max_size=30))
def test_the_nearest_deadline_comes_first_then_the_most_work(
    jobs: list[tuple[float | None, float]],
) -> None:
    drawn = [facts(job=n, left=left, worked=worked) for n, (left, worked) in enumerate(jobs)]
    found = plan_all(drawn, SLACK)
    assert len(found) == len(jobs)
    keys = [(p.facts.deadline or float("inf"), -p.facts.at_risk) for p in found]
    assert keys == sorted(keys)


def test_an_interactive_job_cannot_be_moved_but_may_be_saved() -> None:
    held = facts(left=100.0)
    fixed = JobFacts(**{f: getattr(held, f) for f in held.__struct_fields__} | {"can_move": False})
    (plan,) = plan_all([fixed], SLACK)
    assert plan.kind == "save"


def test_a_job_that_ends_when_it_saves_is_saved_only_to_be_moved() -> None:
    ends = MethodChoice(
        method="signal", policy=policy_of("first_of(on_notice, daly)"), move_only=True
    )
    assert plan_all([facts(threatened=False, worked=1e6, choice=ends)], SLACK) == ()
    (plan,) = plan_all([facts(left=100.0, choice=ends)], SLACK)
    assert plan.saves


def test_a_job_without_a_method_is_moved_without_a_save() -> None:
    (plan,) = plan_all(
        [facts(left=100.0, choice=MethodChoice(method="none", policy=Never()))], SLACK
    )
    assert (plan.kind, plan.saves) == (MOVE, False)


def test_the_jobs_word_comes_before_the_pools_and_that_before_the_sites() -> None:
    site = CheckpointSettings(method="criu", directory="/shared", policy="hour")
    pool = PoolCheckpoint(method="dmtcp", policy="daly")
    assert resolve("", "", PoolCheckpoint(), site).method == "criu"
    chosen = resolve("project x", "", pool, site)
    assert (chosen.method, chosen.policy) == ("dmtcp", policy_of("daly"))
    own = resolve("a b;ckpt=signal,saved=file:x,signal=USR2 c", "", pool, site)
    assert (own.method, own.options) == ("signal", {"saved": "file:x", "signal": "USR2"})
    assert not own.move_only
    assert resolve("ckpt=signal", "", pool, site).move_only
    line = CheckpointSettings(signal=SignalSettings(saved="line:done"))
    assert not resolve("ckpt=signal", "", pool, line).move_only


@pytest.mark.parametrize(
    ("comment", "pool", "site", "closes"),
    [
        ("ckpt=criu", None, "keep", False),
        ("ckpt=criu", None, "close", True),
        ("ckpt=criu", "keep", "close", False),
        ("ckpt=criu", "close", "keep", True),
        ("ckpt=criu,tcp=close", "keep", "keep", True),
        ("ckpt=criu,limit,tcp=keep", "close", "close", False),
        ("ckpt=dmtcp", "close", "close", False),
        ("", "close", "keep", False),
    ],
)
def test_connections_are_closed_by_the_word_that_is_nearest_to_the_job(
    comment: str, pool: str | None, site: str, closes: bool
) -> None:
    found = resolve(comment, "", PoolCheckpoint(tcp=pool), CheckpointSettings(tcp=site))
    assert found.options == ({"tcp": "close"} if closes else {})


def test_a_word_that_cannot_be_followed_is_refused_with_a_reason() -> None:
    site = CheckpointSettings(method="fake")
    for comment, why in {
        "ckpt=": "ckpt=: expected one of none",
        "ckpt=crui": "ckpt=crui: expected one of none",
        "ckpt=signal,KILL": "'KILL' is no KEY=VALUE",
        "ckpt=signal,signal=KILL": "signal=KILL: expected a signal",
        "ckpt=signal,saved=file:/etc/passwd": "saved=file:/etc/passwd: expected exit",
        "ckpt=signal,saved=file:../x": "saved=file:../x: expected exit",
        "ckpt=signal,sign=x": "sign: expected one of signal",
        "ckpt=criu,tcp=shut": "tcp=shut: expected one of keep, close",
        "ckpt=criu,tcp": "'tcp' is no KEY=VALUE",
        "ckpt=criu,tpc=close": "tpc: expected one of tcp, limit",
        "ckpt=dmtcp,tcp=close": "tcp: expected one of limit",
        "ckpt=signal,scope=all": "scope=all: expected one of batch, full",
        "ckpt=signal,blocking=maybe": "blocking=maybe: expected one of yes, no",
    }.items():
        choice = resolve(comment, "", PoolCheckpoint(), site)
        assert choice.method == "none"
        assert why in str(choice.refused)


CRIU, DMTCP = {"comment": "ckpt=criu,limit"}, {"features": "ckpt_dmtcp"}
NO_BATCH: dict[str, Any] = {"batch": False}
TWO_NODES: dict[str, Any] = {"nodes": ("n1", "n2")}


@pytest.mark.parametrize(
    ("word", "kind", "why"),
    [
        (CRIU, NO_BATCH, "saves batch jobs of one node, and this is no batch job (srun, salloc)"),
        (CRIU, TWO_NODES, "saves batch jobs of one node, and this one has 2"),
        (DMTCP, NO_BATCH, "saves batch jobs, and this is no batch job (srun, salloc)"),
    ],
)
def test_a_job_of_a_kind_that_its_own_method_does_not_save_is_refused(
    word: dict[str, str], kind: dict[str, Any], why: str
) -> None:
    site, pool = CheckpointSettings(directory="/shared"), PoolCheckpoint()
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",))
    own = replace(job, **word)
    method = "dmtcp" if "features" in word else "criu"
    assert choice_of(own, pool, site) == resolve(own.comment, own.features, pool, site)
    refused = choice_of(replace(own, **kind), pool, site)
    assert (refused.method, str(refused.refused)) == ("none", f"{method} {why}")
    signal = replace(job, comment="ckpt=signal", **kind)
    assert choice_of(signal, pool, site).method == "signal"


@pytest.mark.parametrize("method", ["signal", "criu", "dmtcp"])
@pytest.mark.parametrize("place", ["site", "pool", "job"])
def test_a_component_of_a_heterogeneous_job_is_not_saved_by_any_method(
    method: Any, place: str
) -> None:
    """Slurm requeues all components, and the others would start over."""
    site = CheckpointSettings(directory="/shared", method=method if place == "site" else "none")
    pool = PoolCheckpoint(method=method if place == "pool" else None)
    comment = f"ckpt={method}" if place == "job" else ""
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",), comment=comment)
    assert choice_of(job, pool, site).method == method
    refused = choice_of(replace(job, het_job=7), pool, site)
    assert (refused.method, str(refused.refused)) == ("none", NO_COMPONENTS)


class JoiningCloud(FakeCloud, frozen=True, kw_only=True):
    """A fake cloud whose machines make the mounts of ``join.mounts``."""

    by_user_data: ClassVar[bool] = True


def choice_of(
    job: SlurmJob,
    pool: PoolCheckpoint,
    site: CheckpointSettings,
    *mounts: Mount,
    data: Data = Data.SHARED,
) -> MethodChoice:
    """The choice for a job on the public cloud's pool, whose cloud has ``data``."""
    plain = make_config(Path("/nowhere"), checkpoint=site)
    cloud = JoiningCloud(**{**msgspec.structs.asdict(plain.clouds[1]), "data": data})
    join = replace(plain.join, mounts=mounts)
    config = replace(plain, clouds=(plain.clouds[0], cloud), join=join)
    return resolve_for(job, replace(plain.pools[1], checkpoint=pool), config)


COPIED = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("pub1",), directory="/home/a/../b/w")


def test_a_sign_that_is_a_file_is_refused_where_files_are_copied() -> None:
    """The file is on the machine, and the head would wait for it in vain at each save."""
    pool, site = PoolCheckpoint(), CheckpointSettings(directory="/shared")
    file = replace(COPIED, comment="ckpt=signal,saved=file:state")
    assert choice_of(file, pool, site).method == "signal"
    refused = choice_of(file, pool, site, data=Data.COPY)
    assert refused.method == "none"
    assert str(refused.refused) == (
        "the head cannot see file:state before its run ends, because its cloud copies files"
        " (data: copy): saved=exit and saved=line:TEXT work there"
    )
    of_site = CheckpointSettings(method="signal", signal=SignalSettings(saved="file:state"))
    assert choice_of(COPIED, pool, of_site, data=Data.COPY).method == "none"
    for sign in ("exit", "line:saved"):
        other = replace(COPIED, comment=f"ckpt=signal,saved={sign}")
        assert choice_of(other, pool, site, data=Data.COPY).method == "signal"


@pytest.mark.parametrize("method", ["criu", "dmtcp"])
def test_a_job_whose_files_are_copied_is_saved_only_to_be_moved(method: str) -> None:
    """If its machine is lost, an image does not fit to the files that the head has."""
    pool, site = PoolCheckpoint(), CheckpointSettings(directory="/shared")
    job = replace(COPIED, comment=f"ckpt={method}")
    choice = choice_of(job, pool, site, data=Data.COPY)
    assert (choice.method, choice.move_only, choice.refused) == (method, True, None)
    assert str(choice.why_move_only).startswith("its files come back only when its run ends")
    assert plan_all([facts(threatened=False, worked=1e6, choice=choice)], SLACK) == ()
    assert not choice_of(job, pool, site).move_only


def test_a_directory_that_the_machine_mounts_is_not_copied() -> None:
    pool, site = PoolCheckpoint(), CheckpointSettings(directory="/shared")
    job = replace(COPIED, comment="ckpt=signal,saved=file:state")
    for path, method in (("/home/b", "signal"), ("/home/a", "none")):
        mount = Mount(path=path, source=f"head:{path}")
        assert choice_of(job, pool, site, mount, data=Data.COPY).method == method


def test_a_job_of_several_nodes_has_dmtcp_if_it_names_it() -> None:
    site, pool = CheckpointSettings(directory="/shared"), PoolCheckpoint()
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), **TWO_NODES, **DMTCP)
    assert choice_of(job, pool, site).method == "dmtcp"


def test_several_nodes_by_the_pools_word_are_found_out_by_a_save_so_that_their_user_is_told() -> (
    None
):
    pool, site = PoolCheckpoint(method="criu"), CheckpointSettings(directory="/shared")
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1", "n2"))
    assert choice_of(job, pool, site).method == "criu"
    assert choice_of(replace(job, batch=False), pool, site).method == "none"


@given(st.text())
def test_no_comment_can_break_anything(comment: str) -> None:
    assert resolve(comment, "", PoolCheckpoint(), CheckpointSettings()).method in ("none", "fake")
    assert resolve(f"ckpt=signal,{comment}", "", PoolCheckpoint(), CheckpointSettings()).policy


def test_the_next_save_is_taken_to_be_a_quarter_longer_than_the_last_three() -> None:
    assert save_seconds([], 60.0) == 60.0
    assert save_seconds([4.0, 8.0, 2.0, 100.0], 60.0) == 10.0


def test_a_feature_that_the_job_asks_for_names_the_method() -> None:
    pool, site = PoolCheckpoint(method="dmtcp"), CheckpointSettings(method="blcr")
    for features in (
        "ckpt_criu",
        "bigmem&ckpt_criu",
        "[rack1|rack2]&ckpt_criu*2",
        "ckpt_criu&ckpt_x",
    ):
        assert resolve("project x", features, pool, site).method == "criu"
    assert resolve("ckpt=signal", "ckpt_criu", pool, site).method == "signal", (
        "the comment is nearer"
    )
    for other in ("", "bigmem", "fast_ckpt_criu", "ckpt_criu2", "ckpt_ssd"):
        assert resolve("", other, pool, site).method == "dmtcp"
    refused = resolve("", "[ckpt_criu|ckpt_signal]", pool, site)
    assert refused.method == "none"
    assert str(refused.refused) == (
        "the constraint [ckpt_criu|ckpt_signal] names ckpt_criu, ckpt_signal: expected one of them"
    )
