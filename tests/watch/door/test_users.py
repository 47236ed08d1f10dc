"""Users get status, explain and ckpt list from slurm-elasticd, and no file of its state directory."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from csv import DictReader
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn
from unittest import mock

import msgspec
import needs
import pytest
from cost_cases import NOW as LATER
from cost_cases import book, config_file
from msgspec.structs import replace
from patience import patience
from status_cases import NOW, busy_ledger

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.processes import bounded_process
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.cli.main import GROUPS
from slurm_elastic.cli.orders.departure_orders import departure
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.directive import Directive, LimitChange
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.pool_order import PoolTerms
from slurm_elastic.policies.launch.verdict import PoolBar
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.hooks import order_file
from slurm_elastic.state import statedir
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision
from slurm_elastic.watch.door import client
from slurm_elastic.watch.door.answers import USERS_SPAN, DoorAnswers
from slurm_elastic.watch.door.questions import Chain, ChainAsk, DirectAsk, DoorAnswer
from slurm_elastic.watch.door.records import may_read, read_facts
from slurm_elastic.watch.door.server import Door

NOBODY = 65534
GROUP = 60001
SECONDS = 60.0
YAML = """
cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}
state_dir: {root}/state
slurm: {{conf: {root}/slurm.conf, bin_dir: {root}/no-slurm-here, user: root}}
clouds:
  - name: onp
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4096, price: 0.1}}}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2],pub[1-8]", cpus: 2, memory: 4G}}
"""
RUN = (
    "import sys; sys.path[:0] = {path!r}; from slurm_elastic.cli.main import main; sys.exit(main())"
)


class Host:
    """A state directory of SlurmUser's alone (root's here), and what users may reach beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "state").mkdir(mode=0o700)
        (root / "slurm.conf").write_text("ClusterName=alps\n")
        self.file = root / "slurm-elastic.yaml"
        self.file.write_text(YAML.format(root=root))
        for path in (self.file, root / "slurm.conf"):
            path.chmod(0o644)
        with statedir.private_umask():
            self.ledger = busy_ledger(root / "state" / "ledger.db")
        self.slurm = FakeSlurm(jobs=[
            SlurmJob(id=42, states=frozenset({"RUNNING"}), uid=NOBODY, nodes=("pub1",)),
            SlurmJob(id=44, states=frozenset({"RUNNING"}), uid=1001, nodes=("pub2",)),
        ])  # fmt: skip

    @property
    def config(self) -> Config:
        return configfile.load(self.file)

    def private(self, *words: str) -> None:
        (self.root / "slurm.conf").write_text(f"PrivateData=cloud,{','.join(words)}\n")

    def answers(self) -> DoorAnswers:
        return DoorAnswers(self.config, self.slurm, lambda: NOW)

    def told(
        self, ask: Mapping[str, object], uid: int = NOBODY, groups: Sequence[int] = ()
    ) -> DoorAnswer:
        peer = Peer(uid=uid, groups=frozenset(groups))
        return msgspec.json.decode(self.answers()(peer, json.dumps(ask).encode()), type=DoorAnswer)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        config = self.config
        answers = self.answers()
        door = Door(config.read_socket, answers, answers.trusts)
        # The bound of one question is for a machine that is not as busy as that of the tests.
        with mock.patch.object(bounded_process, "TIMEOUT_S", round(patience(30))):
            door.start()
            try:
                yield
            finally:
                door.close()

    def as_nobody(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = [p for p in sys.path if p]
        command = [sys.executable, "-Es", "-c", RUN.format(path=path), "--config", str(self.file)]
        return subprocess.run(
            [*command, *words], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture
def host(open_path: Path) -> Iterator[Host]:
    made = Host(open_path)
    yield made
    made.ledger.close()


# through the socket


@needs.ROOT
def test_a_user_sees_status_without_opening_a_file_of_the_state_directory(host: Host) -> None:
    with host.serving():
        done = host.as_nobody("status", "--json")
    view = json.loads(done.stdout)
    assert (done.returncode, view["ledger_error"]) == (0, None)
    ids = {one["id"] for one in view["instances"]}
    assert "i-0aaaaaaaaaaaaaaa1" in ids
    assert view["slurm_error"], "Slurm is asked by the user's own command"


@needs.ROOT
def test_a_users_day_has_the_own_machines_and_jobs(host: Host) -> None:
    host.ledger.usage.write([
        ChargedRun(job=42, begin=NOW - 3000, uid=NOBODY, shares=(("pub1", 1),)),
        ChargedRun(job=44, begin=NOW - 3000, uid=1001, shares=(("pub2", 1),)),
    ])  # fmt: skip
    found = {}
    for hidden in ((), ("jobs",), ("nodes", "jobs")):
        host.private(*hidden)
        day = host.told({"ask": "day"}).day
        assert day is not None
        machines = sum(counts[-1] for counts in day.machines.values())
        found[hidden] = (machines, day.running[-1], day.private)
    assert found == {
        (): (6, 2, ()),
        ("jobs",): (6, 1, ("jobs",)),
        ("nodes", "jobs"): (1, 1, ("jobs", "nodes")),
    }  # fmt: skip
    host.private()
    with host.serving():
        done = host.as_nobody("status", "--day", "--json")
        assert json.loads(done.stdout)["running"][-1] == 2
        assert host.as_nobody("status", "--day").stdout.startswith("The last 24 hours")
        week = json.loads(host.as_nobody("status", "--day", "7d", "--json").stdout)
        assert week["at"] - week["begin"] == 7 * 86400


@needs.ROOT
def test_a_user_sees_tables_and_the_chain_of_a_job(host: Host) -> None:
    with host.serving():
        status, explain = host.as_nobody("status"), host.as_nobody("explain", "42")
        pool = host.as_nobody("explain", "rack")
    assert (status.returncode, status.stderr) == (0, "")
    assert "Cluster alps" in status.stdout
    assert explain.returncode == 0, explain.stderr
    assert "no machine is available for its nodes: spot reclaim" in explain.stdout
    assert pool.returncode == 0, pool.stderr


@needs.ROOT
def test_a_user_who_watches_sees_each_look(host: Host) -> None:
    path = [p for p in sys.path if p]
    command = [sys.executable, "-Es", "-c", RUN.format(path=path), "--config", str(host.file)]
    with (
        host.serving(),
        subprocess.Popen(
            [*command, "status", "--json", "--watch", "1"], user=NOBODY, group=NOBODY,
            extra_groups=[], cwd="/", stdout=subprocess.PIPE, text=True,
        ) as watching,
    ):  # fmt: skip
        assert watching.stdout is not None
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["cluster"] == "alps"
        watching.kill()


@needs.ROOT
@pytest.mark.parametrize("words", [("status",), ("explain", "42"), ("ckpt", "list")])
def test_without_the_daemon_a_user_gets_one_sentence(host: Host, words: tuple[str, ...]) -> None:
    done = host.as_nobody(*words)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "no news now: slurm-elasticd does not run or cannot serve users" in line
    assert "Running jobs continue. Tell the administrators" in line


@needs.ROOT
@pytest.mark.parametrize("words", [("offers",), ("clear", "--all")])
def test_what_is_for_root_and_slurm_user_says_so_in_one_sentence(
    host: Host, words: tuple[str, ...]
) -> None:
    with host.serving():
        done = host.as_nobody(*words)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "root" in line


def test_who_may_open_the_files_needs_no_daemon(host: Host) -> None:
    assert may_read(host.config)
    found = client.facts_of(host.config, NOW)
    assert len(found.machines) == len(read_facts(host.config, NOW).machines) > 0
    ask = ChainAsk(about="job", name="42")
    assert client.chain_of(host.config, ask, NOW).decisions


@needs.ROOT
def test_a_socket_of_somebody_else_is_not_believed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "may_read", lambda _config: False)
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.setuid(65534);"
        "s.bind(sys.argv[1]); s.listen(); print('here', flush=True); sys.stdin.read()"
    )
    config = host.config
    host.root.chmod(0o777)
    with subprocess.Popen(
        [sys.executable, "-Es", "-c", code, str(config.read_socket)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as impostor:  # fmt: skip
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "here\n"
        with pytest.raises(SlurmElasticError, match=f"served by uid {NOBODY}"):
            client.facts_of(config, NOW)
        impostor.kill()


def test_a_daemon_that_breaks_off_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "may_read", lambda _config: False)
    door = Door(
        host.config.read_socket, lambda _peer, _line: b'{"facts": {"no', lambda _peer: False
    )
    door.start()
    with pytest.raises(SlurmElasticError, match="is incomplete, or of another release"):
        client.facts_of(host.config, NOW)
    door.close()


# who sees what


def test_private_jobs_are_told_to_their_user_and_to_no_other(host: Host) -> None:
    host.private("jobs")
    chain = {"ask": "chain", "about": "job", "name": "42"}
    assert host.told(chain).chain is not None
    refused = host.told(chain, uid=1001)
    assert (refused.chain, "job 42 is not one of your jobs" in refused.error) == (None, True)
    facts = host.told({"ask": "facts"}).facts
    assert facts is not None
    assert facts.private == ("jobs",)
    assert not any(set(m.jobs) - {42} for m in facts.machines)


def test_a_user_is_told_what_keeps_pools_from_starting_machines(host: Host) -> None:
    text = host.file.read_text()
    host.file.write_text(f"{text}limits: {{nodes: 3}}\n")
    ask = {"ask": "chain", "about": "job", "name": "42"}

    def bar_now() -> PoolBar:
        chain = host.told(ask).chain or Chain()
        (bar,) = (bar for bar in chain.obstacles.bars if bar.pool == "rack")
        return bar

    bar = bar_now()
    assert bar.is_private
    assert "the cluster is limited to 3 nodes" in bar.reason
    assert " by " not in bar.reason
    word = LimitChange(scope="", key="nodes", value=2.0)
    host.ledger.directives.give(
        Directive(word=word, who="root", since=NOW - 60, starts=NOW - 60, reason="licences")
    )
    bar = bar_now()
    since = f"{datetime.fromtimestamp(NOW - 60, UTC):%Y-%m-%d %H:%M} UTC"
    told = f"(the cluster: nodes is 2 by root since {since}: licences)"
    assert "the cluster is limited to 2 nodes" in bar.reason
    assert bar.reason.endswith(told)
    host.private("nodes")
    assert bar_now().reason == "a bound of the site on machines, dollars or hours is reached"


def test_root_and_operators_see_all(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.private("jobs", "nodes", "usage")
    for told in (host.told({"ask": "facts"}, uid=0), operator(host, monkeypatch)):
        assert told.facts is not None
        assert told.facts.private == ()
        assert len(told.facts.machines) == len(read_facts(host.config, NOW).machines)


@pytest.mark.parametrize("private", [(), ("jobs",)])
def test_only_operators_see_the_consoles_of_machines(
    host: Host, monkeypatch: pytest.MonkeyPatch, private: tuple[str, ...]
) -> None:
    host.private(*private)
    host.ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=10, until=NOW + 900))
    console = ConsoleRead(machine="i-1", lines=("cloud-init: curl -u admin:secret failed",))
    host.ledger.decisions.record(
        Decision(
            at=NOW, correlation="c", kind="console", subjects=(pool_subject("rack"),), cause=console
        )
    )
    seen = {
        "operator": operator(host, monkeypatch).facts,
        "user": host.told({"ask": "facts"}).facts,
    }
    consoles = {who: facts.consoles for who, facts in seen.items() if facts is not None}
    assert consoles == {"operator": {"rack": console.last_line}, "user": {}}


def operator(host: Host, monkeypatch: pytest.MonkeyPatch) -> DoorAnswer:
    made_operators(host, monkeypatch)
    return host.told({"ask": "facts"}, groups=(100, GROUP))


def made_operators(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    text = host.file.read_text()
    host.file.write_text(f"{text}users: {{operators: [hpc-admins, no-such-group]}}\n")

    class Group:
        gr_gid = GROUP

    def getgrnam(name: str) -> Group:
        if name != "hpc-admins":
            raise KeyError(name)
        return Group()

    monkeypatch.setattr("slurm_elastic.watch.door.questions.grp.getgrnam", getgrnam)


def test_operators_have_the_places_and_the_turn_of_who_is_trusted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the groups that were read for an answer: reading them may hang, and all would wait."""
    made_operators(host, monkeypatch)
    answers = host.answers()
    root, user = Peer(uid=0), Peer(uid=NOBODY, groups=frozenset({100}))
    one = Peer(uid=NOBODY, groups=frozenset({100, GROUP}))
    assert [answers.trusts(peer) for peer in (root, one, user)] == [True, False, False]
    answers(user, b'{"ask": "facts"}')
    assert [answers.trusts(peer) for peer in (root, one, user)] == [True, True, False]


def test_what_takes_long_is_not_computed_by_the_daemon_itself(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for users nor for operators, whatever is asked for."""
    given: list[str] = []

    def apart(function: Callable[..., object], *_: object) -> NoReturn:
        given.append(function.__name__)
        raise SlurmElasticError("not here")

    monkeypatch.setattr("slurm_elastic.watch.door.answers.run_bounded", apart)
    job = {"id": 0, "states": ["PENDING"], "user": "ann", "partitions": ["onprem"], "cpus": 1}
    for uid in (0, NOBODY):
        for ask in ({"ask": "cost", "by": "job", "since": 0}, {"ask": "price", "job": job}):
            assert host.told(ask, uid=uid).error == "not here"
    assert given == ["read_costs", "prices_of"] * 2


def test_viewers_see_all_and_change_nothing(host: Host) -> None:
    host.private("jobs", "nodes", "usage")
    group = grp.getgrnam("sudo").gr_gid
    host.file.write_text(f"{YAML.format(root=host.root)}users: {{viewers: [sudo]}}\n")
    told = host.told({"ask": "facts"}, groups=(100, group)).facts
    assert told is not None
    assert told.private == ()
    assert len(told.machines) == len(read_facts(host.config, NOW).machines)
    said = host.told(PAUSE, groups=[group]).error
    assert said == "this is for root, root and members of groups in users.operators (none)"
    assert host.ledger.directives.all() == ()


def test_without_an_answer_of_slurms_private_jobs_are_nobodys(host: Host) -> None:
    host.private("jobs")
    host.slurm.broken = SlurmError(("squeue",), None, "no answer in 5 s")
    assert "not one of your jobs" in host.told({"ask": "chain", "about": "job", "name": "42"}).error


def test_where_slurm_conf_cannot_be_read_all_is_private(host: Host) -> None:
    (host.root / "slurm.conf").unlink()
    facts = host.told({"ask": "facts"}).facts
    assert facts is not None
    assert facts.private == ("accounts", "jobs", "nodes", "usage")


@pytest.mark.parametrize(
    "line",
    [b'{"ask": "cost", "by": "job", "since": 1e308}',
     b'{"ask": "cost", "by": "job", "since": 0, "until": 1e308}',
     b'{"ask": "cost", "by": "job", "since": 1e400}', b'{"ask": "cost", "by": "job", "since": NaN}',
     b"", b"[]", b"\xff\xfe", b'{"ask": "ledger"}', b'{"ask": "chain", "about": "job"}',
     b'{"ask": "chain", "about": "job", "name": "1 or 1=1"}',
     b'{"ask": "chain", "about": "job", "name": "99999999999999999999999"}',
     b'{"ask": "chain", "about": "job", "name": "7", "nodes": [[]]}',
     b'{"ask": "chain", "about": "node", "name": "a\\ud800"}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_question_is_refused_in_a_sentence(host: Host, line: bytes) -> None:
    told = msgspec.json.decode(host.answers()(Peer(uid=NOBODY), line), type=DoorAnswer)
    assert told.error
    assert told.error.isprintable()
    assert "Traceback" not in told.error


def test_who_asks_often_does_not_have_the_ledger_read_as_often(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def counted(config: Config, now: float) -> object:
        reads.append(now)
        return read_facts(config, now)

    monkeypatch.setattr("slurm_elastic.watch.door.answers.read_facts", counted)
    answers = host.answers()
    for uid in range(2000, 2100):
        answers(Peer(uid=uid), b'{"ask": "facts"}')
    assert len(reads) < 20


# the daemon itself


@needs.ROOT
def test_the_daemon_answers_users_and_its_lock_and_ledger_are_out_of_their_reach(
    open_path: Path,
) -> None:
    host = Host(open_path)
    host.ledger.close()
    command = [
        sys.executable,
        "-P",
        "-m",
        "slurm_elastic.cli.services.daemon",
        "--config",
        str(host.file),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            wait_for(lambda: answers_at(host.config.read_socket) or daemon.poll() is not None)
            wait_for(lambda: host.as_nobody("status", "--json").returncode == 0)
            view = json.loads(host.as_nobody("status", "--json").stdout)
            assert view["daemon"]["alive"]
            state = open_path / "state"
            assert state.stat().st_mode & 0o777 == 0o700
            files = [p for p in state.rglob("*") if not p.is_symlink()]
            assert {"daemon.lock", "ledger.db-shm"} <= {p.name for p in files}
            assert not [p for p in files if p.lstat().st_mode & 0o077]
        finally:
            daemon.kill()


def answers_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + patience(SECONDS)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def test_a_socket_that_cannot_be_made_does_not_stop_the_daemon_and_is_made_later(
    open_path: Path,
) -> None:
    host = Host(open_path)
    host.ledger.close()
    text = host.file.read_text()
    host.file.write_text(f"{text}users: {{socket: {open_path}/nowhere/read.sock}}\n")
    command = [
        sys.executable,
        "-P",
        "-m",
        "slurm_elastic.cli.services.daemon",
        "--config",
        str(host.file),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if "users are not answered" in line:
                break
        assert f"users.socket: {open_path}/nowhere/read.sock cannot be made" in line
        assert os.path.exists(open_path / "state" / "prolog.sock")
        assert daemon.poll() is None
        (open_path / "nowhere").mkdir()
        wait_for((open_path / "nowhere" / "read.sock").is_socket)
        daemon.kill()
        daemon.stderr.read()


# operators' orders


PAUSE = {"ask": "direct", "word": {"kind": "pause", "scope": "pool:rack"}, "reason": "disk"}


def test_an_order_is_for_operators_and_the_kernel_says_who_it_is(host: Host) -> None:
    said = host.told(PAUSE).error
    assert said == "this is for root, root and members of groups in users.operators (none)"
    assert host.ledger.directives.all() == ()
    host.file.write_text(f"{YAML.format(root=host.root)}users: {{operators: [sudo]}}\n")
    group = grp.getgrnam("sudo").gr_gid
    assert host.told(PAUSE, groups=[group + 1]).lines is None
    lines = host.told(PAUSE, groups=[group]).lines or ()
    assert lines[0] == "pool rack is paused by nobody: disk"
    (one,) = host.ledger.directives.all()
    assert one.who == "nobody"
    (decision,) = host.ledger.decisions.about("pool:rack", 1)
    assert (decision.kind, str(decision.reason)) == ("directed", lines[0])
    assert host.told({"ask": "end", "numbers": [one.number]}).error
    done = host.told({"ask": "end", "numbers": [one.number]}, groups=[group]).lines
    assert done == ("order ended: pool rack is paused by nobody: disk",)
    assert host.ledger.directives.all() == ()


LEAVE = {
    "kind": "departure", "verb": "drain", "about": "pool rack", "nodes": ["op1"], "scope": "pool:rack"
}  # fmt: skip
LIMIT = {"kind": "limit", "scope": "pool:rack", "key": "max_nodes", "value": 3}


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"word": LEAVE | {"about": "x" * 50_000}}, "about has 50000 characters, expected 200"),
        ({"word": LEAVE | {"about": "rack\x1b]0;x\x07"}}, "about is 'rack\\x1b"),
        ({"word": LEAVE | {"image": "ami-1\x1b[2J"}}, "image is 'ami-1\\x1b"),
        ({"word": LEAVE | {"unavailable": -3}}, "unavailable is -3, expected a number from 1 on"),
        ({"word": LEAVE | {"unavailable": 0}}, "unavailable is 0"),
        ({"word": LEAVE | {"verb": "explode"}}, "verb is 'explode', expected one of drain"),
        ({"word": LEAVE | {"nodes": ["op9"]}}, "nodes are in no pool: 'op9'"),
        ({"word": LEAVE | {"nodes": ["op["]}}, "the nodes of the order: bracket is not closed"),
        ({"word": LEAVE | {"nodes": ["a[1-9]", "b[1-99999]"]}}, "names more than 100000 hosts"),
        ({"word": LEAVE | {"nodes": []}}, "no nodes are named, so no machine would leave"),
        ({"word": LEAVE | {"scope": "rack"}}, "scope is 'rack', expected 'pool:rack'"),
        ({"word": LEAVE | {"to": "moon"}}, "emptied only to another cloud"),
        ({"word": {"kind": "pause", "scope": "cluster"}}, "scope is 'cluster', expected ''"),
        ({"word": {"kind": "pause", "scope": "pool:\x1b"}}, "is no pool, cloud, account or user"),
        (
            {"word": {"kind": "pause", "scope": "user:ann"}},
            "expected the cluster, a cloud or a pool",
        ),
        ({"word": LIMIT | {"value": -3}}, "from 0 on, not -3"),
        ({"word": LIMIT | {"value": 1e308}}, "max_nodes is a number below 1e+12, not 1e+308"),
        ({"word": LIMIT | {"value": 1.5}}, "not 1.5"),
        (PAUSE | {"reason": "x" * 201}, "reason has 201 characters, expected 200"),
        (PAUSE | {"reason": "a\nb"}, "reason is 'a\\nb', expected characters that can be printed"),
        (PAUSE | {"seconds": 1e308}, "at most 366 days"),
        (PAUSE | {"seconds": -1}, "more than 0 s"),
        (PAUSE | {"starts": 1e308}, "must begin within 366 days"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_in_a_sentence_and_not_kept(
    host: Host, order: dict[str, object], why: str
) -> None:
    budgets = "policies: {user_budgets: {ann: {per_day: 5}}}"
    public = YAML.format(root=host.root).replace("on-premises", "public")
    host.file.write_text(f"{public}{budgets}\n")
    said = host.told({"ask": "direct"} | order, uid=0).error
    assert why in said
    assert said.isprintable()
    assert host.ledger.directives.all() == ()


def test_an_operator_drains_a_cloud_of_thousands_of_nodes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = "op[00001-20000]"
    host.file.write_text(YAML.format(root=host.root).replace("op[1-2]", nodes))
    monkeypatch.setattr(client.os, "geteuid", lambda: NOBODY)
    word = departure(host.config, "drain", "rack")
    scattered = replace(word, nodes=tuple(f"n{n}x" for n in range(20_000)))
    with host.serving():
        assert client.order(host.config, DirectAsk(word=word), NOW)
        with pytest.raises(SlurmElasticError, match="name fewer nodes at a time"):
            client.order(host.config, DirectAsk(word=scattered), NOW)
    (order,) = host.ledger.directives.all()
    assert order.word == word


@pytest.mark.parametrize("words", [("usage",), ("accounts", "jobs", "nodes", "usage")])
def test_a_changed_limit_is_no_more_told_than_what_was_spent(
    host: Host, words: tuple[str, ...]
) -> None:
    """Neither that it was changed, nor that an operator ended it, nor that its time is over."""
    host.told({"ask": "direct", "word": LIMIT, "reason": "licences"}, uid=0)
    (one,) = host.ledger.directives.all()
    host.told({"ask": "end", "numbers": [one.number]}, uid=0)
    host.told(PAUSE, uid=0)
    chain = {"ask": "chain", "about": "pool", "name": "rack"}
    told = host.told(chain).chain
    assert told is not None
    kinds = [decision.kind for decision in told.decisions]
    assert [kind for kind in kinds if "direct" in kind] == [
        "directed",
        "directive-ended",
        "directed",
    ]
    host.private(*words)
    hidden = host.told(chain).chain
    assert hidden is not None
    (pause,) = (d for d in hidden.decisions if "direct" in d.kind)
    assert "is paused" in str(pause.reason)
    assert "max_nodes" not in msgspec.json.encode(hidden).decode()


OPERATORS = "this is for root, root and members of groups in users.operators (none)"
ROOTS = "this is for root and root"
ORDERS = {
    "pause": OPERATORS,
    "pause rack": OPERATORS,
    "pause rack --dry-run": OPERATORS,
    "pause nowhere": OPERATORS,
    "resume": OPERATORS,
    "resume rack": OPERATORS,
    "limit rack max_nodes 3": OPERATORS,
    "limit rack max_nodes many": OPERATORS,
    "limit rack max_nodes reset": OPERATORS,
    "drain rack": OPERATORS,
    "drain op1 --aggressive --at now+1h": OPERATORS,
    "replace rack": OPERATORS,
    "migrate onp --to onp": OPERATORS,
    "clear": ROOTS,
    "clear rack": ROOTS,
    "clear --gone i-1": ROOTS,
    "try rack": ROOTS,
    "ckpt now 44": "job 44 is not your job: only its owner, root and root may save it",
    "ckpt notice op1": ROOTS,
    "ckpt notice op1 --withdraw --rebalance": ROOTS,
}


@needs.ROOT
def test_who_may_not_give_an_order_is_told_so_before_anything_else(host: Host) -> None:
    orders = {line.split()[0] for line in ORDERS}
    assert orders >= {*GROUPS["steer it"], "clear", "try", "ckpt"}
    with host.serving():
        told = {line: host.as_nobody(*line.split()) for line in ORDERS}
    for line, done in told.items():
        found = (done.returncode, done.stdout, done.stderr)
        assert found == (1, "", f"slurm-elastic: {ORDERS[line]}\n"), line


@needs.ROOT
def test_a_member_of_the_operators_group_pauses_by_the_socket(host: Host) -> None:
    with host.serving():
        refused = host.as_nobody("pause", "rack")
    assert (refused.returncode, refused.stderr) == (
        1, "slurm-elastic: this is for root, root and members of groups in users.operators (none)\n"
    )  # fmt: skip
    nobodys = grp.getgrgid(NOBODY).gr_name
    host.file.write_text(f"{YAML.format(root=host.root)}users: {{operators: [{nobodys}]}}\n")
    with host.serving():
        done = host.as_nobody("pause", "rack", "--for", "1h")
        limited = host.as_nobody("limit", "rack", "max_nodes", "3")
        over = host.as_nobody("resume", "rack")
    assert done.returncode == 0, done.stderr
    assert "pool rack is paused by nobody until" in done.stdout
    assert limited.returncode == 0, limited.stderr
    assert "order ended: pool rack is paused by nobody" in over.stdout
    assert [d.who for d in host.ledger.directives.all()] == ["nobody"]


@needs.ROOT
def test_a_user_is_told_the_cost_of_the_own_jobs_alone(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to start the process that answers.
    monkeypatch.setattr(bounded_process, "TIMEOUT_S", patience(bounded_process.TIMEOUT_S))
    file = config_file(open_path)
    (open_path / "state").chmod(0o700)
    (open_path / "slurm.conf").write_text("ClusterName=alps\n")
    with statedir.private_umask():
        book(open_path / "state" / "ledger.db").close()
    config = configfile.load(file)
    answers = DoorAnswers(config, FakeSlurm(), lambda: LATER)
    door = Door(config.read_socket, answers, answers.trusts)
    door.start()
    run = RUN.format(path=[p for p in sys.path if p]).replace(
        "sys.exit(", f"import time; time.time = lambda: {LATER}; sys.exit("
    )
    command = [sys.executable, "-Es", "-c", run, "--config", str(file), "cost"]

    def told(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--since", "2027-01-15", "--until", "2027-01-16", *words], user=NOBODY, group=NOBODY,
            extra_groups=[], cwd="/", capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    try:
        mine, csv, focus = (
            told("--format", "json"),
            told("--format", "csv"),
            told("--format", "focus"),
        )
    finally:
        door.close()
    document = json.loads(mine.stdout)
    assert document["own_jobs_only"]
    assert [(x["key"], x["micro_dollars"]) for x in document["lines"]] == [("physics", 200_000)]
    (row,) = DictReader(csv.stdout.splitlines())
    assert (row["account"], row["dollars"], row["machine_hours"]) == (
        "physics",
        "0.200000",
        "0.555556",
    )
    assert (focus.returncode, focus.stdout) == (1, "")
    assert "is for root and SlurmUser" in focus.stderr


@needs.ROOT
def test_a_users_report_has_the_own_jobs_alone(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_process, "TIMEOUT_S", patience(bounded_process.TIMEOUT_S))
    file = config_file(open_path)
    (open_path / "state").chmod(0o700)
    (open_path / "slurm.conf").write_text("ClusterName=alps\n")
    with statedir.private_umask():
        book(open_path / "state" / "ledger.db").close()
    config = configfile.load(file)
    answers = DoorAnswers(config, FakeSlurm(), lambda: LATER)
    door = Door(config.read_socket, answers, answers.trusts)
    door.start()
    run = RUN.format(path=[p for p in sys.path if p]).replace(
        "sys.exit(", f"import time; time.time = lambda: {LATER}; sys.exit("
    )
    command = [sys.executable, "-Es", "-c", run, "--config", str(file), "report"]
    try:
        done = subprocess.run(
            [*command, "--month", "2027-01", "--json"], user=NOBODY, group=NOBODY,
            extra_groups=[], cwd="/", capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        door.close()
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["own_jobs_only"]
    assert document["micro_dollars"] == 200_000
    for name, key in (("accounts", "physics"), ("users", "ann"), ("clouds", "aws")):
        assert [(x["key"], x["micro_dollars"]) for x in document[name]] == [(key, 200_000)]
    for hidden in ("always_on", "replay", "normal_unused", "budget_micro_dollars"):
        assert document[hidden] is None
    assert document["unused"] == []
    assert document["unused_micro_dollars"] == 0


def test_a_user_is_told_costs_of_some_months_and_operators_of_all(open_path: Path) -> None:
    config = configfile.load(config_file(open_path))
    book(config.state / "ledger.db").close()
    answers = DoorAnswers(config, FakeSlurm(), lambda: LATER)
    ask = json.dumps({"ask": "cost", "by": "job", "since": LATER - 300 * 86400}).encode()
    for uid, since in ((NOBODY, LATER - USERS_SPAN), (0, LATER - 300 * 86400)):
        found = msgspec.json.decode(answers(Peer(uid=uid), ask), type=DoorAnswer).costs
        assert found is not None
        assert found.since == since


def test_users_get_the_published_terms_of_the_clouds(host: Host) -> None:
    assert host.told({"ask": "terms"}).terms == ""
    cause = Quoted(text="$5 of $5 spent")
    table = (PoolTerms(pool="rack", cloud="onp", partition="onp", unavailable=cause),)
    text = order_file.text_of(table, ("price",), NOW)
    (host.root / "state" / order_file.FILE).write_text(text)
    assert host.told({"ask": "terms"}).terms == text
    host.private("usage")
    hidden = host.told({"ask": "terms"}).terms or ""
    assert "$5" not in hidden
    found = order_file.parse(hidden, NOW)
    assert found is not None
    assert found.table[0].unavailable is not None


def test_a_command_of_a_user_reads_the_terms_at_the_door(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "may_read", lambda _config: False)
    assert client.published_terms(host.config, NOW) is None, "nobody answers"
    table = (PoolTerms(pool="rack", cloud="onp", partition="onp"),)
    text = order_file.text_of(table, ("price",), NOW)
    (host.root / "state" / order_file.FILE).write_text(text)
    with host.serving():
        found = client.published_terms(host.config, NOW)
    assert found is not None
    assert found.table == table
