"""The page where others lead to it: a web server that logs people in, Open OnDemand."""

from __future__ import annotations

import io
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from wsgiref.types import WSGIApplication
from wsgiref.util import setup_testing_defaults

import needs
import pytest
from patience import patience

from slurm_elastic.cli.arguments import CONFIG_VARIABLE
from slurm_elastic.cli.operate import web
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.web.actions import MAX_BODY
from tests.watch.web.acting_stage import FORM, SAME_SITE, Answer, Visitor

pytestmark = needs.ROOT

NAME = "page.example.org"
PROXY = """
# A web server that has logged somebody in: it says who in a header, in place of the visitor's own.
import http.server, os, socket, sys
path, uid, user, name = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

class Proxy(http.server.BaseHTTPRequestHandler):
    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kept = [(k, v) for k, v in self.headers.items()
                if k.lower() not in ("x-remote-user", "host", "connection")]
        given = [*kept, ("X-Remote-User", user), ("Host", name), ("Connection", "close"),
                 ("X-Forwarded-Proto", "https")]
        head = "".join(f"{k}: {v}\\r\\n" for k, v in given)
        with socket.socket(socket.AF_UNIX) as page:
            page.connect(path)
            page.sendall(f"{self.command} {self.path} HTTP/1.1\\r\\n{head}\\r\\n".encode() + body)
            while chunk := page.recv(1 << 16):
                self.wfile.write(chunk)
        self.close_connection = True
    do_GET = do_POST = pass_on
    def log_message(self, *_): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Browser(Visitor):
    """A visitor at the web server's port."""

    def __init__(self, port: int) -> None:
        super().__init__(Path("/"), host="127.0.0.1")
        self.port = port

    def raw(self, request: bytes) -> bytes:
        raise NotImplementedError

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        given = {**self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
        if "Origin" in given:
            given["Origin"] = f"https://{NAME}"
        given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        link = HTTPConnection("127.0.0.1", self.port, timeout=patience(60))
        link.request(method, path, body or None, given)
        found = link.getresponse()
        about = {name.lower(): value for name, value in found.getheaders()}
        text = found.read().decode()
        link.close()
        if cookie := about.get("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(found.status, about, text)


class Site(NamedTuple):
    """The page's service as SlurmUser, and its ledger."""

    sock: Path
    ledger: Path


@pytest.fixture
def site(file: Path, ledger: Ledger, open_path: Path) -> Iterator[Site]:
    slurm, www = pwd.getpwnam("slurm"), pwd.getpwnam("www-data")
    ledger.close()
    text = file.read_text().replace("operators: [sudo]", "operators: [daemon]")
    state = open_path / "state"
    state.mkdir(mode=0o700)
    for found in (*open_path.glob("ledger*"), open_path / "journal"):
        if found.exists():
            shutil.move(found, state / found.name)
    text = text.replace(f"state_dir: {open_path}", f"state_dir: {state}")
    file.write_text(f"{text}  page_proxy: {{user: www-data, header: X-Remote-User}}\n")
    for place in (state, *state.rglob("*")):
        os.chown(place, slurm.pw_uid, slurm.pw_gid)
    run = open_path / "run"
    run.mkdir(mode=0o755)
    os.chown(run, slurm.pw_uid, slurm.pw_gid)
    command = [
        sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(file), "web",
        "--listen", str(run / "page.sock"), "--group", "www-data", "--name", NAME,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd="/",
        user=slurm.pw_uid, group=slurm.pw_gid, extra_groups=[www.pw_gid],
    ) as service:  # fmt: skip
        try:
            assert service.stdout is not None
            assert "listening at" in service.stdout.readline()
            yield Site(run / "page.sock", state / "ledger.db")
        finally:
            service.terminate()
            service.wait(patience(30))


@pytest.fixture
def logged_in(site: Site) -> Iterator[Any]:
    """Starts the web server for a person who has logged in."""
    www, servers = pwd.getpwnam("www-data"), []

    def start(user: str) -> Browser:
        command = [sys.executable, "-c", PROXY, str(site.sock), str(www.pw_uid), user, NAME]
        servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert servers[-1].stdout is not None
        return Browser(int(servers[-1].stdout.readline()))

    yield start
    for server in servers:
        server.terminate()
        server.wait(patience(30))
        server.stdout.close()


def orders(site: Site) -> list[tuple[str, str]]:
    ledger = Ledger(site.ledger)
    try:
        return [(order.who, order.word.command_name) for order in ledger.directives.all()]
    finally:
        ledger.close()


def test_a_person_acts_through_the_web_server_by_their_own_role(site: Site, logged_in: Any) -> None:
    operator, plain, root = logged_in("daemon"), logged_in("nobody"), logged_in("root")
    form = operator.get("pause")
    assert "as daemon" in form.text
    assert "secure" in form.headers["set-cookie"].lower(), "the browser speaks TLS"
    assert operator.does("pause", scope="rack").status == HTTPStatus.OK
    assert orders(site) == [("daemon", "pause")], "neither the service nor the web server"
    assert plain.get("pause").status == HTTPStatus.OK
    assert "for root, slurm and members of daemon" in plain.get("pause").words
    plain.headers = {"X-Remote-User": "daemon"}
    assert "as nobody" in plain.get().text, "the web server's word, and not the visitor's"
    assert "names root, who acts only by" in root.get().words
    assert orders(site) == [("daemon", "pause")]


def test_another_site_cannot_use_the_web_servers_login(site: Site, logged_in: Any) -> None:
    """The web server's own cookie or ticket is sent along, whoever made the form."""
    operator = logged_in("daemon")
    shown = operator.asks("pause", scope="rack").hidden
    link = HTTPConnection("127.0.0.1", operator.port, timeout=patience(60))
    cookies = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    for origin in ("https://evil.example", f"https://{NAME}.evil.example", "null"):
        headers = {"Content-Type": FORM, "Cookie": cookies, "Origin": origin}
        link.request("POST", "/act", urlencode(shown), headers)
        answer = link.getresponse()
        assert answer.status == HTTPStatus.FORBIDDEN, origin
        answer.read()
    link.close()
    assert orders(site) == []


# Open OnDemand


@pytest.fixture
def app(file: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> WSGIApplication:
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    return web.wsgi()


class OnDemand(Visitor):
    """A visitor of the user's own process, below a path."""

    def __init__(self, app: WSGIApplication) -> None:
        super().__init__(Path("/"))
        self.app = app

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        path, _, query = path.partition("?")
        environment: dict[str, Any] = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query,
            "SCRIPT_NAME": "/pun/sys/slurm-elastic", "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)) if body else "", "HTTP_HOST": "ood.example.org",
            "wsgi.url_scheme": "https",
        }  # fmt: skip
        setup_testing_defaults(environment)
        for name, value in headers.items():
            key = name.replace("-", "_").upper()
            environment[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
        if environment.get("HTTP_ORIGIN") == SAME_SITE["Origin"]:
            environment["HTTP_ORIGIN"] = "https://ood.example.org"
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        environment["HTTP_COOKIE"] = cookies
        found: list[Any] = []
        text = b"".join(self.app(environment, lambda *given: found.extend(given))).decode()  # type: ignore[arg-type,return-value]
        about = {name.lower(): value for name, value in found[1]}
        if cookie := about.get("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(int(found[0].split()[0]), about, text)


def test_in_open_ondemand_the_user_of_the_process_acts(
    app: WSGIApplication, ledger: Ledger
) -> None:
    user = OnDemand(app)
    form = user.get("pause")
    assert "as root" in form.text
    assert form.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
    assert "form-action 'self'" in form.headers["content-security-policy"]
    assert user.may()["pause"] == ""
    shown = user.asks("pause", scope="rack")
    assert user.confirms(shown).status == HTTPStatus.OK
    assert [order.who for order in ledger.directives.all()] == ["root"]
    assert user.confirms(shown).status == HTTPStatus.CONFLICT


def test_in_open_ondemand_nothing_else_acts(app: WSGIApplication, ledger: Ledger) -> None:
    user = OnDemand(app)
    shown = user.asks("pause", scope="rack")
    for headers in (
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": ""},
        {"Origin": "", "Sec-Fetch-Site": ""},
    ):
        assert user.confirms(shown, **headers).status == HTTPStatus.FORBIDDEN
    assert user.confirms(shown, **{"Content-Type": "text/plain"}).status == 415
    long = user.send("POST", "/act", b"x" * (MAX_BODY + 1), Content_Type=FORM, **SAME_SITE)
    assert long.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    for method, path in (("PUT", "/act"), ("POST", "/api/actions"), ("POST", "/")):
        assert user.send(method, path).status == HTTPStatus.METHOD_NOT_ALLOWED
    assert user.send("GET", f"/act?{urlencode(shown.hidden)}").status == HTTPStatus.OK
    user.headers = {"X-Remote-User": "daemon"}
    assert "as root" in user.get().text, "no header says who it is"
    assert ledger.directives.all() == ()
