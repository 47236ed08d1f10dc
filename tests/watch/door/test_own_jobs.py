"""A user's own jobs: the figures of `cost`, the reasons of `status`, and nothing of other users."""

from __future__ import annotations

import json
import os
import pickle
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import msgspec
import needs
import pytest
from cost_cases import NOW, T, book, config_file, machine
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.processes import bounded_process
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.cli.jobs import mine
from slurm_elastic.config import Config, configfile
from slurm_elastic.features.growth import closed_pools
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.money.account_budgets import Overdrawn
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state import statedir
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door import answers, own_jobs
from slurm_elastic.watch.door.answers import DoorAnswers
from slurm_elastic.watch.door.questions import CostAsk, DoorAnswer, OwnJobsAsk
from slurm_elastic.watch.door.records import read_costs, read_facts
from slurm_elastic.watch.door.server import Door
from slurm_elastic.watch.door.visibility import Viewer, seen_facts
from slurm_elastic.watch.view.own_jobs import MAX_ROWS, OwnJob, OwnJobs

NOBODY, BEN = 65534, 1001
RUN = (
    "import sys; sys.path[:0] = {path!r}; from slurm_elastic.cli.main import main; sys.exit(main())"
)


def job(number: int, state: str = "RUNNING", uid: int = NOBODY, **fields: object) -> SlurmJob:
    plain = SlurmJob(
        id=number, states=frozenset({state}), uid=uid, user="nobody" if uid == NOBODY else "ben",
        name=f"job{number}", partitions=("aws",), limit=3600, submit=T, cpus=4, node_cpus=1,
    )  # fmt: skip
    return replace(plain, **fields)


JOBS = (
    job(20, nodes=("pub4",), start=T + 5400),
    job(21, "PENDING", reason="Resources", priority=5, submit=T + 7000),
    job(22, "PENDING", uid=BEN, reason="Resources", priority=9, submit=T + 7000),
    job(23, "COMPLETED", start=T + 6000, end=T + 6600, nodes=("st1",), partitions=("batch",)),
    job(24, "RUNNING", uid=BEN, nodes=("op1",), start=T + 2060),
)  # fmt: skip
NODES = {
    **{
        f"pub{n}": SlurmNode(name=f"pub{n}", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}),
            partitions=("aws",), cpus=4)
        for n in range(1, 9)
    },
    "st1": SlurmNode(name="st1", states=frozenset({"IDLE"}), partitions=("batch",), cpus=4),
}  # fmt: skip


class Site:
    """The ledger of ``cost_cases`` with one more machine, on which nobody's job 20 runs."""

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, config_file(root)
        self.slurm_conf = root / "state" / "slurm.conf"
        with statedir.private_umask():
            self.ledger = book(root / "state" / "ledger.db")
        self.private()
        self._machine_of_job_20(self.ledger)
        self.slurm = FakeSlurm(nodes=tuple(NODES.values()), jobs=JOBS)

    def _machine_of_job_20(self, ledger: Ledger) -> None:
        ledger.machines.adopt(machine("pub4", T + 5000, 0.36), "burst", T + 5000)
        ledger.machines.record_registration("aws", ["i-pub4"], T + 5300)
        ledger.usage.write((
            ChargedRun(job=20, begin=T + 5400, end=None, label="20", user="nobody", uid=NOBODY,
                account="physics", partition="aws", shares=(("pub4", 500_000),)),
        ))  # fmt: skip

    @property
    def config(self) -> Config:
        return configfile.load(self.file)

    def private(self, *words: str) -> None:
        line = f"PrivateData={','.join(words)}\n" if words else ""
        self.slurm_conf.write_text(f"ClusterName=alps\n{line}")
        self.slurm_conf.chmod(0o644)

    def answers(self) -> DoorAnswers:
        return DoorAnswers(self.config, self.slurm, lambda: NOW)

    def told(self, uid: int = NOBODY, **ask: object) -> DoorAnswer:
        line = msgspec.json.encode(OwnJobsAsk(**{"since": NOW - 86400, **ask}))
        return msgspec.json.decode(self.answers()(Peer(uid=uid), line), type=DoorAnswer)

    def jobs(self, uid: int = NOBODY, **ask: object) -> dict[int, OwnJob]:
        answer = self.told(uid, **ask)
        assert answer.own_jobs is not None, answer.error
        return {row.id: row for row in answer.own_jobs.jobs}


@pytest.fixture
def served_site(open_path: Path) -> Iterator[Site]:
    """A site whose answers are made in a process of their own, as slurm-elasticd makes them."""
    # A busy machine may take longer to start the process that answers.
    seconds = round(patience(bounded_process.TIMEOUT_S))
    with mock.patch.object(bounded_process, "TIMEOUT_S", seconds):
        made = Site(open_path)
        yield made
        made.ledger.close()


@pytest.fixture
def site(served_site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The same without that process, whose start takes longer than its answer."""
    monkeypatch.setattr(answers, "run_bounded", call_pickled)
    return served_site


def call_pickled(function: Callable[..., object], *args: object) -> object:
    """Call a function with what another process would get, and return what it would send."""
    same, copies = pickle.loads(pickle.dumps((function, args)))
    return pickle.loads(pickle.dumps(same(*copies)))


def test_costs_are_those_of_cost_by_job(site: Site) -> None:
    costs = read_costs(site.config, CostAsk(by=By.JOB, since=T - 86400 * 9), NOW)
    by_label = {line.key: line.micro for line in costs.lines if not line.unused}
    rows = site.jobs()
    # Job 7 is one that Slurm has forgotten.
    assert {row.label: row.micro for row in rows.values() if row.micro} == {
        label: by_label[label] for label in ("7", "20")
    }
    assert (rows[7].state, rows[7].nodes, rows[7].clouds) == ("ended", "pub[1-2]", ("aws",))


def test_a_job_that_has_just_ended_costs_nothing_after_its_end(site: Site) -> None:
    """The ledger learns of the end up to a minute later."""
    _with(site, job(20, "COMPLETED", nodes=("pub4",), start=T + 5400, end=T + 5500))
    before = site.jobs()[20]
    site.ledger.usage.write((
        ChargedRun(job=20, begin=T + 5400, end=T + 5500, label="20", user="nobody", uid=NOBODY,
            account="physics", partition="aws", shares=(("pub4", 500_000),)),
    ))  # fmt: skip
    assert before.micro == site.jobs()[20].micro > 0


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("FAILED", {"killed_by": 9}, "by SIGKILL"),
        ("FAILED", {"exit_code": 137}, "by SIGKILL"),
        ("FAILED", {"exit_code": 2}, "with exit code 2"),
        ("FAILED", {"exit_code": 255}, "with exit code 255"),
        ("FAILED", {}, ""),
        ("TIMEOUT", {"killed_by": 15}, ""),
        ("COMPLETED", {}, ""),
    ],
)
def test_a_failed_job_has_its_signal_or_exit_code(
    site: Site, state: str, fields: dict[str, int], expected: str
) -> None:
    _with(site, job(20, state, nodes=("pub4",), start=T + 5400, end=T + 5500, **fields))
    assert site.jobs()[20].reason == expected


def test_a_running_job_costs_at_most_its_share_until_its_limit(site: Site) -> None:
    row = site.jobs()[20]
    left_s = T + 5400 + 3600 - NOW
    assert row.at_most == row.micro + round(0.36 * 0.5 * left_s / 3600 * 1e6)
    # The bound is what cost says if the job runs that long.
    end = T + 5400 + 3600
    site.ledger.usage.write((
        ChargedRun(job=20, begin=T + 5400, end=end, label="20", user="nobody", uid=NOBODY,
            partition="aws", shares=(("pub4", 500_000),)),
    ))  # fmt: skip
    later = read_costs(site.config, CostAsk(by=By.JOB, since=T), end + 60)
    (line,) = (line for line in later.lines if line.key == "20")
    assert abs(line.micro - row.at_most) <= 2
    assert (row.nodes, row.clouds, row.state) == ("pub4", ("aws",), "running")


def test_a_job_on_a_free_machine_costs_at_most_what_it_has_cost(site: Site) -> None:
    site.ledger.machines.adopt(machine("pub5", T + 5000, 0.0), "burst", T + 5000)
    site.ledger.machines.record_registration("aws", ["i-pub5"], T + 5300)
    for number, node in ((25, "pub5"), (26, "pub6")):  # the price of pub6 is unknown
        site.ledger.usage.write((
            ChargedRun(job=number, begin=T + 5400, label=str(number), user="nobody", uid=NOBODY,
                partition="aws", shares=((node, 500_000),)),
        ))  # fmt: skip
    _with(
        site,
        job(25, nodes=("pub5",), start=T + 5400),
        job(26, nodes=("pub6",), start=T + 5400),
    )
    rows = rows_of(site)
    assert (rows[25].at_most, rows[26].at_most) == (0, None)


def test_a_job_whose_run_is_not_in_the_ledger_costs_at_most_its_whole_machines(site: Site) -> None:
    """A task of an array may end before the ledger learns of its start."""
    _with(
        site,
        job(27, nodes=("pub4",), start=NOW - 20, limit=300),
        job(28, nodes=("pub4",), start=NOW - 20, limit=None),
        job(29, nodes=("pub6",), start=NOW - 20, limit=300),
    )
    rows = rows_of(site)
    assert rows[27].at_most == round(0.36 * 300 / 3600 * 1e6)
    assert rows[28].at_most is None
    assert rows[29].at_most is None, "the price of pub6 is unknown"


def test_own_nodes_cost_nothing_and_a_job_without_limit_has_no_bound(site: Site) -> None:
    site.slurm = FakeSlurm(
        nodes=tuple(NODES.values()),
        jobs=[job(20, nodes=("pub4",), start=T + 5400, limit=None), job(25, nodes=("st1",))],
    )
    rows = site.jobs()
    assert rows[20].at_most is None
    assert (rows[25].micro, rows[25].at_most, rows[25].clouds) == (0, 0, ())


def test_a_job_that_was_suspended_costs_at_most_its_share_until_its_later_end(site: Site) -> None:
    ends_at = T + 5400 + 3600 + 900
    _with(site, job(20, nodes=("pub4",), start=T + 5400, limit=3600, limit_ends_at=float(ends_at)))
    row = site.jobs()[20]
    assert row.at_most == row.micro + round(0.36 * 0.5 * (ends_at - NOW) / 3600 * 1e6)


def test_a_waiting_job_has_a_start_after_those_before_it_and_a_bound(site: Site) -> None:
    site.slurm = FakeSlurm(
        nodes=[NODES["st1"]],
        jobs=[
            job(30, nodes=("st1",), start=NOW - 60, partitions=("batch",), allocated="cpu=4"),
            *(
                job(n, "PENDING", reason="Priority", priority=9 - n % 10, partitions=("batch",))
                for n in (31, 32, 33)
            ),
        ],
    )
    rows = site.jobs()
    starts = [rows[n].start for n in (31, 32, 33)]
    assert all(start is not None for start in starts)
    medians = [start.seconds[1] for start in starts if start]
    assert 0 < medians[0] < medians[1] < medians[2]
    assert all(start.is_guess for start in starts if start), "no ended job is known"
    assert rows[31].at_most == 0
    cloud = Site.jobs(_with(site, job(34, "PENDING", reason="Resources")))[34]
    assert cloud.start is not None
    assert cloud.start.partition == "aws"
    assert cloud.at_most is not None
    assert cloud.at_most > 360_000, "an hour of a machine, and its boot"


@pytest.mark.parametrize(("reason", "is_forecast"), [("Priority", True), ("Resources", False)])
def test_a_job_for_which_slurm_has_found_no_nodes_does_not_start_now(
    site: Site, reason: str, *, is_forecast: bool
) -> None:
    _with(site, job(37, "PENDING", reason=reason, partitions=("batch",), submit=NOW - 5))
    start = site.jobs()[37].start
    assert (start is not None) == is_forecast


def test_the_begin_time_of_a_held_job_is_no_expected_start(site: Site) -> None:
    _with(
        site,
        job(35, "PENDING", reason="BeginTime", eligible=NOW + 3600, start=NOW + 3600),
        job(36, "PENDING", reason="JobHeldUser", eligible=NOW + 3600, start=NOW + 3600),
    )
    rows = site.jobs()
    assert (rows[35].begin, rows[36].begin) == (NOW + 3600, 0.0)


def _sold_out(*jobs: SlurmJob) -> FakeSlurm:
    """The nodes as slurm-elasticd keeps them from Slurm while no offer has room."""
    nodes = [
        replace(node, states=node.states | {"DRAIN"}, reason=f"{HOLD_MARK}aws is sold out")
        if "CLOUD" in node.states
        else node
        for node in NODES.values()
    ]
    return FakeSlurm(nodes=nodes, jobs=jobs)


def _with(site: Site, *jobs: SlurmJob) -> Site:
    site.slurm = FakeSlurm(nodes=tuple(NODES.values()), jobs=jobs)
    return site


def test_a_sold_out_cloud_is_the_reason_with_the_time_of_the_next_try(site: Site) -> None:
    # Without these, nobody may use the cloud, and that would be the reason.
    caps = "allow: {accounts: [physics]}\nlimits: {dollars_per_hour: 50}\n"
    site.file.write_text(site.file.read_text() + caps)
    for number in range(1, 9):
        site.ledger.exclusions.add(
            Exclusion(kind=CAPACITY, scope=f"pub{number}", pool="burst", since=NOW - 60,
                until=NOW + 300, cause=Quoted(text="aws is sold out"))
        )  # fmt: skip
    site.slurm = _sold_out(job(21, "PENDING", reason="Resources"))
    row = site.jobs()[21]
    sold_out = "aws: 8 of its 8 nodes take no jobs: aws is sold out"
    assert (row.reason, row.retry_at) == (sold_out, NOW + 300)
    assert row.start is None
    paused = Directive(
        word=Pause(scope="cloud:aws"), who="root", since=NOW - 60, starts=NOW - 60, until=NOW + 3600
    )
    order = site.ledger.directives.give(paused)
    assert site.jobs()[21].retry_at is None, "nobody asks a paused cloud when the hold is over"
    site.ledger.directives.end(order.number)
    site.slurm = _sold_out(job(21, "PENDING", reason="Resources", partitions=("batch", "aws")))
    assert site.jobs()[21].reason.endswith(f"; {sold_out}")
    site.private("nodes")
    assert "sold out" not in site.jobs()[21].reason


def test_a_job_that_can_never_start_says_what_helps(site: Site) -> None:
    _with(site, job(21, "PENDING", reason="PartitionNodeLimit", node_count=20, cpus=80))
    row = site.jobs()[21]
    assert row.stuck
    assert row.reason.startswith("can never start: ")
    assert row.advice
    assert row.start is None


def test_what_is_saved_of_a_job_or_why_not(site: Site) -> None:
    save = site.jobs()[20].save
    assert save is not None
    assert save.reason == "neither its comment nor the configuration names a method"
    _with(site, job(20, nodes=("pub4",), start=T, comment="ckpt=signal,saved=file:state"))
    save = site.jobs()[20].save
    assert save is not None
    assert (save.method, save.reason) == ("signal", "slurm-elastic-ckptman does not run")
    _with(site, job(21, "PENDING"), job(26, "PENDING", restarts=1))
    assert site.jobs()[21].save is None, "nothing of it can be saved yet"
    assert site.jobs()[26].save is not None


def test_saves_are_unknown_if_their_records_cannot_be_read(site: Site) -> None:
    """The service may run, and the job may have a save of a minute ago."""
    (site.config.state / "checkpoints.db").write_bytes(b"no database" * 1000)
    _with(site, job(20, nodes=("pub4",), start=T, comment="ckpt=signal,saved=file:state"))
    save = site.jobs()[20].save
    assert save is not None
    assert not save.is_known
    text = "not known: the records of saves cannot be read"
    assert mine.saved_text(save, NOW) == text


@pytest.mark.parametrize("words", [(), ("jobs",), ("jobs", "nodes", "usage", "accounts")])
def test_a_user_sees_the_own_jobs_alone_and_no_names_of_others(
    site: Site, words: tuple[str, ...]
) -> None:
    site.private(*words)
    assert set(site.jobs()) == {7, 20, 21, 23}
    document = site.told().own_jobs
    assert document is not None
    assert (document.user, document.users) == ("nobody", ())
    assert set(site.jobs(job=22)) == set()
    assert set(site.jobs(job=20)) == {20}
    for ask in ({"user": "root"}, {"everyone": True}):
        assert "only root, SlurmUser, operators and viewers" in site.told(**ask).error
    assert "ben" not in msgspec.json.encode(document).decode()


def test_root_sees_a_named_user_everybody_or_one_job(site: Site) -> None:
    assert set(site.jobs(0)) == set()
    # The books call the owner of job 7 ann.
    assert set(site.jobs(0, user="nobody")) == {20, 21, 23}
    assert set(site.jobs(0, everyone=True)) == {7, 9, 10, 20, 21, 22, 23, 24}
    assert set(site.jobs(0, job=22)) == {22}
    assert set(site.jobs(0, user="nemo")) == set()
    document = site.told(0).own_jobs
    assert document is not None
    assert document.users == ("ben", "nobody")


def test_slurmdbd_names_the_ended_jobs_that_slurm_has_forgotten(site: Site) -> None:
    end = f"{NOW - 60:.0f}"
    rows = [
        f"60|60|nobody|{NOBODY}|physics|batch|COMPLETED|{end}|{end}|{end}|st1|forgotten",
        f"7|7|nobody|{NOBODY}|physics|aws|COMPLETED|{end}|{end}|{end}|pub[1-2]|named",
        f"61|61|ben|{BEN}|physics|batch|COMPLETED|{end}|{end}|{end}|st1|foreign",
    ]
    programs = site.root / "state" / "bin"
    programs.mkdir()
    (programs / "sacct").write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    (programs / "sacct").chmod(0o755)
    site.file.write_text(site.file.read_text().replace("/no-slurm-here", "/bin"))
    found = site.jobs()
    assert set(found) == {7, 20, 21, 23, 60}
    assert (found[60].name, found[60].state, found[60].micro) == ("forgotten", "ended", 0)
    assert (found[7].name, found[7].micro) == ("named", 200_000)
    assert 60 not in site.jobs(0, everyone=True)


def test_of_very_many_jobs_the_running_ones_are_listed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_jobs, "FORECASTS_FOR_S", 0.0)
    many = [job(1000 + n, "PENDING", reason="Resources") for n in range(MAX_ROWS + 50)]
    site.slurm = FakeSlurm(nodes=tuple(NODES.values()), jobs=[*many, JOBS[0]])
    ask = OwnJobsAsk(since=NOW - 86400)
    subject = own_jobs.subject_of(ask, NOBODY, "nobody", None)
    reading = own_jobs.slurm_reading(site.config, site.slurm, NOW)
    narrowed = own_jobs.narrowed(reading, read_facts(site.config, NOW), subject)
    document = own_jobs.read_own_jobs(site.config, ask, subject, *narrowed)
    assert document.jobs[0].id == 20
    assert len(document.jobs) == MAX_ROWS
    assert document.left_out == 52, "and job 7, which only the books know"


def test_the_other_process_gets_what_the_rows_need(site: Site) -> None:
    facts = read_facts(site.config, NOW)
    assert len(facts.machines) > 1
    _with(site, JOBS[0], JOBS[2])
    reading = own_jobs.slurm_reading(site.config, site.slurm, NOW)
    ask = OwnJobsAsk(since=0.0)
    nobody, ben = (
        own_jobs.subject_of(ask, uid, name, None)
        for uid, name in ((NOBODY, "nobody"), (BEN, "ben"))
    )
    own, own_facts = own_jobs.narrowed(reading, facts, nobody)
    assert ([job.id for job in own.jobs], own.moment) == ([20], None)
    assert [machine.instance.node for machine in own_facts.machines] == ["pub4"]
    waits, all_facts = own_jobs.narrowed(reading, facts, ben)
    assert ([job.id for job in waits.jobs], all_facts) == ([22], facts)
    assert waits.moment is not None, "a start is forecast by the whole queue"


def rows_of(site: Site, *hidden: str) -> dict[int, OwnJob]:
    """The rows of nobody, made in this process."""
    ask = OwnJobsAsk(since=NOW - 86400)
    viewer = Viewer.of(NOBODY, hidden, site.slurm.jobs(ended=True))
    subject = own_jobs.subject_of(ask, NOBODY, "nobody", viewer)
    reading = own_jobs.slurm_reading(site.config, site.slurm, NOW)
    facts = seen_facts(read_facts(site.config, NOW), viewer)
    narrowed = own_jobs.narrowed(reading, facts, subject)
    document = own_jobs.read_own_jobs(site.config, ask, subject, *narrowed)
    return {row.id: row for row in document.jobs}


def test_a_job_over_its_budget_starts_on_own_nodes_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = Overdrawn(until=NOW + 3600, cause=Quoted(text="user nobody has spent $5 of $5"))
    monkeypatch.setattr(closed_pools, "find_barred_payers", lambda *_: {"user:nobody": spent})
    _with(
        site,
        job(21, "PENDING", reason="Resources"),
        job(22, "PENDING", reason="Priority", partitions=("batch", "aws"), submit=NOW - 5),
        job(23, "PENDING", reason="Priority", partitions=("batch", "aws"), submit=NOW - 90),
    )
    rows = rows_of(site)
    assert rows[23].start is None, "Slurm has looked, and did not start it now"
    assert (rows[21].reason, rows[21].start) == ("aws: user nobody has spent $5 of $5", None)
    assert rows[22].reason.endswith("; aws: user nobody has spent $5 of $5")
    assert rows[22].start is not None
    assert rows[22].start.partition == "batch"
    assert "spent" not in rows_of(site, "usage")[21].reason, "PrivateData hides money"


def test_waiting_tasks_cost_at_most_as_many_times(site: Site) -> None:
    _with(
        site,
        job(21, "PENDING", reason="Resources"),
        job(22, "PENDING", reason="Resources", tasks=7),
        job(23, "PENDING", reason="Resources", tasks=7, max_running_tasks=2),
    )
    rows = rows_of(site)
    assert rows[21].at_most
    assert rows[22].at_most == rows[23].at_most == 7 * rows[21].at_most
    assert rows[23].tasks == 7, "a limit of tasks that run together makes none of them cheaper"


def test_without_slurm_the_jobs_of_the_ledger_remain(site: Site) -> None:
    site.slurm.broken = SlurmError(("squeue",), 1, "Unable to contact slurm controller")
    document = site.told().own_jobs
    assert document is not None
    assert "Unable to contact" in document.slurm_error
    assert {row.id: row.state for row in document.jobs} == {7: "ended", 20: "running"}
    assert mine.at_most(document.jobs[0]) == "-", "only Slurm knows whether it has a time limit"


def test_a_new_job_is_listed_before_the_queue_of_forecasts_is_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "FACTS_TTL_S", 0.0)
    monkeypatch.setattr(answers, "SHARE", 0.0)
    door = site.answers()
    line = msgspec.json.encode(OwnJobsAsk(since=NOW - 86400))

    def listed() -> set[int]:
        answer = msgspec.json.decode(door(Peer(uid=NOBODY), line), type=DoorAnswer)
        assert answer.own_jobs is not None, answer.error
        return {row.id for row in answer.own_jobs.jobs}

    before = listed()
    site.slurm.set_job(
        30, "PENDING", reason="None", uid=NOBODY, user="nobody", partitions=("aws",), submit=T
    )
    assert listed() == before | {30}


def test_an_impossible_time_is_refused(site: Site) -> None:
    assert "since is -1" in site.told(since=-1.0).error


@needs.ROOT
def test_two_users_ask_by_the_socket_and_see_their_own_jobs(served_site: Site) -> None:
    site = served_site
    site.private("jobs")
    config, answers = site.config, site.answers()
    door = Door(config.read_socket, answers, answers.trusts)
    (site.root / "state").chmod(0o700)
    path = [p for p in sys.path if p]
    command = [sys.executable, "-Es", "-c", RUN.format(path=path), "--config", str(site.file)]

    def told(uid: int, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "mine", *words], user=uid, group=NOBODY, extra_groups=[], cwd="/",
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True, text=True, timeout=patience(120), check=False,
        )  # fmt: skip

    door.start()
    try:
        own, ben, others = told(NOBODY, "--json"), told(BEN, "--json"), told(BEN, "--user", "root")
        table = told(NOBODY)
    finally:
        door.close()
    assert own.returncode == 0, own.stderr
    assert {row["id"] for row in json.loads(own.stdout)["jobs"]} == {7, 20, 21, 23}
    assert {row["id"] for row in json.loads(ben.stdout)["jobs"]} == {9, 10, 22, 24}
    assert (others.returncode, others.stdout) == (1, "")
    assert "only root, SlurmUser, operators and viewers see jobs of others" in others.stderr
    name = pwd.getpwuid(NOBODY).pw_name
    assert table.stdout.startswith(f"Jobs of {name}: 1 runs, 1 waits, 2 ended; times in ")
    assert max(map(len, table.stdout.splitlines())) <= 80


def test_the_document_has_plain_names(site: Site) -> None:
    document = site.told().own_jobs
    assert isinstance(document, OwnJobs)
    rows = json.loads(msgspec.json.encode(document))["jobs"]
    assert {"micro_dollars", "at_most_micro_dollars", "limit_s", "started_at"} <= set(rows[0])
