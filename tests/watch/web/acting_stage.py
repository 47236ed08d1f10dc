"""The page that acts: a server at a unix socket, and visitors of any uid who speak HTTP to it."""

from __future__ import annotations

import contextlib
import grp
import html
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from patience import patience

from slurm_elastic.cli.orders.page_actions import PageActions
from slurm_elastic.config.sections.access import PageProxy
from slurm_elastic.watch.web.acting import ActRoutes
from slurm_elastic.watch.web.actions import ActionDesk
from slurm_elastic.watch.web.documents import Documents
from slurm_elastic.watch.web.listening import ListenAddress, listening
from slurm_elastic.watch.web.server import OWN_NAMES, PageServer, application
from slurm_elastic.watch.web.visitors import SocketVisitors

NOBODY = 65534
SUDO = grp.getgrnam("sudo").gr_gid
"""The group of operators."""
SAME_SITE = {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}
FORM = "application/x-www-form-urlencoded"
TALK = """
import os, socket, sys
uid, gid, *groups = map(int, sys.argv[2:])
if uid:
    os.setgroups(groups); os.setgid(gid); os.setuid(uid)
link = socket.socket(socket.AF_UNIX)
link.settimeout(60)
link.connect(sys.argv[1])
try:
    link.sendall(sys.stdin.buffer.read())
    while chunk := link.recv(1 << 16):
        sys.stdout.buffer.write(chunk)
except ConnectionError:
    pass
"""


class Deed(NamedTuple):
    """An action: the values that a person fills in, words of the preview and of the result."""

    values: dict[str, str | bool]
    shown: str
    done: str


DEEDS = {
    "pause": Deed({"scope": "onprem", "for": "2h", "reason": "a new image"},
                  "No new machines in cloud onprem", "cloud onprem is paused by root"),
    "resume": Deed({"scope": ""}, "would end: cloud onprem is paused", "order ended: cloud onprem"),
    "limit": Deed({"scope": "rack", "key": "max_nodes", "value": "1"},
                  "pool rack: max_nodes no limit -> 1", "pool rack: max_nodes is 1 by root"),
    "drain": Deed({"subject": "op[1-2]", "aggressive": True, "max-unavailable": "1"},
                  "jobs are moved", "op[1-2] are drained by root"),
    "replace": Deed({"subject": "rack"}, "Replace pool rack: 2 machines", "being replaced by root"),
    "migrate": Deed({"subject": "onprem", "to": "spare"}, "Empty cloud onprem", "emptied to spare"),
    "clear": Deed({"subjects": "rack"}, "would be cleared: failed boots of pool rack", "cleared:"),
    "save": Deed({"job": "41"}, "Job 41 of erin on op1 is saved: by signal", "is asked to save"),
}  # fmt: skip


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def words(self) -> str:
        """The text that is read, in one line."""
        body = re.sub(r"<[^>]*>", " ", self.text.partition("<main")[2].partition(">")[2])
        return " ".join(html.unescape(body).split())

    @property
    def hidden(self) -> dict[str, str]:
        """The hidden fields of its form."""
        found = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', self.text)
        return {name: html.unescape(value) for name, value in found}

    @property
    def effects(self) -> list[str]:
        """The lines of a preview or a result."""
        part = self.text.partition('<ul class="effects">')[2].partition("</ul>")[0]
        return [html.unescape(line) for line in re.findall(r"<li>(.*?)</li>", part)]


class Visitor:
    """A browser of one user: it keeps cookies, and says as browsers do where a form is from."""

    def __init__(self, sock: Path, uid: int = 0, *groups: int, host: str = "localhost") -> None:
        self.sock, self.ids, self.host = sock, (uid, (uid and groups[:1]) or (65534,), groups), host
        self.uid, self.groups = uid, groups
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {}

    def raw(self, request: bytes) -> bytes:
        gid = self.groups[0] if self.groups else 65534
        command = [sys.executable, "-I", "-S", "-c", TALK, str(self.sock), str(self.uid), str(gid)]
        done = subprocess.run(
            [*command, *map(str, self.groups)], input=request, capture_output=True, check=True
        )
        return done.stdout

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        given = {"Host": self.host, "Connection": "close", **self.headers}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body:
            given["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        answer = self.raw(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return self.understood(answer)

    def understood(self, answer: bytes) -> Answer:
        top, _, body = answer.partition(b"\r\n\r\n")
        line, *rest = top.decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in rest)}
        if cookie := found.get("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(int(line.split()[1]) if line else 0, found, body.decode())

    def get(self, action: str = "", **values: str) -> Answer:
        query = urlencode({"do": action, **values} if action else values)
        return self.send("GET", f"/act?{query}" if query else "/act")

    def post(self, fields: dict[str, str], **headers: str) -> Answer:
        about = {"Content-Type": FORM, **SAME_SITE, **headers}
        return self.send("POST", "/act", urlencode(fields).encode(), **about)

    def asks(self, action: str, **values: str) -> Answer:
        """Fills the form in, as far as the preview."""
        form = self.get(action)
        return self.post({**form.hidden, **{n.replace("_", "-"): v for n, v in values.items()}})

    def confirms(self, preview: Answer, **headers: str) -> Answer:
        """Presses the button of the preview."""
        return self.post(preview.hidden, **headers)

    def does(self, action: str, **values: str) -> Answer:
        """All of it."""
        preview = self.asks(action, **values)
        assert preview.status == HTTPStatus.OK, preview.words
        return self.confirms(preview)

    def may(self) -> dict[str, str]:
        """The actions that the page offers, with the reason where one is refused."""
        told = json.loads(self.send("GET", "/api/actions").text)
        return {each["name"]: each["refusal"] for each in told["actions"]}


@contextlib.contextmanager
def acting_page(
    file: Path,
    sock: Path,
    *,
    proxy: PageProxy | None = None,
    group: int | None = None,
    site_names: tuple[str, ...] = (),
    documents: Documents | None = None,
) -> Iterator[Path]:
    """The page at this socket, which everybody may open whom ``group`` lets in."""
    desk = ActionDesk(PageActions(file), site_names)
    acting = ActRoutes(desk, SocketVisitors(lambda: proxy, lambda: frozenset({0, 64030})))
    names = (*OWN_NAMES, *site_names)
    with listening(ListenAddress(path=sock)) as link:
        sock.chmod(0o666)
        app = application(documents or Documents({}), names=names, acting=acting)
        server = PageServer(app, group)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [link]})
        thread.start()
        try:
            yield sock
        finally:
            server.should_exit = True
            thread.join(patience(30))


@contextlib.contextmanager
def forwarded(sock: Path) -> Iterator[str]:
    """The address of a port that leads to the socket, as ``ssh -L`` of this user makes one."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(str(sock))
            back = threading.Thread(target=pass_on, args=(far, near), daemon=True)
            back.start()
            pass_on(near, far)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    threading.Thread(target=serve, args=(link,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(patience(30))
