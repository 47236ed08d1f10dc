"""slurm-elastic-resume, -suspend and -resume-fail as slurmctld runs them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.model.slurm import Request
from slurm_elastic.state.spool import Spool
from tests.machine.programs.installed import Installed, modules_of

SETPRIV = ("setpriv", "--reuid=65534", "--clear-groups")
RESUME_22_05 = {"jobs": [{"job_id": 1, "nodes": "pub[1-2]"}], "all_nodes": "pub[1-2]"}
RESUME_24_11 = {
    "jobs": [
        {
            "extra": None,
            "job_id": 1,
            "features": None,
            "nodes_alloc": "pub[1-3]",
            "nodes_resume": "pub[1-2]",
            "oversubscribe": "OK",
            "partition": "cloud",
            "reservation": None,
        }
    ],
    "all_nodes_resume": "pub[1-2]",
}


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def resume_file(tmp_path: Path, content: object) -> dict[str, str]:
    path = tmp_path / "resume.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return {"SLURM_RESUME_FILE": str(path), "SLURM_CONF": "/etc/slurm/slurm.conf"}


def only(installed: Installed) -> Request:
    """The one request that waits; nothing else lies in the directory."""
    (request,) = Spool(installed.state).pending()
    assert os.listdir(installed.state / "requests") == [f"{request.id}.json"]
    return request


@pytest.mark.parametrize("content", [RESUME_22_05, RESUME_24_11])
def test_a_resume_is_kept_with_its_jobs(
    installed: Installed, tmp_path: Path, content: object
) -> None:
    before = time.time()
    env = resume_file(tmp_path, content)
    assert installed.run("slurm-elastic-resume", "pub[1-2]", env=env) == (0, "")
    request = only(installed)
    assert request.kind == "resume"
    assert request.nodes == ("pub1", "pub2")
    assert request.jobs == {1: ("pub1", "pub2")}
    assert request.note is None
    assert before <= request.received <= time.time()
    kept = (installed.state / "requests" / f"{request.id}.json").read_text()
    assert json.loads(kept.partition("\n")[2]) == content


@pytest.mark.parametrize("kind", ["suspend", "resume-fail"])
def test_the_name_of_the_program_is_the_kind(installed: Installed, kind: str) -> None:
    assert installed.run(f"slurm-elastic-{kind}", "pub7") == (0, "")
    request = only(installed)
    assert (request.kind, request.nodes, request.note) == (kind, ("pub7",), None)
    assert request.id.endswith(f"-{kind}")


def test_several_arguments_are_one_hostlist(installed: Installed) -> None:
    assert installed.run("slurm-elastic-suspend", "a[1-2]", "", "b3")[0] == 0
    assert only(installed).nodes == ("a1", "a2", "b3")


def test_five_thousand_scattered_nodes(installed: Installed, tmp_path: Path) -> None:
    names = [f"rack{i % 50}-node{i * 7 % 99991}" for i in range(5000)]
    hostlist = compress(names)
    jobs = [{"job_id": i, "nodes": name} for i, name in enumerate(names)]
    env = resume_file(tmp_path, {"jobs": jobs, "all_nodes": hostlist})
    assert installed.run("slurm-elastic-resume", hostlist, env=env) == (0, "")
    request = only(installed)
    assert sorted(request.nodes) == sorted(names)
    assert len(request.jobs) == 5000


def test_requests_of_one_moment_do_not_meet(installed: Installed) -> None:
    running = [installed.start("slurm-elastic-suspend", f"n{i}") for i in range(20)]
    assert [process.wait(patience(60)) for process in running] == [0] * 20
    assert {r.nodes[0] for r in Spool(installed.state).pending()} == {f"n{i}" for i in range(20)}
    for process in running:
        process.communicate()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "empty"),
        (b'{"jobs": [', "Expecting value"),
        (b"\n", "Expecting value"),
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xff\xfe{}", "can't decode byte"),
        (b"[" * 100_000, "recursion"),
        (b'{"jobs": []} trailing', "Extra data"),
        (b"{'jobs': 1}", "double quotes"),
    ],
)
def test_an_unreadable_resume_file_does_not_lose_the_request(
    installed: Installed, tmp_path: Path, content: bytes, complaint: str
) -> None:
    env = resume_file(tmp_path, content)
    assert installed.run("slurm-elastic-resume", "pub[1-2]", env=env) == (0, "")
    request = only(installed)
    assert request.nodes == ("pub1", "pub2")
    assert request.jobs == {}
    assert complaint in (request.note or "")


def test_the_resume_file_is_kept_as_it_came(installed: Installed, tmp_path: Path) -> None:
    content = b'{\n "jobs": [\xff\n\n'
    installed.run("slurm-elastic-resume", "a", env=resume_file(tmp_path, content))
    kept = (installed.state / "requests" / f"{only(installed).id}.json").read_bytes()
    assert kept.partition(b"\n")[2] == content


def test_known_requests_are_not_read_again(installed: Installed) -> None:
    installed.run("slurm-elastic-suspend", "a")
    spool = Spool(installed.state)
    (request,) = spool.pending()
    assert list(spool.pending({request.id})) == []
    assert spool.count() == 1


def test_a_missing_resume_file_is_noted(installed: Installed, tmp_path: Path) -> None:
    installed.run("slurm-elastic-resume", "a", env={"SLURM_RESUME_FILE": str(tmp_path / "gone")})
    assert "No such file" in (only(installed).note or "")


def test_an_unset_resume_file_is_noted(installed: Installed) -> None:
    installed.run("slurm-elastic-resume", "a")
    assert only(installed).note == "SLURM_RESUME_FILE is not set"


def test_a_resume_file_that_nobody_writes_does_not_hang_it(
    installed: Installed, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    env = {"SLURM_RESUME_FILE": str(tmp_path / "fifo")}
    assert installed.run("slurm-elastic-resume", "a", env=env)[0] == 0
    assert only(installed).note is not None


@pytest.mark.parametrize("running", [("wake.sock", "ckptman.sock"), ("ckptman.sock",)])
def test_the_services_are_woken(installed: Installed, running: tuple[str, ...]) -> None:
    with contextlib.ExitStack() as closing:
        services = [closing.enter_context(WakeSocket(installed.state / s)) for s in running]
        installed.run("slurm-elastic-suspend", "a")
        assert [s.wait(patience(10)) for s in services] == [[b'{"event": "suspend"}']] * len(
            running
        )


def test_a_dead_daemons_socket_does_not_matter(installed: Installed) -> None:
    WakeSocket(installed.state / "wake.sock")._socket.close()
    assert installed.run("slurm-elastic-suspend", "a") == (0, "")
    assert only(installed).nodes == ("a",)


def test_a_daemon_that_does_not_read_does_not_block_it(installed: Installed) -> None:
    with WakeSocket(installed.state / "wake.sock") as wake:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            here = os.open(installed.state, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.sendto(b"x", f"/proc/self/fd/{here}/wake.sock")
            os.close(here)
        assert installed.run("slurm-elastic-suspend", "a") == (0, "")
        assert len(wake.wait(0)) > 1


@pytest.mark.parametrize("arguments", [(), ("",)])
def test_no_nodes_is_refused(installed: Installed, arguments: tuple[str, ...]) -> None:
    code, said = installed.run("slurm-elastic-resume", *arguments)
    assert code == 1
    assert "usage:" in said
    assert "HOSTLIST" in said
    assert os.listdir(installed.state / "requests") == []
    assert "usage:" in (installed.state / "programs.log").read_text()


def test_another_name_is_refused(installed: Installed) -> None:
    os.rename(installed.programs / "slurm-elastic-resume", installed.programs / "power")
    code, said = installed.run("power", "a")
    assert code == 1
    assert "must be named slurm-elastic-KIND" in said


def test_missing_settings(installed: Installed) -> None:
    os.unlink(installed.programs / "settings")
    code, said = installed.run("slurm-elastic-resume", "a")
    assert code == 1
    assert "settings" in said
    assert "Traceback" not in said


def test_settings_without_a_state_directory(installed: Installed) -> None:
    installed.settings("partitions=cloud", keep=False)
    code, said = installed.run("slurm-elastic-resume", "a")
    assert code == 1
    assert "no value for state_dir" in said


def test_settings_with_odd_characters(installed: Installed, tmp_path: Path) -> None:
    odd = tmp_path / "a $(touch owned) `b` = 'c' \"d\" é"
    (odd / "requests").mkdir(parents=True)
    installed.settings("# a comment = with a sign", "", f"state_dir={odd}")
    assert installed.run("slurm-elastic-suspend", "a") == (0, "")
    assert [request.nodes for request in Spool(odd).pending()] == [("a",)]


def test_a_missing_spool(installed: Installed) -> None:
    os.rmdir(installed.state / "requests")
    code, said = installed.run("slurm-elastic-resume", "a")
    assert code == 1
    assert "No such file or directory" in said
    assert "Traceback" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_unwritable_spool() -> None:
    # Not tmp_path: each start of pytest closes the directory above it to other users.
    with tempfile.TemporaryDirectory(prefix="se-power-", dir="/tmp") as name:
        installed = Installed(Path(name))
        for path in (
            Path(name), installed.state, installed.state / "requests", installed.programs
        ):  # fmt: skip
            path.chmod(0o755)
        done = subprocess.run(
            [*SETPRIV, str(installed.programs / "slurm-elastic-resume"), "a"],
            env={"PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "Permission denied" in done.stderr
        assert os.listdir(installed.state / "requests") == []


def limit_file_size() -> None:
    """Every write beyond 100 bytes fails, as on a full disk; the signal would kill it before."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_nothing_half_written_remains_when_the_write_breaks_off(
    installed: Installed, tmp_path: Path
) -> None:
    done = subprocess.run(
        [str(installed.programs / "slurm-elastic-resume"), "pub[1-2]"],
        env=resume_file(tmp_path, RESUME_24_11),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_file_size,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert os.listdir(installed.state / "requests") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk(installed: Installed, tmp_path: Path) -> None:
    requests = installed.state / "requests"
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "small", str(installed.state)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount here")
    try:
        requests.mkdir()
        # 4 KiB is one page: it takes the first request and not the second one.
        assert installed.run("slurm-elastic-suspend", "a")[0] == 0
        code, said = installed.run("slurm-elastic-suspend", "b")
        assert code == 1
        assert "No space left on device" in said
        assert [request.nodes for request in Spool(installed.state).pending()] == [("a",)]
        assert len(os.listdir(requests)) == 1
    finally:
        subprocess.run(["umount", str(installed.state)], check=True)


def test_the_log_of_failures_is_bounded(installed: Installed) -> None:
    log = installed.state / "programs.log"
    log.write_bytes(b"x" * (1 << 20))
    assert installed.run("slurm-elastic-resume")[0] == 1
    assert log.stat().st_size == 1 << 20


def test_it_starts_with_signals_blocked(installed: Installed) -> None:
    process = installed.start(
        "slurm-elastic-suspend", "a", blocked=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]
    )
    process.communicate(timeout=patience(60))
    assert process.returncode == 0
    assert only(installed).nodes == ("a",)


def test_it_loads_next_to_nothing() -> None:
    """Which modules, and not how long: a timing would say nothing on a busy machine."""
    loaded = modules_of("power.py")
    assert not loaded & {
        "json",
        "re",
        "contextlib",
        "socket",
        "subprocess",
        "logging",
        "argparse",
        "tempfile",
        "pathlib",
    }
    assert not any(name.startswith(("slurm_elastic", "msgspec")) for name in loaded)


def test_a_python_without_the_c_parts_of_json(installed: Installed, tmp_path: Path) -> None:
    program = installed.programs / "slurm-elastic-resume"
    blocked = "import sys; sys.modules['_json'] = None; "
    code = f"{blocked}sys.argv = [{str(program)!r}, 'pub[1-2]']; exec(open(sys.argv[0]).read())"
    env = resume_file(tmp_path, RESUME_24_11)
    done = subprocess.run(["/usr/bin/python3", "-IS", "-c", code], env=env, check=False)
    assert done.returncode == 0
    assert only(installed).jobs == {1: ("pub1", "pub2")}
