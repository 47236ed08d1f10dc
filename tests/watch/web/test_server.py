"""The page's server: who gets in, what goes out, and that nothing is read more often than it is worth."""

from __future__ import annotations

import contextlib
import grp
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import needs
import pytest
from patience import eventually, patience
from ports import free_ports
from real_sshd import Sshd
from starlette.requests import Request
from status_cases import busy_ledger, config_file

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.cli.main import main
from slurm_elastic.watch.web import connection
from slurm_elastic.watch.web.documents import MAX_DOCUMENTS, Documents, DocumentSource, Query
from slurm_elastic.watch.web.listening import ListenAddress, listening, own_place, place
from slurm_elastic.watch.web.server import PageServer, application, visitor_name
from slurm_elastic.watch.web.visitors import SocketVisitors
from tests.watch.web.stage import served

BIG = json.dumps({"at": 1.0, "text": "x" * 5000})


def ask(
    address: str, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=patience(30))
    try:
        link.request(method, path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        link.close()


def refuses(_: object) -> str:
    raise SlurmElasticError("the ledger <b> cannot be read")


def test_every_answer_forbids_what_is_not_the_pages_own() -> None:
    with served({"status": lambda _: BIG, "explain": refuses}) as address:
        for path, code in (
            ("/", 200), ("/app.js", 200), ("/api/status", 200), ("/api/explain", 422),
            ("/api/nothing", 404), ("/no-such-file", 404), ("/../server.py", 404),
            ("/%2e%2e/server.py", 404),
        ):  # fmt: skip
            found, headers, _ = ask(address, path)
            assert found == code, path
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == ("no-store" if "/api/" in path else "no-cache")
        _, headers, said = ask(address, "/api/explain")
        assert headers.get_content_type() == "application/json"
        assert json.loads(said) == {"error": "the ledger <b> cannot be read"}


@pytest.mark.parametrize(
    ("peer", "visitor"),
    [(None, ""), (Peer(uid=0), "root"), (Peer(uid=65534), "nobody")],
)
def test_a_document_knows_which_user_visits(peer: Peer | None, visitor: str) -> None:
    state = {} if peer is None else {"peer": peer}
    request = Request({"type": "http", "state": state, "headers": []})
    assert visitor_name(request, SocketVisitors(lambda: None, lambda: frozenset({0}))) == visitor
    assert visitor_name(request, None) == ""


def test_no_visitor_names_oneself() -> None:
    def made(query: Query) -> str:
        return json.dumps(dict(query))

    documents = Documents({"mine": DocumentSource(make=made, fresh=0.0, takes=("user", "visitor"))})
    app = application(documents)
    with socket.create_server(("127.0.0.1", 0)) as link:
        server = PageServer(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [link]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{link.getsockname()[1]}/"
            _, _, said = ask(address, "/api/mine?user=ann&visitor=root")
        finally:
            server.should_exit = True
            thread.join(patience(30))
    assert json.loads(said) == {"user": "ann", "visitor": ""}


def test_nothing_can_be_written() -> None:
    with served({"status": lambda _: BIG}) as address:
        for path in ("/", "/api/status", "/api/events"):
            assert [ask(address, path, method)[0] for method in ("POST", "PUT", "DELETE")] == [
                405
            ] * 3


def test_a_port_is_for_who_has_the_key_and_names_this_host() -> None:
    with served({"status": lambda _: BIG}, key="k3y") as address:
        for path in ("/", "/api/status", "/api/events", "/?key=", "/?key=k3yy", "/app.js"):
            assert ask(address, path)[0] == 403, path
        code, headers, _ = ask(address, "/?key=k3y")
        assert (code, headers["Location"]) == (303, ".")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(address, "/api/status", Cookie=cookie.partition(";")[0])[0] == 200
        assert ask(address, "/?key=k3y", Host="evil.example")[0] == 400


def test_idle_connections_of_strangers_keep_nobody_out() -> None:
    """Any user of the host can connect to a port."""
    with served({"status": lambda _: BIG}, key="k3y") as address, contextlib.ExitStack() as open_:
        place = urlsplit(address)
        assert place.hostname
        assert place.port
        for number in range(140):
            link = open_.enter_context(
                socket.create_connection((place.hostname, place.port), patience(30))
            )
            link.sendall(b"GET /api/status HTTP/1.1\r\n"[: number % 27])
        cookie = ask(address, "/?key=k3y")[1]["Set-Cookie"].partition(";")[0]
        for _ in range(5):
            assert ask(address, "/api/status", Cookie=cookie)[0] == 200


@pytest.mark.parametrize(("name", "code"), [("evil.example", b"400"), ("localhost", b"403")])
def test_a_stranger_has_one_answer_a_connection(name: str, code: bytes) -> None:
    """Who asks on and takes none would keep the connection busy, and such a one is never dropped."""
    with served({"status": lambda _: BIG}, key="k3y") as address:
        place = urlsplit(address)
        assert place.hostname
        assert place.port
        with socket.create_connection((place.hostname, place.port), patience(30)) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode() * 3)
            found = []
            with link.makefile("rb") as answers, contextlib.suppress(ConnectionResetError):
                found += (line.split()[1] for line in answers if line.startswith(b"HTTP/"))
        assert found in ([code], []), "one, of which a reset may take the rest"
        assert ask(address, Host=name)[1]["Connection"] == "close"


def test_who_asks_has_so_long_for_a_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte comes, in the first request of a connection or a later one."""
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 0.5)
    for before in (b"", b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with served({"status": lambda _: "{}"}) as address:
            place = urlsplit(address)
            assert place.hostname
            assert place.port
            with socket.create_connection((place.hostname, place.port), patience(30)) as link:
                link.sendall(before + b"GET / HTTP/1.1\r\n")
                if before:
                    assert b"200 OK" in link.recv(1 << 16)
                with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012
                    for _ in range(int(patience(30) / 0.1)):
                        link.sendall(b"X")
                        time.sleep(0.1)


def test_words_that_a_document_does_not_go_by_make_no_other_one() -> None:
    made: list[object] = []

    def doctor(query: object) -> str:
        made.append(query)
        return "{}"

    with served({"doctor": doctor}, fresh=1000.0) as address:
        for number in range(5):
            assert ask(address, f"/api/doctor?x={number}&subject={number}")[0] == 200
    assert made == [{}]


def test_who_waits_for_a_slow_document_is_in_nobodys_way() -> None:
    go_on = threading.Event()

    def doctor(_: object) -> str:
        go_on.wait(patience(60))
        return "{}"

    with served({"status": lambda _: BIG, "doctor": doctor}, fresh=1000.0) as address:
        codes: list[int] = []
        asking = [
            threading.Thread(target=lambda: codes.append(ask(address, "/api/doctor")[0]))
            for _ in range(60)  # more than there are threads (anyio's limit is 40)
        ]
        for one in asking:
            one.start()
        try:
            assert ask(address, "/api/status")[0] == 200
        finally:
            go_on.set()
            for one in asking:
                one.join()
        assert codes == [200] * 60


def test_a_long_document_is_compressed_for_who_takes_it() -> None:
    with served({"status": lambda _: BIG}) as address:
        _, headers, body = ask(address, "/api/status", **{"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert len(body) < 500
        assert ask(address, "/api/status")[2].decode() == BIG


def test_pages_are_told_of_a_new_status_and_of_trouble() -> None:
    said = ["one"]

    def status(_: object) -> str:
        if not said:
            raise SlurmElasticError("away")
        return said[0]

    with served({"status": status}) as address:
        link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=patience(30))
        link.request("GET", "/api/events")
        answer = link.getresponse()
        assert answer.headers.get_content_type() == "text/event-stream"

        def until(line: bytes) -> bytes:
            while answer.readline() != line:
                pass
            return answer.readline()

        until(b"event: fresh\n")
        said.clear()
        assert until(b"event: trouble\n") == b'data: "away"\n'
        answer.close()
        link.close()


def test_a_document_is_made_once_for_all_who_ask_meanwhile() -> None:
    began, go_on, made = threading.Event(), threading.Event(), []

    def slow(query: object) -> str:
        began.set()
        go_on.wait(patience(30))
        made.append(query)
        return f"{len(made)}"

    documents = Documents({"cost": DocumentSource(make=slow, fresh=1000.0, takes=("by",))})
    got: list[bytes] = []
    asking = [
        threading.Thread(target=lambda: got.append(documents.get("cost", {"by": "user"}).body))
        for _ in range(5)
    ]
    for one in asking:
        one.start()
    began.wait(patience(30))
    go_on.set()
    for one in asking:
        one.join()
    assert got == [b"1"] * 5
    assert documents.get("cost", {"by": "job"}).body == b"2"


def test_a_document_is_good_for_longer_where_it_takes_long_and_errors_are_not_kept() -> None:
    said = ["ill", "well"]

    def source(_: object) -> str:
        word = said.pop(0)
        if word == "ill":
            raise SlurmElasticError(word)
        time.sleep(0.02)
        return word

    documents = Documents({"status": DocumentSource(make=source, fresh=0.0, takes=("n",))})
    with pytest.raises(SlurmElasticError):
        documents.get("status", {})
    began = time.monotonic()
    assert documents.get("status", {}).until - began >= 0.2
    said += [str(n) for n in range(2 * MAX_DOCUMENTS)]
    for n in range(2 * MAX_DOCUMENTS):
        documents.get("status", {"n": str(n)})
    assert len(documents._readings) == MAX_DOCUMENTS


@pytest.mark.parametrize("text", ["0.0.0.0:80", "head.example:80", "10.1.2.3:80", "8411", ":8411",
                                  "127.0.0.1:70000", "127.0.0.1:x", "::1:80", ""])  # fmt: skip
def test_it_listens_on_this_host_alone(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an IPv4 loopback address|neither a path"):
        place(text)


def test_a_unix_socket_is_its_owners_and_a_groups(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    own = grp.getgrgid(os.getgid()).gr_name
    for group, mode in (("", 0o600), (own, 0o660)):
        with listening(place(str(path)), group):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert not path.exists()
    with (
        pytest.raises(SlurmElasticError, match="no group"),
        listening(ListenAddress(path=path), "no-such"),
    ):
        pass
    path.write_text("a file")
    with (
        pytest.raises(SlurmElasticError, match="exists and is no socket"),
        listening(ListenAddress(path=path)),
    ):
        pass
    assert path.read_text() == "a file"


def test_the_command_serves_what_the_commands_print(tmp_path: Path) -> None:
    file, sock = config_file(tmp_path), tmp_path / "page.sock"
    busy_ledger(tmp_path / "ledger.db").close()
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(file), "web"]
    process = subprocess.Popen(
        [*command, "--listen", str(sock)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert f"listening at {sock}" in process.stdout.readline()
        for path, wanted in (
            ("/api/status", '"slurm_error":'), ("/api/explain?subject=op1", "does not answer"),
            ("/api/explain?subject=op1", '"end_reason":'),
            ("/api/explain?subject=nothing-known", "nothing is known about"),
            ("/api/explain", "needs a node"), ("/api/cost?by=user", '"by":"user"'),
            ("/api/cost?by=colour", "expected one of"), ("/api/cost?since=never", "neither a date"),
            ("/api/doctor", '"parts":'), ("/api/day?span=2h", "expected one of"),
            ("/api/day?span=6h", '"step_s":60.0'),
        ):  # fmt: skip
            assert wanted in over(sock, path), path
    finally:
        process.terminate()
        code = process.wait(patience(30))
        assert process.stdout is not None
        process.stdout.close()
    assert (code, sock.exists()) == (0, False)


@pytest.mark.parametrize("runtime", ["", "run"])
def test_without_a_place_it_listens_at_a_socket_of_the_users_own(
    open_path: Path, runtime: str
) -> None:
    (open_path / "run").mkdir()
    there = {
        "XDG_RUNTIME_DIR": str(open_path / runtime) if runtime else "",
        "TMPDIR": str(open_path),
    }
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config"]
    with subprocess.Popen(
        [*command, str(config_file(open_path)), "web"],
        env={**os.environ, **there}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            sock = Path(said.partition("listening at ")[2].partition(";")[0])
            assert sock.name == "slurm-elastic-web.sock"
            assert sock.parent == open_path / "run" if runtime else sock.parent.parent == open_path
            assert f"ssh -L 8411:{sock} " in said
            assert stat.S_IMODE(sock.stat().st_mode) == 0o600
            if not runtime:
                assert stat.S_IMODE(sock.parent.stat().st_mode) == 0o700
            assert "200 OK" in over(sock, "/")
        finally:
            process.terminate()
            process.wait(patience(30))
    assert not sock.exists()
    assert runtime or not sock.parent.exists()


AS_NOBODY = """
import os, socket, sys
os.setgroups([int(gid) for gid in sys.argv[2:]]); os.setgid(65534); os.setuid(65534)
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
try:
    link.sendall(b"GET / HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
    sys.stdout.write(link.recv(64).decode())
except ConnectionError:
    pass
"""


@needs.ROOT
def test_a_socket_asks_the_kernel_who_connects(open_path: Path) -> None:
    """Whatever mode somebody gave it."""
    sock, group = open_path / "page.sock", grp.getgrnam("sudo").gr_gid
    documents = Documents({})
    with listening(ListenAddress(path=sock)) as link:
        running = PageServer(application(documents), group)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [link]})
        thread.start()
        try:
            sock.chmod(0o666)
            assert "200 OK" in over(sock, "/")
            for groups, expected in (((), ""), ((group,), "HTTP/1.1 200 OK")):
                command = [sys.executable, "-c", AS_NOBODY, str(sock), *map(str, groups)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                assert done.stdout.startswith(expected)
                assert bool(done.stdout) == bool(expected)
        finally:
            running.should_exit = True
            thread.join(patience(30))


@needs.ROOT
def test_the_socket_is_looked_at_from_a_desk_by_ssh(open_path: Path) -> None:
    """As docs/web.md says."""
    sshd, (port,) = Sshd(open_path / "sshd"), free_ports(1)
    documents = Documents({"status": DocumentSource(make=lambda _: BIG, fresh=60.0)})
    with sshd.running(), listening(ListenAddress(path=open_path / "page.sock")) as link:
        running = PageServer(application(documents))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [link]})
        thread.start()
        options = [
            "-F", "/dev/null", "-i", str(sshd.key), "-p", str(sshd.port),
            "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o", "ExitOnForwardFailure=yes",
        ]  # fmt: skip
        command = ["ssh", "-N", *options, "-L", f"{port}:{open_path}/page.sock", "root@127.0.0.1"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as ssh:
            try:
                found = eventually(lambda: _at_desk(port, "localhost"))
                assert found == (200, BIG.encode())
                # A page of somebody's own whose name leads to this end.
                assert _at_desk(port, "evil.example") == (400, b"Invalid host header")
            finally:
                ssh.terminate()
                ssh.wait(patience(30))
                running.should_exit = True
                thread.join(patience(30))


def _at_desk(port: int, name: str) -> tuple[int, bytes] | None:
    """None while nobody listens there."""
    with contextlib.suppress(OSError):
        status, _, body = ask(f"http://127.0.0.1:{port}/", "/api/status", Host=name)
        return status, body
    return None


def test_it_answers_at_the_address_that_it_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config"]
    with subprocess.Popen(
        [*command, str(config_file(tmp_path)), "web", "--listen", "127.0.0.2:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().split()[-1])
            link = http.client.HTTPConnection(address.netloc, timeout=patience(30))
            link.request("GET", f"/?{address.query}")
            assert link.getresponse().status == 303
            link.close()
        finally:
            process.terminate()


@pytest.mark.parametrize("name", ["*", "a*b", "head.example:80", "", "a/b"])
def test_a_name_that_is_none_or_every_one_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--config", str(config_file(tmp_path)), "web", "--name", name])
    assert "is no host name" in capsys.readouterr().err


def over(sock: Path, path: str) -> str:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(patience(120))
        link.connect(str(sock))
        link.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return b"".join(iter(lambda: link.recv(1 << 16), b"")).decode()


def test_without_its_libraries_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("starlette", "uvicorn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "slurm_elastic.watch.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--config", str(config_file(tmp_path)), "web"]) == 1
    assert "-m pip install '.[dashboard]'" in capsys.readouterr().err


def test_a_port_that_is_taken_and_a_group_without_a_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(config_file(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--config", file, "web", "--listen", f"127.0.0.1:{port}"]) == 1
    assert "--listen 127.0.0.1:0 takes a free port" in capsys.readouterr().err
    assert main(["--config", file, "web", "--group", "users"]) == 1
    assert "--group is for a unix socket" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_runtime_directory_of_another_user_is_not_used(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after su or `sudo -E`: that user could put a socket in the place of ours."""
    directory = open_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    with own_place() as where:
        assert where.path is not None
        assert where.path.parent == directory
    for uid, mode in ((65534, 0o700), (0, 0o777)):
        directory.chmod(mode)
        os.chown(directory, uid, -1)
        with own_place() as where:
            assert where.path is not None
            assert where.path.parent != directory
