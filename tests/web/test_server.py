"""The page's server: who gets in, what goes out, and that nothing is read more often than it is worth."""

from __future__ import annotations

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

import pytest
from patience import patience
from status_cases import busy_ledger, config_file

from slurm_elastic.cli.main import main
from slurm_elastic.errors import SlurmElasticError
from slurm_elastic.web.documents import KEPT, Documents
from slurm_elastic.web.listening import Place, listening, place
from tests.web.stage import served

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

    documents = Documents({"cost": slow}, {"cost": 1000.0})
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

    documents = Documents({"status": source}, {"status": 0.0})
    with pytest.raises(SlurmElasticError):
        documents.get("status", {})
    began = time.monotonic()
    assert documents.get("status", {}).until - began >= 0.2
    said += [str(n) for n in range(2 * KEPT)]
    for n in range(2 * KEPT):
        documents._sources = {"status": lambda _: said.pop(0)}
        documents.get("status", {"n": str(n)})
    assert len(documents._readings) == KEPT


@pytest.mark.parametrize("text", ["0.0.0.0:80", "head.example:80", "10.1.2.3:80", "8411", ":8411",
                                  "127.0.0.1:70000", "127.0.0.1:x", "::1:80", ""])  # fmt: skip
def test_it_listens_on_this_host_alone(text: str) -> None:
    with pytest.raises(ValueError, match=r"of this host alone|neither a path"):
        place(text)


def test_a_unix_socket_is_its_owners_and_a_groups(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    own = grp.getgrgid(os.getgid()).gr_name
    for group, mode in (("", 0o600), (own, 0o660)):
        with listening(place(str(path)), group):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert not path.exists()
    with pytest.raises(SlurmElasticError, match="no group"), listening(Place(path=path), "no-such"):
        pass
    path.write_text("a file")
    with pytest.raises(SlurmElasticError, match="cannot listen"), listening(Place(path=path)):
        pass
    assert path.read_text() == "a file"


def test_the_command_serves_what_the_commands_print(tmp_path: Path) -> None:
    file, sock = config_file(tmp_path), tmp_path / "page.sock"
    busy_ledger(tmp_path / "ledger.db").close()
    command = [sys.executable, "-m", "slurm_elastic.cli.main", "--config", str(file), "web"]
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
            ("/api/explain?subject=nothing-known", "nothing is known about"),
            ("/api/explain", "needs a node"), ("/api/cost?by=user", '"by":"user"'),
            ("/api/cost?by=colour", "expected one of"), ("/api/cost?since=never", "neither a date"),
            ("/api/doctor", '"parts":'),
        ):  # fmt: skip
            assert wanted in over(sock, path), path
    finally:
        process.terminate()
        code = process.wait(patience(30))
        assert process.stdout is not None
        process.stdout.close()
    assert (code, sock.exists()) == (0, False)


def test_it_answers_at_the_address_that_it_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slurm_elastic.cli.main", "--config"]
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
    monkeypatch.delitem(sys.modules, "slurm_elastic.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--config", str(config_file(tmp_path)), "web"]) == 1
    assert "install slurm-elastic[dashboard]" in capsys.readouterr().err


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
