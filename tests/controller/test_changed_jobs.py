"""Whatever parts wish for a waiting job, and in whichever order their wishes begin and end, the job
has at last what its user gave it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.controller.changed_jobs import (
    Evaluate,
    JobChange,
    change_jobs,
    hold_until_released,
    reorder,
)
from slurm_elastic.model.changed_jobs import (
    Barred,
    ChangedJob,
    Held,
    JobValues,
    Misfit,
    Redirected,
    Wish,
)
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.changed_jobs import (
    is_same_begin,
    new_record,
    request_of,
    values_of,
)
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger

NOW = 1_800_000_000.0
JOB = 7
SILENT = SlurmError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")
REFUSED = SlurmError(("scontrol",), 1, "Requested node configuration is not available")
STANDING: dict[str, Wish] = {
    "budget": Barred(until=NOW + 40_000),
    "migration": Redirected(number=1, source="onp", target="pub", is_whole=True),
    "drain": Redirected(number=2, source="pub", target="west", is_whole=False),
    "way back": Redirected(number=3, source="pub", target="onp", is_whole=True),
}
"""Wishes that their owner says at each look."""
LISTS = [("onp",), ("pub",), ("onp", "pub"), ("main", "pub", "west"), ("main",), ("west", "onp")]
BEGINS = [0.0, 3000.0, 20_000.0, 90_000.0]


class Bench:
    """One waiting job, and the owners of wishes."""

    def __init__(self, directory: Path, partitions: tuple[str, ...]) -> None:
        self.now = NOW
        self.slurm = FakeSlurm()
        self.slurm.clock = lambda: self.now
        self.slurm.set_job(JOB, "PENDING", partitions=partitions, limit=3600, uid=5, submit=NOW)
        self.own_partitions, self.own_begin = partitions, 0.0
        self.standing: set[str] = set()
        self.ledger = Ledger(directory / "ledger.db")
        clouds = [
            SimpleNamespace(partition_name="onp", location=Location.ON_PREMISES),
            SimpleNamespace(partition_name="pub", location=Location.PUBLIC),
            SimpleNamespace(partition_name="west", location=Location.PUBLIC),
        ]
        self.site: Any = SimpleNamespace(
            slurm=self.slurm, ledger=self.ledger, pool_of={}, job_lock=threading.Lock(),
            config=SimpleNamespace(clouds=clouds), now=lambda: self.now,
            monotonic=lambda: self.now, refused_changes=SharedDict(),
        )  # fmt: skip

    @property
    def job(self) -> SlurmJob:
        (job,) = self.slurm.jobs()
        return job

    def look(self, *new: Wish, is_misfit_over: bool = False) -> list[JobChange]:
        """Let all owners say their wishes. ``new``: wishes that are said once."""
        standing = {STANDING[name] for name in self.standing}
        numbers = {wish.number for wish in standing if isinstance(wish, Redirected)}

        def say(job: SlurmJob, record: ChangedJob, evaluate: Evaluate) -> ChangedJob:
            del job, evaluate
            kept = tuple(
                w for w in (*record.wishes, *new)
                if isinstance(w, Held) or (isinstance(w, Misfit) and not is_misfit_over)
            )  # fmt: skip
            said = tuple(
                w for w in sorted(standing, key=str)
                if not isinstance(w, Redirected) or w.number not in record.overruled
            )  # fmt: skip
            overruled = tuple(n for n in record.overruled if n in numbers)
            return replace(record, wishes=(*kept, *said), overruled=overruled)

        changes: list[JobChange] = []
        change_jobs(self.site, say, candidates={JOB}, report=changes.extend)
        return changes

    def restart(self) -> None:
        self.site.refused_changes = SharedDict()

    @contextmanager
    def failing(self, error: SlurmError, *, is_carried_out: bool) -> Iterator[None]:
        change = self.slurm.change_pending

        def fail(*jobs: Any, **fields: Any) -> None:
            if is_carried_out:
                change(*jobs, **fields)
            raise error

        self.slurm.change_pending = fail  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.slurm.change_pending = change  # type: ignore[method-assign]

    def act(self, action: str, argument: Any) -> None:
        """Do one thing, then look."""
        job = self.job
        new: dict[str, Wish] = {
            "too large": Misfit(
                cloud="pub", partition="pub", nodes="p[1-9]", need_s=0.0, request=request_of(job)
            ),
            "losses": Held(),
        }
        if action == "say":
            self.standing ^= {argument}
        elif action == "wait":
            self.now += 7000
        elif action == "restart":
            self.restart()
        elif action in ("lost answer", "refusal"):
            self.fail(action, argument)
        else:
            self.act_as_user(action, argument, job)
        wishes = [new[action]] if action in new else []
        self.look(*wishes, is_misfit_over=action == "limit raised")

    def act_as_user(self, action: str, argument: Any, job: SlurmJob) -> None:
        """``scontrol update``, ``uhold`` or ``release``. Values that the job shows already change
        nothing that anybody could see.
        """
        if action == "list" and {*argument} != {*job.partitions}:
            self.slurm.change_pending([JOB], partitions=argument)
            self.own_partitions = argument
        elif action == "begin" and not job.is_held:
            begin = self.now + argument if argument else 0.0
            if not is_same_begin(job.begin, begin, self.now):
                self.slurm.change_pending([JOB], begin_in=argument)
                self.own_begin = begin
        elif action == "release" and job.is_held:
            self.slurm.release(JOB)
        elif action == "hold" and not job.is_held:
            self.slurm.hold(JOB)

    def fail(self, action: str, argument: Any) -> None:
        """A look with a Slurm that gives no answer or refuses."""
        is_lost = action == "lost answer"
        error = SILENT if is_lost else REFUSED
        self.standing ^= {"migration" if is_lost else "budget"}
        with self.failing(error, is_carried_out=is_lost and argument):
            try:
                self.look()
            except SlurmError:
                self.restart()

    def end(self) -> None:
        """End all wishes. A person releases the job."""
        self.standing = set()
        self.now += 400  # refused changes are tried again
        for _ in range(4):
            self.look(is_misfit_over=True)
            if self.job.is_held:
                self.slurm.release(JOB)


ACTIONS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(sorted(STANDING))),
    st.tuples(st.just("list"), st.sampled_from(LISTS)),
    st.tuples(st.just("begin"), st.sampled_from(BEGINS)),
    st.tuples(st.just("lost answer"), st.booleans()),
    st.tuples(
        st.sampled_from(
            ["restart", "wait", "release", "hold", "refusal", "too large", "losses", "limit raised"]
        ),
        st.none(),
    ),
)


@given(partitions=st.sampled_from(LISTS), actions=st.lists(ACTIONS, max_size=12))
def test_after_all_wishes_a_job_has_what_its_user_gave_it(
    tmp_path_factory: pytest.TempPathFactory,
    partitions: tuple[str, ...],
    actions: list[tuple[str, Any]],
) -> None:
    bench = Bench(tmp_path_factory.mktemp("bench"), partitions)
    for action, argument in actions:
        bench.act(action, argument)
    bench.end()
    assert bench.job.partitions == bench.own_partitions
    assert is_same_begin(bench.job.begin, bench.own_begin, bench.now)
    assert not bench.job.is_held
    assert bench.ledger.changed_jobs.all() == ()
    bench.ledger.close()


@given(
    partitions=st.sampled_from(LISTS),
    names=st.permutations(sorted(STANDING)),
    count=st.integers(0, len(STANDING)),
)
def test_the_values_do_not_depend_on_the_order_in_which_wishes_were_said(
    partitions: tuple[str, ...], names: list[str], count: int
) -> None:
    own = JobValues(partitions=partitions)

    def values(of: list[str]) -> JobValues:
        wishes = [STANDING[name] for name in of]
        return values_of(
            own, wishes, {"pub", "west"}, is_bound=False, is_refused=lambda _: False, now=NOW
        )

    assert values(names[:count]) == values(sorted(names[:count]))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, ("onp",))
    yield made
    made.ledger.close()


def test_a_migration_leaves_jobs_of_barred_payers_where_they_are(bench: Bench) -> None:
    bench.standing = {"budget", "migration"}
    bench.look()
    assert (bench.job.partitions, bench.job.begin) == (("onp",), 0.0)
    bench.standing = {"migration"}
    bench.look()
    assert bench.job.partitions == ("pub",)
    bench.standing = {"budget", "migration"}
    bench.look()
    assert (bench.job.partitions, bench.job.begin) == (("onp",), 0.0)


def test_a_begin_time_of_ours_ends_when_the_job_lists_no_public_partition(bench: Bench) -> None:
    bench.act("list", ("pub",))
    bench.act("say", "budget")
    assert bench.job.begin == NOW + 40_000
    bench.act("list", ("onp",))
    assert bench.job.begin <= bench.now


def test_a_redirected_job_that_the_target_never_allows_has_its_own_partitions(
    bench: Bench,
) -> None:
    bench.act("say", "migration")
    assert bench.job.partitions == ("pub",)
    bench.act("too large", None)
    assert bench.job.partitions == ("onp",)
    assert not bench.job.is_held
    for _ in range(3):
        bench.look()
        assert bench.job.partitions == ("onp",), "the order does not send it again"


def test_our_hold_ends_with_its_cause_and_an_admins_hold_stays(bench: Bench) -> None:
    bench.act("list", ("pub",))
    bench.act("too large", None)
    assert bench.job.is_held
    bench.act("limit raised", None)
    assert not bench.job.is_held
    bench.act("too large", None)
    bench.slurm.set_job(JOB, "PENDING", reason="JobHeldAdmin")
    bench.act("limit raised", None)
    assert bench.job.wait_reason.is_by_admin


def test_a_job_that_asks_for_less_is_tried_again(bench: Bench) -> None:
    bench.act("list", ("pub",))
    bench.act("too large", None)
    bench.slurm.set_job(JOB, "PENDING", limit=60)
    bench.look()
    assert not bench.job.is_held


def test_a_job_that_a_person_has_released_is_not_held_again(bench: Bench) -> None:
    bench.act("list", ("pub",))
    bench.act("too large", None)
    bench.act("release", None)
    bench.look()
    assert not bench.job.is_held


def too_large_for_own_partition(job: SlurmJob) -> Misfit:
    return Misfit(
        cloud="onp", partition="onp", nodes="o[1-9]", need_s=None, request=request_of(job)
    )


def test_a_list_that_slurm_refuses_once_comes_back_although_the_job_is_held_too(
    bench: Bench,
) -> None:
    bench.look(too_large_for_own_partition(bench.job))
    bench.act("say", "migration")
    bench.standing = set()
    with bench.failing(REFUSED, is_carried_out=False):
        bench.look()
    assert (bench.job.partitions, bench.job.is_held) == (("pub",), True)
    bench.now += 60
    bench.look()
    assert (bench.job.partitions, bench.job.is_held) == (("onp",), True)


def test_a_refused_list_neither_releases_a_job_nor_counts_as_a_persons_change(
    bench: Bench,
) -> None:
    bench.look(too_large_for_own_partition(bench.job))
    bench.standing = {"migration"}
    with bench.failing(REFUSED, is_carried_out=False):
        bench.look()
    bench.look()
    assert (bench.job.partitions, bench.job.is_held) == (("onp",), True)
    bench.now += 400
    bench.look()
    assert (bench.job.partitions, bench.job.is_held) == (("pub",), False)


def test_a_user_may_choose_the_list_that_slurm_has_refused_to_us(bench: Bench) -> None:
    bench.act("list", ("onp", "pub"))
    bench.standing = {"way back"}
    with bench.failing(REFUSED, is_carried_out=False):
        bench.look()
    bench.act("list", ("onp",))
    bench.now += 400
    bench.look()
    bench.standing = set()
    bench.look()
    assert bench.job.partitions == ("onp",)


def test_a_begin_time_is_exact_although_the_round_takes_minutes(bench: Bench) -> None:
    """Slurm refuses one job of the group, so each job has a command of its own."""
    jobs = range(100, 105)
    for job in jobs:
        bench.slurm.set_job(job, "PENDING", partitions=("pub",), limit=3600, uid=5, submit=NOW)
    change = bench.slurm.change_pending

    def change_slowly(ids: Sequence[int], **fields: Any) -> None:
        if jobs[0] not in ids:
            change(ids, **fields)
        bench.now += 50
        if jobs[0] in ids:
            raise REFUSED

    bench.slurm.change_pending = change_slowly  # type: ignore[assignment, method-assign]
    until = NOW + 40_000
    change_jobs(
        bench.site,
        lambda _job, record, _evaluate: replace(record, wishes=(Barred(until=until),)),
        candidates=set(jobs),
    )
    begins = {job.id: job.begin for job in bench.slurm.jobs()}
    assert [begins[job] for job in jobs[1:]] == [until] * 4


def test_a_hold_whose_answer_was_lost_is_a_hold(bench: Bench) -> None:
    hold = bench.slurm.hold

    def lose_answer(job: int) -> None:
        hold(job)
        raise SILENT

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench.slurm, "hold", lose_answer)
        with pytest.raises(SlurmError):
            hold_until_released(bench.site, JOB)
    assert hold_until_released(bench.site, JOB)
    assert bench.job.is_held


@pytest.mark.parametrize(
    ("users", "reordered", "after"),
    [
        (("main",), [], ("main",)),
        (("main", "pub", "west"), [JOB], ("main", "west", "pub")),
    ],
)
def test_a_new_order_does_not_replace_a_list_that_a_user_has_just_given(
    bench: Bench, users: tuple[str, ...], reordered: list[int], after: tuple[str, ...]
) -> None:
    bench.act("list", ("main", "pub", "west"))
    jobs = bench.slurm.jobs()
    bench.act("list", users)
    assert reorder(bench.site, jobs, ("main", "west", "pub")) == (reordered, set())
    assert bench.job.partitions == after


def test_a_number_that_slurm_gives_to_another_job_brings_no_values_along(bench: Bench) -> None:
    bench.act("say", "migration")
    bench.slurm.remove_job(JOB)
    bench.slurm.set_job(JOB, "PENDING", partitions=("pub",), uid=6, submit=NOW + 60)
    bench.standing = set()
    bench.look()
    assert bench.job.partitions == ("pub",)
    assert bench.ledger.changed_jobs.all() == ()


def test_a_job_that_started_before_its_change_is_changed_after_its_requeue(bench: Bench) -> None:
    """slurmctld refuses the change of a started job, and that is no error."""
    bench.act("say", "migration")
    bench.look()
    bench.standing = set()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench.slurm, "change_pending", lambda *_, **__: None)
        bench.look()
    bench.slurm.set_job(JOB, "PENDING", restarts=1)
    bench.look()
    assert bench.job.partitions == ("onp",)


def test_a_new_record_has_the_order_that_the_submit_filter_noted() -> None:
    job = SlurmJob(id=1, states=frozenset({"PENDING"}), partitions=("b", "batch", "a"))
    assert new_record(job, ("a", "b"), NOW).own.partitions == ("batch", "a", "b")


def test_no_list_changes_while_only_memory_has_its_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that dies then would leave the job in a partition that is not its own for ever."""
    bench.standing = {"migration"}
    with monkeypatch.context() as full:
        full.setattr(Ledger, "end_only", "the disk is full")
        bench.look()
        assert bench.job.partitions == ("onp",)
    bench.look()
    assert bench.job.partitions == ("pub",)
    bench.standing = set()
    monkeypatch.setattr(Ledger, "end_only", "the disk is full")
    bench.look()
    assert bench.job.partitions == ("onp",), "its own list needs no record"
