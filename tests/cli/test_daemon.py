"""slurm-elasticd as a process: one sentence and an exit code for whatever is wrong at the start."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from emulated import running_ec2
from patience import eventually, patience

from slurm_elastic.base.errors import ConfigError, PassingError, SlurmElasticError, SlurmError
from slurm_elastic.cli.services.service import run_service
from slurm_elastic.config import Config
from slurm_elastic.controller.context import new_generation
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.state.heartbeat import read_mark
from slurm_elastic.state.ledger import Ledger
from tests.real_sshd import make_key

YAML = """
cluster: {{name: alps{uuid}}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here, command_timeout: 5}}
clouds:
  - name: onp
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4096, price: 0.1}}}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", cpus: 2, memory: 4G}}
"""
UUID = ", uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11"
COMMAND = (sys.executable, "-P", "-m", "slurm_elastic.cli.services.daemon", "--config")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


def config(state: Path, uuid: str = UUID) -> Path:
    path = state.parent / "slurm-elastic.yaml"
    path.write_text(YAML.format(uuid=uuid, state=state))
    return path


def run(path: Path, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(path)],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
        preexec_fn=before,
    )


@contextlib.contextmanager
def serving(
    path: Path, state: Path, before: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, str(path)], stderr=subprocess.PIPE, text=True, preexec_fn=before
    ) as daemon:
        try:
            eventually(lambda: (state / "prolog.sock").exists() or daemon.poll() is not None)
            assert daemon.poll() is None, daemon.stderr and daemon.stderr.read()
            yield daemon
        finally:
            daemon.kill()


def one_sentence(done: subprocess.CompletedProcess[str], code: int) -> str:
    lines = [x for x in done.stderr.splitlines() if " INFO " not in x and " WARNING " not in x]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_without_a_uuid_nothing_is_touched(state: Path) -> None:
    assert "has no UUID" in one_sentence(run(config(state, uuid="")), 2)
    assert list(state.iterdir()) == []


def test_a_missing_configuration(tmp_path: Path) -> None:
    assert "missing.yaml" in one_sentence(run(tmp_path / "missing.yaml"), 2)


def test_a_missing_state_directory(tmp_path: Path) -> None:
    said = one_sentence(run(config(tmp_path / "nowhere")), 2)
    assert "cannot be written" in said
    assert "conf install" in said


def test_a_state_directory_where_nothing_can_be_made(state: Path) -> None:
    (state / "requests").write_text("in the way")
    assert "cannot be used" in one_sentence(run(config(state)), 2)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (PassingError("the disk is full"), 75),
        (sqlite3.OperationalError("database is locked"), 75),
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (SlurmError(("sinfo",), 1, "Unable to contact slurm controller"), 75),
        (ConfigError("state_dir: no such directory"), 2),
        (SlurmElasticError("another slurm-elasticd serves it already"), 1),
    ],
)
def test_only_a_wrong_configuration_is_not_tried_again(
    state: Path, raised: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The units restart after 75 and 1, and not after 2."""

    def serve(_: Config) -> None:
        raise raised

    argv = ["--config", str(config(state))]
    assert run_service("slurm-elasticd", None, "daemon.lock", serve, argv) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_lock_file_that_finds_no_room_is_tried_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("slurm_elastic.state.locks.take", no_room)
    argv = ["--config", str(config(state))]
    assert run_service("slurm-elasticd", None, "daemon.lock", lambda _: None, argv) == 75


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "its unit lacks ReadWritePaths={state} (systemctl edit slurm-elasticd)"),
        (errno.EACCES, "give it back to SlurmUser: chown -R slurm: {state}"),
    ],
)
def test_a_state_directory_that_is_there_is_not_to_be_made(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    remedy: str,
) -> None:
    """`conf install` has made it, or refuses one of root: it is none of the remedies."""
    real = os.open

    def refused(path: object, flags: int, *rest: int, **named: int) -> int:
        if str(path).endswith("daemon.lock") and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    argv = ["--config", str(config(state))]
    assert run_service("slurm-elasticd", "", "daemon.lock", lambda _: None, argv) in (2, 75)
    told = capsys.readouterr().err
    assert os.strerror(number) in told
    assert told.endswith(remedy.format(state=state) + "\n")


def test_a_full_disk_is_no_reason_to_stop(state: Path) -> None:
    """It serves, says so where one looks, and comes back when there is room."""
    path = config(state)
    with serving(path, state, full_disk) as daemon:
        eventually(lambda: said(state))
        shown = slurm_elastic(path, "status", "--json")
        assert "is full" in json.loads(shown)["daemon"]["end_only"]
        assert json.loads(shown)["daemon"]["alive"]
        assert "End-only: the disk of" in slurm_elastic(path, "explain", "op1").splitlines()[0]
        doctor = slurm_elastic(path, "doctor", "--quick")
        assert "make room on it" in doctor
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        eventually(lambda: not said(state))
        assert (state / "ledger.db").stat().st_size


def full_disk() -> None:
    """No file may grow beyond the mark: what ENOSPC does, without a disk to fill."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def said(state: Path) -> str:
    mark = read_mark(state)
    return mark.why if mark else ""


def slurm_elastic(path: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(path), *words],
        capture_output=True, text=True, timeout=patience(60), check=False,
        env={**os.environ, "COLUMNS": "500"},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_ledger_that_is_none_is_set_aside(state: Path) -> None:
    (state / "ledger.db").write_bytes(b"not a database, but long enough to be looked at\n" * 99)
    with serving(config(state), state):
        eventually(lambda: list(state.glob("ledger.db.damaged-*")))
        eventually((state / "ledger.db").exists)
        assert (state / "ledger.db").read_bytes()[:6] == b"SQLite"


@pytest.mark.parametrize(
    ("program", "file"), [("daemon", "ledger.db"), ("ckptman", "ledger.db"),
                          ("ckptman", "checkpoints.db")],
)  # fmt: skip
def test_a_file_of_a_newer_release_is_no_reason_to_start_again(
    state: Path, program: str, file: str
) -> None:
    """The units do not restart after exit 2."""
    with contextlib.closing(sqlite3.connect(state / file)) as db:
        db.execute("pragma user_version = 99")
    done = subprocess.run(
        [sys.executable, "-m", f"slurm_elastic.cli.services.{program}", "--config", str(config(state))],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert "has schema 99, this release knows schemas up to" in one_sentence(done, 2)


def test_one_daemon_a_state_directory(state: Path) -> None:
    path = config(state)
    with serving(path, state):
        said = one_sentence(run(path), 1)
    assert "another slurm-elasticd serves" in said


def test_a_killed_daemon_is_no_obstacle(state: Path) -> None:
    path = config(state)
    with serving(path, state) as daemon:
        daemon.kill()
        daemon.wait(patience(60))
    with serving(path, state) as daemon:
        assert daemon.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop(state: Path, number: signal.Signals) -> None:
    with serving(config(state), state) as daemon:
        daemon.send_signal(number)
        assert daemon.wait(patience(60)) == 0
        assert daemon.stderr is not None
        said = daemon.stderr.read()
    assert "stopped" in said
    assert "Traceback" not in said
    assert not (state / "wake.sock").exists()


def test_while_slurm_is_dead_requests_stay(state: Path) -> None:
    request = {"kind": "resume", "hostlist": "op1", "received": time.time()}
    with serving(config(state), state):
        waiting = state / "requests" / "1-1-resume.json"
        (state / "draft").write_text(json.dumps(request))
        (state / "draft").rename(waiting)  # whole, as the daemon may look just then
        eventually(lambda: any(h.name == "slurm" and h.error for h in health(state)))
        time.sleep(3)  # three attempts are long over by then
        assert waiting.exists()


def health(state: Path) -> list[object]:
    with contextlib.closing(Ledger(state / "ledger.db", read_only=True)) as ledger:
        return list(ledger.health.all())


AWS = """
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    endpoint: {url}
    image: ami-12345678
    zones: [us-east-1a]
    catalogue: true
"""
FLEXIBLE = """
  - {name: pub, cloud: aws, nodes: "pub[1-2]", cpus: 4, memory: 8G, instance_types: {cpus: 4, max_types: 3}}
"""


def test_it_serves_anew_when_a_catalogue_has_come(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(name, value)
    (tmp_path / "ec2").mkdir()
    path = config(state)
    with running_ec2(tmp_path / "ec2") as ec2:
        clouds, pools = AWS.format(url=ec2.url), FLEXIBLE
        text = path.read_text().replace("pools:\n", f"{clouds.lstrip(chr(10))}pools:\n")
        path.write_text(text.rstrip() + pools)
        with serving(path, state) as daemon:
            ledger = state / "ledger.db"

            def told() -> bool:
                with contextlib.suppress(sqlite3.Error):
                    reader = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
                    with contextlib.closing(reader) as db:
                        rows = db.execute("select cause from decisions where kind='catalogue'")
                        return any("3 types by the catalogue" in row[0] for row in rows)
                return False

            eventually(told)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(patience(60)) == 0


NEBULA = """
  - name: neb
    provider: opennebula
    location: on-premises
    endpoint: http://127.0.0.1:1/RPC2
    auth_file: {auth}
    types: {{small: {{template: 1, cpus: 2, memory: 4G}}}}
"""
BY_SSH = """
  - {{name: neb, cloud: neb, nodes: "neb[1-2]", cpus: 2, memory: 4G, instance_types: [small]}}
join:
  head: 127.0.0.1
  ssh: {{key: {key}, munge_key: {secret}, port: {port}, host_key: "{theirs}"}}
"""


def test_with_join_ssh_machines_that_boot_are_gone_to_by_ssh(state: Path, tmp_path: Path) -> None:
    """Whether their cloud answers or not, and again where a try came to nothing."""
    theirs = make_key(tmp_path / "theirs").rpartition(" ")[0]
    make_key(tmp_path / "ours")
    for name, text in (("munge.key", "0123456789abcdef" * 8), ("auth", "oneadmin:none")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o400)
    path, now = config(state), time.time()
    machine = Instance(
        id="1", cloud="neb", node="neb1", generation=new_generation(now), instance_type="small",
        zone="z", market=Market.ON_DEMAND, price=0.0, state=InstanceState.RUNNING, launched=now,
        address="127.0.0.1",
    )  # fmt: skip
    with contextlib.closing(Ledger(state / "ledger.db")) as ledger:
        ledger.machines.adopt(machine, "neb", now)
    with socket.create_server(("127.0.0.1", 0)) as sshd:
        port = sshd.getsockname()[1]
        clouds = NEBULA.format(auth=tmp_path / "auth")
        pools = BY_SSH.format(
            key=tmp_path / "ours", secret=tmp_path / "munge.key", port=port, theirs=theirs
        )
        text = path.read_text().replace("pools:\n", f"{clouds.lstrip(chr(10))}pools:\n")
        path.write_text(text.rstrip() + pools)
        sshd.settimeout(patience(60))
        with serving(path, state):
            for _ in range(2):
                link, _ = sshd.accept()
                with link:
                    link.settimeout(patience(60))
                    assert link.recv(8) == b"SSH-2.0-"


# whom it hears, and whom it tells


def test_it_listens_to_nobody_but_at_unix_sockets(state: Path) -> None:
    """One connection that drips would keep it from ending, and its machines from starting."""
    with serving(config(state), state) as daemon:
        eventually(lambda: Path(f"{state}.sock").exists())
        assert _sockets(daemon.pid, "unix")
        assert not _sockets(daemon.pid, "tcp") | _sockets(daemon.pid, "tcp6")


def _sockets(pid: int, kind: str) -> set[str]:
    """Its inodes of that kind (proc(5))."""
    rows = Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
    known = {row.split()[6 if kind == "unix" else 9] for row in rows}
    own = set()
    for number in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(number).removeprefix("socket:[").removesuffix("]"))
    return known & own


def test_people_are_told_by_the_running_service(state: Path, tmp_path: Path) -> None:
    hook, told = tmp_path / "hook", tmp_path / "told.json"
    hook.write_text(f"#!/bin/sh\ncat > {told}.part && mv {told}.part {told}\n")
    hook.chmod(0o755)
    path = config(state)
    text = yaml.safe_load(YAML.format(uuid=UUID, state=state))
    path.write_text(yaml.safe_dump({**text, "notify": {"command": [str(hook)]}}))
    ledger = Ledger(state / "ledger.db")
    pause = Exclusion(
        kind=BREAKER, scope="rack", until=time.time() + 3600, cause=Quoted(text="never up"), count=9
    )
    ledger.exclusions.add(pause)
    ledger.close()
    with serving(path, state):
        eventually(told.exists)
    assert json.loads(told.read_text())["text"] == "pool rack is paused: never up"


CHOOSING = """
import sys
from slurm_elastic.features.growth.policy_chooser import PolicyChooser
assert PolicyChooser.__init__.__defaults__[1] == 600.0
PolicyChooser.__init__.__defaults__ = (PolicyChooser.__init__.__defaults__[0], 1.0)
from slurm_elastic.cli.services.daemon import main
sys.exit(main(sys.argv[1:]))
"""


def test_it_serves_with_the_policy_that_it_has_chosen(state: Path, tmp_path: Path) -> None:
    """In the same process, without a request to systemd."""
    from tests.features.test_policy_chooser import AMONG, stand_in

    commands = stand_in(tmp_path)
    (tmp_path / "slurm.conf").write_text("ClusterName=alps\n")
    text = YAML.format(uuid=UUID, state=state).replace("on-premises", "public")
    text = text.replace(f"{state}/no-slurm-here", f"{commands}, conf: {tmp_path}/slurm.conf")
    path, log = tmp_path / "slurm-elastic.yaml", tmp_path / "log"
    among = f"{{among: [{', '.join(map(repr, AMONG))}], max_wait: 600}}"
    path.write_text(f"{text}policies: {{growth: slurm, release: idle(86400), choose: {among}}}\n")
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", CHOOSING, "--config", str(path)], stderr=stderr
        ) as daemon,
    ):
        try:
            eventually(lambda: log.read_text().count("serving cluster=alps") == 2)
            time.sleep(3)  # it would choose again by now
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(patience(60)) == 0
        finally:
            daemon.kill()
    said = log.read_text()
    assert said.count("serving cluster=") == 2
    assert said.count("from now on: the cheapest") == 1
    assert json.loads((state / "policy-choice.json").read_text())["policy"] in AMONG
    assert "Traceback" not in said


RESTARTING = """
import sys, threading, time
from pathlib import Path
from slurm_elastic.cli.services import daemon

class Chooser:
    '''Restarts slurm-elasticd once a file is there, as a choice of another policy does.'''

    def __init__(self, plain, record, changed):
        self._request, self._changed = plain.state / "restart", changed

    def start(self):
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self):
        while not self._request.exists():
            time.sleep(0.05)
        self._request.unlink()
        self._changed()

    def stop(self):
        pass

daemon.PolicyChooser, daemon.CLOUD_RETRY_S = Chooser, 0.2
sys.exit(daemon.main(sys.argv[1:]))
"""


def test_a_restart_while_the_only_cloud_cannot_be_opened_serves_on(
    state: Path, tmp_path: Path
) -> None:
    user_data, log = tmp_path / "user-data", tmp_path / "log"
    path = tmp_path / "slurm-elastic.yaml"
    user_data.write_text("#!/bin/sh\n")
    text = yaml.safe_load(YAML.format(uuid=UUID, state=state))
    (cloud,) = yaml.safe_load(NEBULA.format(auth=tmp_path / "auth"))
    text["clouds"] = [{**cloud, "user_data": str(user_data)}]
    pool = {"name": "neb", "cloud": "neb", "nodes": "neb1", "cpus": 2, "memory": "4G"}
    text["pools"] = [{**pool, "instance_types": ["small"]}]
    text["policies"] = {"choose": {"among": ["slurm + idle(600)"]}}
    path.write_text(yaml.safe_dump(text))
    command = [sys.executable, "-c", RESTARTING, "--config", str(path)]

    def serves(times: int) -> bool:
        assert daemon.poll() is None, log.read_text()
        return log.read_text().count("serving cluster=alps") == times

    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as daemon:
        try:
            eventually(lambda: serves(1))
            user_data.rename(tmp_path / "moved")
            (state / "restart").touch()
            eventually(lambda: serves(2))
            (tmp_path / "moved").rename(user_data)
            eventually(lambda: serves(3))
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(patience(60)) == 0
        finally:
            daemon.kill()
    said = log.read_text()
    assert (
        "cloud cannot be used, other clouds keep working; will be retried: user_data of cloud 'neb'"
        in said
    )
    assert "cloud can be used again clouds=neb" in said
