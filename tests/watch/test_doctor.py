"""``doctor``: each thing that is wrong is one finding with what to do; nothing is changed."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import re
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ledger_cases import T0, instance, spec
from msgspec.structs import replace
from patience import eventually
from rich.console import Console

from slurm_elastic.base.errors import AuthError, SlurmError, TransientError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import doctor
from slurm_elastic.cli.services import service_environment
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.sections.access import Users
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.composed import NoOfferServes, OffersRefused
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.causes.refusals import CloudSilent
from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.cluster import InstanceState, Limits
from slurm_elastic.model.directive import Directive, LimitChange, Pause
from slurm_elastic.model.exclusion import BREAKER, CAPACITY, COOL_DOWN, OPERATOR, Exclusion
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.launch.exclusions import DENIED
from slurm_elastic.providers.base.hosts.claims import Claim, Claims
from slurm_elastic.providers.base.tags import CLUSTER
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.conf.install import InstallManifest
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.credentials import health_of
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, MARK, Mark, leave_mark
from slurm_elastic.state.ledger import Health, Ledger
from slurm_elastic.watch.doctor import clouds, head, services
from slurm_elastic.watch.doctor.environment import of_the_services
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view import status_view

ME = pwd.getpwuid(os.geteuid()).pw_name
YAML = """
cluster: {{name: alps, uuid: 11111111-1111-4111-8111-111111111111}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf, bin_dir: {state}/no-slurm-here, user: {me}}}
allow: {{accounts: [physics]}}
limits: {{dollars_per_hour: 0.50}}
clouds:
  - name: near
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4G, price: 0.01}}}}
  - name: gone
    provider: local
    location: on-premises
    socket: {state}/nobody.sock
pools:
  - {{name: rack, cloud: near, nodes: "op[1-3]", cpus: 2, memory: 4G}}
  - {{name: host, cloud: gone, nodes: "h1", cpus: 2, memory: 4G, slurmd_port: 17001}}
"""
OURS = ("op1", "op2", "op3", "h1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "requests").mkdir()
    tmp_path.chmod(0o700)
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=tmp_path, me=ME))
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return configfile.load(file)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    made.health.beat("slurm-elasticd", T0 - 3, os.getpid())
    yield made
    made.close()


@pytest.fixture
def slurm() -> FakeSlurm:
    off = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
    return FakeSlurm([SlurmNode(name=n, states=off) for n in OURS])


def wrong(config: Config, slurm: FakeSlurm) -> dict[str, Finding]:
    """By part and what."""
    found = doctor.diagnose(config, slurm, T0, quick=True)
    return {
        f"{part.name}: {f.subject}": f
        for part in found.parts
        for f in part.findings
        if f.level is FindingLevel.WRONG
    }


def test_a_budget_of_an_account_that_nothing_names_is_a_note(file: Path) -> None:
    budgets = "policies: {account_budgets: {physics: {per_day: 1}, phisics: {per_day: 1}}}"
    public = "location: on-premises\n    types"
    text = file.read_text().replace(public, "location: public\n    types") + budgets
    file.write_text(text)
    (one,) = head.budgets(configfile.load(file))
    assert (one.subject, one.level) == ("budget of account phisics", FindingLevel.NOTE)
    assert one.expected == "one of physics"
    file.write_text(text.replace("accounts: [physics]", "groups: [users]"))
    assert list(head.budgets(configfile.load(file))) == [], "whoever is in the group"


@pytest.mark.usefixtures("ledger")
def test_a_cloud_that_does_not_answer_is_the_only_thing_wrong(
    config: Config, slurm: FakeSlurm
) -> None:
    found = wrong(config, slurm)
    assert list(found) == ["cloud gone: reaching it"]
    assert "nobody.sock is not running" in found["cloud gone: reaching it"].observed
    assert found["cloud gone: reaching it"].advice.startswith(
        "systemctl enable --now slurm-elastic-local"
    )


def test_credentials_that_end_soon_are_told_once(
    config: Config, slurm: FakeSlurm, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cloud itself, and not by what the daemon remembers of it, too."""
    ends = time.time() + 3 * 3600

    # Not an attribute of FakeProvider: isinstance() would remember it beyond this test.
    class EndingProvider(FakeProvider):
        def credentials_end(self) -> float:
            return ends

    monkeypatch.setattr(clouds, "open_provider", lambda *given: EndingProvider(*given[:2]))
    ledger.health.report(health_of("near", ends, T0))
    found = doctor.diagnose(config, slurm, T0, quick=True)
    told = [(part.name, f) for part in found.parts for f in part.findings if "end in" in f.observed]
    assert [(part, f.level) for part, f in told] == [("cloud near", FindingLevel.NOTE)]


def test_what_the_daemon_has_met_is_told(config: Config, slurm: FakeSlurm, ledger: Ledger) -> None:
    ledger.health.beat("slurm-elasticd", T0 - 500, os.getpid())
    error = "near: AuthFailure: no"
    ledger.health.report(Health(name="near", checked=T0 - 600, error=error, code="a"))
    ledger.exclusions.add(
        Exclusion(
            kind=BREAKER, scope="rack", count=10, until=T0 + 9, cause=Quoted(text="10 in a row")
        )
    )
    ledger.exclusions.add(
        Exclusion(
            kind=COOL_DOWN,
            scope="near/*/*/*",
            until=T0 + 9,
            code="x",
            cause=Quoted(text="y"),
            count=1,
        )
    )
    found = wrong(config, slurm)
    assert found["head node: daemon"].observed == "last heartbeat 8m 20s ago"
    assert "slurm-elastic clear rack" in found["head node: pool rack"].advice
    assert found["head node: last errors"].observed == f"{error} (10m ago)", "its name once"


def test_jobs_that_no_machine_helped_are_told(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    bought = Purchase(first_node="pub1", at=T0, open=frozenset())
    rows = [UnhelpedJob(job=n, asks="", since=T0, nodes=("pub1",)) for n in range(11, 18)]
    ledger.growth_guard.judge(bought, rows)
    parts = doctor.diagnose(config, slurm, T0, quick=True).parts
    (note,) = (one for part in parts for one in part.findings if one.subject == "waiting jobs")
    assert (note.level, note.cause) == (FindingLevel.NOTE, "unhelped jobs")
    assert note.observed.startswith(
        "Jobs 11, 12, 13, 14, 15 and 2 others: machines came up and no job"
    )
    assert "slurm-elastic clear job:11" in note.advice


def test_machines_that_serve_nobody_are_told_with_what_to_do(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    ledger.health.beat("slurm-elasticd", T0, os.getpid())
    told = "1 serves no node: i-1: the configuration no longer has cloud far"
    ledger.health.report(Health(name="paid machines", checked=T0, error=told, code="stray"))
    finding = wrong(config, slurm)["head node: last errors"]
    assert finding.observed == f"paid machines: {told} (1s ago)"
    assert "slurm-elastic clear --gone" in finding.advice


@pytest.mark.usefixtures("ledger")
def test_what_is_missing_before_the_installation_is_one_thing_to_put_right(
    config: Config, file: Path, slurm: FakeSlurm
) -> None:
    conf = file.parent / "slurm.conf"
    conf.write_text("ClusterName=alps\nNodeName=st1\nPartitionName=batch Nodes=st1 Default=YES\n")
    config = replace(config, slurm=replace(config.slurm, conf=str(conf)))
    for name in OURS:
        del slurm._nodes[name]
    slurm.set_node("st1", "IDLE")
    found = wrong(config, slurm)
    assert "conf install" in found["head node: our nodes"].advice
    assert "head node: submit filter" not in found


@pytest.mark.usefixtures("ledger")
def test_a_slurm_that_lacks_our_nodes_or_does_not_answer(config: Config, slurm: FakeSlurm) -> None:
    del slurm._nodes["op2"]
    found = wrong(config, slurm)
    assert found["head node: our nodes"].observed == "Slurm does not list 1 of 4, op2 among them"
    slurm.broken = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
    found = wrong(config, slurm)
    silent = found["head node: slurmctld"]
    assert "does not answer: sinfo: exit 1: Unable to contact" in silent.observed
    assert "systemctl status slurmctld" in silent.advice
    assert "head node: our nodes" not in found, "nothing is known of them"
    assert not [f for f in found.values() if "conf install" in f.advice]


@pytest.mark.usefixtures("ledger")
def test_a_slurm_without_any_node_says_nothing_of_ours(config: Config) -> None:
    found = wrong(config, FakeSlurm())
    assert "PrivateData=nodes" in found["head node: slurmctld"].observed
    assert "head node: our nodes" not in found


@pytest.mark.usefixtures("ledger")
def test_requests_that_nobody_takes_up(config: Config, slurm: FakeSlurm, tmp_path: Path) -> None:
    request = tmp_path / "requests" / "1-1-resume.json"
    request.write_text("{}")
    os.utime(request, (T0 - 300, T0 - 300))
    found = doctor.diagnose(config, slurm, T0, quick=True)
    (spool,) = [f for f in found.parts[-1].findings if f.subject == "requests of Slurm (spool)"]
    assert (spool.level, spool.observed) == (
        FindingLevel.NOTE,
        "1 request, the oldest waits for 5m",
    )


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710])
def test_a_state_directory_that_others_may_use(
    config: Config, slurm: FakeSlurm, tmp_path: Path, ledger: Ledger, mode: int
) -> None:
    tmp_path.chmod(mode)
    (found,) = [f for key, f in wrong(config, slurm).items() if "state directory" in key]
    assert found.observed == f"owner {ME}, mode {mode:04o}"
    assert "chmod 0700" in found.advice
    ledger.close()


def test_without_a_state_directory_nothing_ends_in_a_traceback(
    config: Config, slurm: FakeSlurm
) -> None:
    lost = msgspec.structs.replace(config, state_dir="/nonexistent/state")
    found = wrong(lost, slurm)
    assert {k for k in found if "head node" in k} == {
        "head node: state directory /nonexistent/state",
        "head node: ledger /nonexistent/state/ledger.db",
    }


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        ("check", AuthError, "credentials"),
        ("check", TransientError, "reaching it"),
        ("instances", AuthError, "listing machines"),
        ("offers", TransientError, "offers of pool rack"),
    ],
)
def test_each_call_of_a_cloud_that_fails_is_a_finding(
    config: Config, call: str, error: type, what: str
) -> None:
    cloud = config.cloud("near")
    provider = FakeProvider(cloud, config.cluster)  # type: ignore[arg-type]
    provider.fail_next(error, 1, call)
    pools = [p for p in doctor.plan.pools_of(config) if p.cloud == "near"]
    found = [f for f in clouds.look(provider, cloud, pools) if f.level is FindingLevel.WRONG]
    assert [f.subject for f in found] == [what]


def test_machines_that_have_ended_are_not_counted(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 lists them for an hour, and each is told once as lost."""
    cloud = config.cloud("near")
    provider = FakeProvider(cloud, config.cluster)  # type: ignore[arg-type]
    gone = replace(instance("op1"), state=InstanceState.TERMINATED)
    monkeypatch.setattr(provider, "instances", lambda: [gone, instance("op2")])
    found = {f.subject: f.observed for f in clouds.look(provider, cloud, [])}
    assert found["listing machines"] == "1 of this cluster"


def test_a_typed_price_below_the_clouds_own_is_wrong_with_both_numbers(config: Config) -> None:
    cloud = config.cloud("near")
    provider = FakeProvider(cloud, config.cluster)  # type: ignore[arg-type]
    pools = [p for p in doctor.plan.pools_of(config) if p.cloud == "near"]

    def prices() -> Finding | None:
        found = clouds.look(provider, cloud, pools)
        return next((f for f in found if f.subject == "prices of pool rack"), None)

    assert prices() is None, "the cloud tells none"
    provider.tell_price("small", 0.01)
    assert (good := prices()) is not None
    assert good.level is FindingLevel.OK
    provider.tell_price("small", 32.8)
    assert (bad := prices()) is not None
    assert bad.level is FindingLevel.WRONG
    assert "clouds[near].types[small].price of the configuration is $0.01/h" in bad.observed
    assert bad.expected == "at least $32.80/h"


def test_a_cloud_without_room_is_a_note(config: Config) -> None:
    cloud = config.cloud("near")
    provider = FakeProvider(cloud, config.cluster)  # type: ignore[arg-type]
    provider.limit("*", 0)
    pools = [p for p in doctor.plan.pools_of(config) if p.cloud == "near"]
    (note,) = [f for f in clouds.look(provider, cloud, pools) if f.level is FindingLevel.NOTE]
    assert note.observed == "1, none has room now"


def test_an_include_line_that_was_taken_out_after_the_install_is_the_first_thing_wrong(
    file: Path,
    slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conf = file.parent / "slurm.conf"
    conf.write_text("ClusterName=alps\n")
    manifest = InstallManifest(
        slurm_conf=configfile.load(file).slurm.conf, backup="", programs_dir="/x", files={}
    )
    (file.parent / "installed.json").write_bytes(msgspec.json.encode(manifest))
    monkeypatch.setattr(doctor, "ProbingCli", lambda _settings: slurm)
    assert main(["doctor", "--quick", "--json", "--config", str(file)]) == 1
    told = msgspec.json.decode(capsys.readouterr().out)
    found = {f["check"]: f for part in told["parts"] for f in part["findings"]}
    lost = found[configfile.load(file).slurm.conf]
    assert lost["level"] == "wrong"
    assert "the include line was taken out" in lost["found"]
    assert "slurm-elastic conf install" in lost["advice"]


@pytest.mark.parametrize("line", ["", "include slurm-elastic.conf\n"])
def test_before_conf_install_nothing_of_ours_is_missed(
    file: Path, slurm: FakeSlurm, line: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (file.parent / "slurm.conf").write_text(f"ClusterName=alps\n{line}")
    monkeypatch.setattr(doctor, "ProbingCli", lambda _settings: slurm)
    assert main(["doctor", "--quick", "--json", "--config", str(file)]) == 1
    told = msgspec.json.decode(capsys.readouterr().out)
    found = {f["check"]: f["level"] for f in told["parts"][-1]["findings"]}
    if line:
        assert found["our nodes"] == "ok"
    else:
        assert found == {"slurm.conf": "note", "slurmctld": "ok"}


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("width", [80, 160])
def test_it_fits_the_screen(config: Config, slurm: FakeSlurm, width: int) -> None:
    out = io.StringIO()
    found = doctor.diagnose(config, slurm, T0)
    doctor.render(found, Console(file=out, width=width, markup=False, highlight=False))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert "  ok    credentials: accepted" in text
    assert text.rstrip().endswith("to put right.")
    (conf,) = [f for f in found.parts[-1].findings if f.subject.endswith("slurm.conf")]
    assert conf.level is FindingLevel.WRONG, "there is none"


def test_a_damaged_ledger_is_told_with_what_becomes_of_it(
    config: Config, slurm: FakeSlurm, tmp_path: Path
) -> None:
    (tmp_path / "ledger.db").write_bytes(b"no database at all, but long enough\n" * 99)
    found = wrong(config, slurm)[f"head node: ledger {tmp_path}/ledger.db"]
    assert "is damaged" in found.observed
    assert "it sets the file aside and makes a new one" in found.advice


def of_later_release(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 99")


def test_a_ledger_of_a_later_release_is_not_told_to_be_made_by_a_start(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    ledger.close()
    of_later_release(config.state / "ledger.db")
    found = wrong(config, slurm)[f"head node: ledger {config.state}/ledger.db"]
    assert "install the newer slurm-elastic again" in found.observed
    assert found.advice == ""


def test_records_of_saves_of_a_later_release_are_a_finding(config: Config) -> None:
    CheckpointState(config.state / FILE).close()
    of_later_release(config.state / FILE)
    (found,) = services.checkpoints(config, T0)
    assert found.level is FindingLevel.WRONG
    assert "install the newer slurm-elastic again" in found.observed


def test_a_request_that_is_served_while_doctor_looks_is_no_finding(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = tmp_path / "requests"
    (requests / "bad").mkdir(parents=True)
    served = requests / "1.json"
    real = Path.glob

    def listed(path: Path, pattern: str) -> list[Path]:
        return [*real(path, pattern), *([served] if path == requests else [])]

    monkeypatch.setattr(Path, "glob", listed)
    (found,) = head.spool(config, T0)
    assert found.level is FindingLevel.OK


@pytest.mark.parametrize(
    ("name", "what", "goes_on"),
    [(MARK, "daemon", "slurm-elasticd"), (CKPTMAN_MARK, "checkpoints", "slurm-elastic-ckptman")],
)
def test_a_service_that_cannot_write_is_told_with_the_remedy(
    config: Config, tmp_path: Path, name: str, what: str, goes_on: str
) -> None:
    why = "end-only: the disk is full"
    leave_mark(tmp_path, Mark(T0, os.getpid(), why, "make room", T0), name)
    (found,) = [
        f for f in head.memory(config, T0) if f.subject == what and f.level is FindingLevel.WRONG
    ]
    assert found.observed.startswith(why)
    assert found.advice == f"make room; {goes_on} then continues without a restart"


@pytest.mark.usefixtures("ledger")
def test_the_command(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--quick", "--json", "--config", str(file)]) == 1
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["wrong"] >= 2
    for part in document["parts"]:
        for finding in part["findings"]:
            assert set(finding) == {"check", "level", "found", "expected", "advice", "cause"}
    well = doctor.Diagnosis(at=T0, wrong=0, parts=())
    monkeypatch.setattr(doctor, "diagnose", lambda *_, **__: well)
    assert main(["doctor", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "All is well.\n"
    file.write_text("clusters: {}")
    assert main(["doctor", "--config", str(file)]) == 2


def test_the_tighter_of_two_limits_bounds_what_pools_could_ask_for() -> None:
    cluster = Limits(nodes=10, dollars_per_hour=5.0)
    assert clouds.tighter(Limits(nodes=20, spot=3), cluster) == Limits(
        nodes=10, spot=3, dollars_per_hour=5.0
    )
    assert clouds.tighter(Limits(), Limits()) == Limits()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_root_looks_at_clouds_with_the_rights_of_slurm_user(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whose(*_args: object) -> tuple[Finding, ...]:
        return (Finding.ok("user", str(os.geteuid())),)

    monkeypatch.setattr(clouds, "examine", whose)
    config = replace(config, slurm=replace(config.slurm, user="nobody"))
    parts = doctor.look_at_clouds(config)
    uid = str(pwd.getpwnam("nobody").pw_uid)
    assert {f.observed for part in parts for f in part.findings if f.subject == "user"} == {uid}
    assert os.geteuid() == 0


def test_a_group_of_an_allow_list_that_is_not_there_is_a_note(config: Config) -> None:
    config = replace(config, allow=replace(config.allow, accounts=(), groups=("root", "no-such")))
    (finding,) = head.allowed_groups(config)
    assert (finding.level, finding.observed) == (
        FindingLevel.NOTE,
        "this host has no group no-such",
    )


def test_with_the_units_configuration_it_asks_as_the_services_do(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = file.parent / "defaults"
    environment.write_text("AWS_PROFILE=cluster\n")
    monkeypatch.setattr(
        service_environment, "of_the_services", lambda user: of_the_services(user, environment)
    )
    asked = []
    look = clouds.examine
    monkeypatch.setattr(
        clouds, "examine", lambda *a: (asked.append(os.environ.get("AWS_PROFILE")), look(*a))[1]
    )
    main(["doctor", "--quick", "--config", str(file)])
    assert asked == [None, None], "another configuration has other services"
    assert "defaults" not in capsys.readouterr().out
    monkeypatch.setattr(service_environment, "DEFAULT_CONFIG", str(file))
    main(["doctor", "--quick", "--config", str(file)])
    assert asked[2:] == ["cluster", "cluster"]
    assert "sets AWS_PROFILE" in " ".join(capsys.readouterr().out.split())
    assert "AWS_PROFILE" not in os.environ


def test_a_daemon_that_takes_nobody_from_its_queue_does_not_keep_doctor(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    """Any user can fill the queue of a daemon that hangs."""
    with contextlib.ExitStack() as links:
        hung = links.enter_context(socket.socket(socket.AF_UNIX))
        hung.bind(str(config.read_socket))
        hung.listen(0)
        for _ in range(4):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                link.connect(str(config.read_socket))
        found = {f.subject: f for f in head.memory(config, T0)}
    config.read_socket.unlink()
    assert found["users"].level is FindingLevel.NOTE
    assert "no answer at" in found["users"].observed


def test_who_may_act_and_who_may_only_see_is_told(config: Config, ledger: Ledger) -> None:
    users = Users(operators=("root",), viewers=("sudo", "no-such-group"))
    found = [
        (f.subject, f.level, f.observed)
        for f in head.memory(msgspec.structs.replace(config, users=users), T0)
        if f.subject.startswith("users.")
    ]
    may = "see everything, and may pause, limit, drain, replace, migrate and resume"
    assert found == [
        ("users.operators", FindingLevel.OK, f"members of root {may}"),
        ("users.viewers", FindingLevel.WRONG, "this host has no group no-such-group"),
        (
            "users.viewers",
            FindingLevel.OK,
            "members of sudo, no-such-group see everything, and change nothing",
        ),
    ]


def notes(config: Config, slurm: FakeSlurm) -> list[tuple[FindingLevel, str, str]]:
    found = doctor.diagnose(config, slurm, T0, quick=True)
    return [
        (f.level, f.subject, f.observed)
        for part in found.parts
        for f in part.findings
        if f.level is not FindingLevel.OK
    ]


def test_a_daemon_whose_process_is_gone_is_told_as_gone(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    """Its heartbeat is younger than what would be too old."""
    with subprocess.Popen(["/bin/true"]) as process:
        pass
    ledger.health.beat("slurm-elasticd", T0 - 34, process.pid)
    told = wrong(config, slurm)["head node: daemon"]
    assert told.observed == f"its process {process.pid} is gone, last heartbeat 34s ago"
    assert told.expected == "it runs: without it nothing is launched or ended"


def test_machines_that_are_gone_are_not_counted(config: Config) -> None:
    """Clouds list them for a while."""
    provider = FakeProvider(config.cloud("near"), config.cluster)  # type: ignore[arg-type]
    states = [InstanceState.RUNNING, InstanceState.TERMINATED, InstanceState.STOPPED]
    found = [
        msgspec.structs.replace(instance(f"i-{n}"), state=state) for n, state in enumerate(states)
    ]
    provider.instances = lambda: found  # type: ignore[method-assign]
    told = next(
        f for f in clouds.look(provider, config.cloud("near"), ()) if "listing" in f.subject
    )
    assert told.observed == "1 of this cluster, 1 stopped"


def test_a_service_that_stopped_is_not_well(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    never_ran = "checkpoints"
    assert never_ran not in {what for _, what, _ in notes(config, slurm)}
    ledger.health.beat("slurm-elastic-ckptman", T0 - 500, os.getpid())
    told = "slurm-elastic-ckptman does not run: last heartbeat 8m 20s ago"
    assert (FindingLevel.WRONG, "checkpoints", told) in notes(config, slurm)


def test_pools_that_start_nothing_and_why_are_told(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    reason = "the budget of $5.00 a day is spent"
    held = [
        Exclusion(kind=CAPACITY, scope=n, pool="rack", cause=Quoted(text=reason))
        for n in ("op1", "op2")
    ]
    cool = [
        Exclusion(
            kind=COOL_DOWN, scope=f"near/t/{z}/spot", until=T0 + 9, code="x", cause=Quoted(text="y")
        )
        for z in "ab"
    ]
    ledger.exclusions.add(*held, *cool)
    found = notes(config, slurm)
    assert (FindingLevel.NOTE, "pool rack", f"2 of its 3 nodes are held: {reason}") in found
    assert (
        FindingLevel.NOTE,
        "cool-down",
        "near/t/a/spot and 1 more, until 08:00:09 UTC: x: y",
    ) in found


def test_a_right_that_a_launch_lacked_is_wrong_and_says_what_to_do(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    scope, cause = "near/t/a/spot", "UnauthorizedOperation: no right to ec2:RunInstances"
    ledger.exclusions.add(
        Exclusion(kind=COOL_DOWN, scope=scope, until=T0 + 9, code=DENIED, cause=Quoted(text=cause))
    )
    told = (FindingLevel.WRONG, "cool-down", f"{scope}, until 08:00:09 UTC: Denied: {cause}")
    assert told in notes(config, slurm)


def test_one_cause_is_one_finding_and_one_count(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    """The ledger remembers what doctor has just seen itself, and nodes are held for it."""
    refused = "gone: Unreachable: nobody listens"
    slurm.broken = SlurmError(("scontrol", "ping"), 1, "is DOWN")
    for name, error in (("gone", refused), ("slurm", str(slurm.broken))):
        ledger.health.report(Health(name=name, checked=T0 - 9, error=error))
    ledger.exclusions.add(
        Exclusion(
            kind=CAPACITY, scope="h1", pool="host", cause=CloudSilent(cloud="gone", error=refused)
        ),
        Exclusion(
            kind=COOL_DOWN, scope="gone/*/*/*", until=T0 + 9, code="x", cause=Quoted(text="y")
        ),
    )
    assert [what for _, what, _ in notes(config, slurm)] == ["reaching it", "slurmctld", "users"]


def test_a_full_disk_is_one_finding(
    config: Config, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(tmp_path / "ledger.db").close()
    monkeypatch.setattr(head, "MIN_FREE_BYTES", 2**60)
    leave_mark(tmp_path, Mark(T0, os.getpid(), "no room", "make room", T0, is_disk_full=True))
    assert [key for key in wrong(config, slurm) if "head" in key] == [
        f"head node: state directory {tmp_path}"
    ]


def test_a_disk_without_room_for_more_files_is_one_finding(
    config: Config, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(tmp_path / "ledger.db").close()
    monkeypatch.setattr(head, "MIN_FREE_INODES", 2**62)
    leave_mark(tmp_path, Mark(T0, os.getpid(), "no room", "make room", T0, is_disk_full=True))
    told = {key: f for key, f in wrong(config, slurm).items() if "head" in key}
    assert list(told) == [f"head node: state directory {tmp_path}"]
    (found,) = told.values()
    assert re.fullmatch(r"\d+ MiB free, and inodes for \d+ more files", found.observed)
    assert "df -i" in found.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_on_a_full_disk_records_of_saves_cannot_be_read_and_it_says_why(
    config: Config, tmp_path: Path
) -> None:
    """A reader makes a file beside them, if the service has closed them: "disk I/O error"."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "small", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount here")
    try:
        CheckpointState(config.state / FILE).close()
        with contextlib.suppress(OSError), (tmp_path / "fill").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        (found,) = services.checkpoints(config, T0)
        assert "is full" in found.observed
        assert found.advice == f"make room on it (df {tmp_path})"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize(("inodes", "few"), [(50, True), (0, False)])
def test_room_for_files_is_asked_of_a_file_system_that_counts_them(
    config: Config, tmp_path: Path, inodes: int, few: bool
) -> None:
    """One without a number (btrfs, tmpfs with nr_inodes=0) says that it has 0 of 0."""
    options = f"size=200m,mode=0700,nr_inodes={inodes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "small", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount here")
    try:
        (found,) = head.state_directory(config)
        assert (found.level is FindingLevel.WRONG) is few
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_operators_order_is_a_note_with_its_end_and_what_it_holds_is_none(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    for word in (Pause(scope=""), LimitChange(scope="pool:rack", key="max_nodes", value=1)):
        ledger.directives.give(Directive(word=word, who="ann", since=T0, starts=T0))
    paused = StoppedByOrder.of(ledger.directives.all()[0])
    refused = OffersRefused(first_offer="rack/m1/a/reserved", count=3, cause=paused)
    ledger.exclusions.add(
        Exclusion(
            kind=OPERATOR,
            scope="op1",
            pool="rack",
            cause=paused,
        ),
        Exclusion(
            kind=CAPACITY,
            scope="op2",
            pool="rack",
            cause=NoOfferServes(groups=(refused,)),
        ),
    )
    found = doctor.diagnose(config, slurm, T0, quick=True)
    orders = [f for part in found.parts for f in part.findings if f.subject == "order"]
    assert [(one.observed, one.advice) for one in orders] == [
        (
            "the cluster is paused by ann since 2027-01-15 08:00 UTC",
            "to end it: slurm-elastic resume cluster",
        ),
        (
            "pool rack: max_nodes is 1 by ann since 2027-01-15 08:00 UTC",
            "to end it: slurm-elastic limit pool:rack max_nodes reset",
        ),
    ]
    assert not [what for _, what, _ in notes(config, slurm) if what == "pool rack"]


def test_a_pool_whose_machines_slurm_refuses_is_told_before_it_is_paused(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    cause = BootsFailed(in_a_row=1, node_reason="Low RealMemory", remedy="set `real_memory: 7400`")
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=1, cause=cause))
    finding = wrong(config, slurm)["head node: pool rack"]
    assert finding.observed.startswith("1 so far: 1 machine was taken out")
    assert finding.advice.startswith("set `real_memory: 7400`")


def test_a_clock_that_was_set_back_is_told(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    ledger.health.beat("slurm-elasticd", T0 + 7200, os.getpid())
    assert "120 min behind" in wrong(config, slurm)["head node: clock"].observed


def test_a_clock_that_is_ahead_of_the_clouds_is_told(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    """Ages, costs and budgets count from the cloud's time."""
    ledger.launches.record_intent(spec(), "r1", T0)
    ledger.machines.record_launch("g1", [instance("i-1", launched=T0 - 600)], T0)
    assert "head node: clock" not in wrong(config, slurm)
    ledger.launches.record_intent(spec("g2", nodes=("op2",)), "r2", T0 + 1)
    late = instance("i-2", node="op2", generation="g2", launched=T0 - 3600)
    ledger.machines.record_launch("g2", [late], T0 + 1)
    assert "60 min ahead" in wrong(config, slurm)["head node: clock"].observed
    assert "60 min ahead" in str(status_view(config, read_facts(config, T0 + 5)).clock)


def test_nodes_that_are_down_are_told(config: Config, slurm: FakeSlurm, ledger: Ledger) -> None:
    for name in ("op1", "op2"):
        slurm.set_node(name, "DOWN", "NOT_RESPONDING", "CLOUD", reason="Not responding")
    found = (FindingLevel.NOTE, "nodes", "nodes op[1-2] were given up by Slurm: Not responding")
    assert found in notes(config, slurm)


def test_dmtcp_without_its_firewall_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = f"""
cluster: {{name: c, uuid: 11111111-2222-3333-4444-555555555555}}
state_dir: {tmp_path}/state
checkpoint: {{method: criu, directory: {tmp_path}}}
clouds:
  - {{name: onprem, provider: local, location: on-premises}}
pools:
  - name: p
    cloud: onprem
    nodes: n1
    cpus: 1
    memory: 2G
    slurmd_port: 20000
    checkpoint: {{method: dmtcp}}
"""
    here = configfile.parse(text, "site.yaml")
    monkeypatch.setattr(services, "_ROOTS_PATH", "/nonexistent")
    (told,) = [f for f in services.checkpoints(here, T0) if f.subject == "dmtcp"]
    assert (told.level, "nftables" in told.advice) == (FindingLevel.WRONG, True)
    criu = configfile.parse(text.replace("method: dmtcp", "method: criu"), "site.yaml")
    assert not [f for f in services.checkpoints(criu, T0) if f.subject == "dmtcp"]
    (tmp_path / "nft").touch(mode=0o755)
    monkeypatch.setattr(services, "_ROOTS_PATH", str(tmp_path))
    assert not [f for f in services.checkpoints(here, T0) if f.subject == "dmtcp"]


def test_a_user_is_told_what_is_not_looked_at_and_no_fault(
    config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of ``gone`` refuses users, and no user has the services' credentials."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = doctor.diagnose(config, slurm, T0, quick=True)
    notes = {
        f"{part.name}: {f.subject}": f
        for part in found.parts
        for f in part.findings
        if f.level is not FindingLevel.OK
    }
    assert found.wrong == 0
    closed = [f for name, f in notes.items() if name.startswith("cloud ")]
    assert [f.observed for f in closed] == [
        f"not checked: the cloud's credentials are for root and {ME}"
    ] * 2
    assert notes["head node: requests and ledger"].observed.startswith("not checked: ")
    assert {f.advice for f in closed} == {f"run this as root or {ME}"}
    assert "renew" not in str(notes)
    hidden = doctor.diagnose(config, FakeSlurm(), T0, quick=True)
    assert hidden.wrong == 0, "PrivateData=nodes"


@pytest.mark.parametrize(("mode", "confined"), [(0o2755, True), (0o755, True), (0o2755, False)])
def test_mail_that_cannot_leave_the_unit_is_a_note(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mode: int, confined: bool
) -> None:
    """sendmail fails in the background, and the mail program says that all is well."""
    submitter, program = tmp_path / "postdrop", tmp_path / "mail"
    for path in (submitter, program):
        path.touch()
        path.chmod(0o755)
    submitter.chmod(mode)
    monkeypatch.setattr(head, "_SUBMITTERS", (str(tmp_path / "none"), str(submitter)))
    site = replace(config, notify=Notify(mail=("root",), mail_program=str(program)))
    words = ["setpriv", *(["--no-new-privs"] if confined else []), "sleep", "600"]
    daemon = subprocess.Popen(words)
    try:
        comm = Path(f"/proc/{daemon.pid}/comm")
        eventually(lambda: comm.read_text() == "sleep\n")
        leave_mark(config.state, Mark(at=T0, pid=daemon.pid))
        told = [f.observed for f in head.memory(site, T0) if f.subject == "notify"]
    finally:
        daemon.kill()
        daemon.wait()
    expected = f"mail by {program} may not leave: {submitter} gains no rights in our unit"
    assert told == ([expected] if confined and mode == 0o2755 else [])


def test_hosts_of_a_renamed_cloud_are_told(config: Config) -> None:
    """They have no tags: in the new cloud they are nobody's and stay on."""
    uuid = config.cluster.uuid or ""
    for name, cluster in (("rack", uuid), ("other", "another"), (config.clouds[0].name, uuid)):
        claims = Claims(name, config.state / "claims" / f"{name}.db")
        assert claims.take("r1", Claim(marks={CLUSTER: cluster}))
    told = {f.subject: f for f in head.memory(config, T0) if f.subject.startswith("claims")}
    assert list(told) == ["claims of rack"]
    assert "r1: switched on for cloud rack" in told["claims of rack"].observed
    assert "rename" in told["claims of rack"].advice


def test_an_address_that_all_users_read_is_a_note(config: Config) -> None:
    def told(webhook: str | None) -> list[FindingLevel]:
        site = msgspec.structs.replace(config, notify=Notify(webhook=webhook))
        return [f.level for f in head.memory(site, T0) if f.subject == "notify"]

    assert told("https://chat.example.org/hooks/abc") == [FindingLevel.NOTE]
    assert told("/etc/slurm-elastic/webhook") == told(None) == []
