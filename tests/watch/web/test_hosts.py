"""The same bundle where others serve it: Open OnDemand (WSGI, a user's own process), Cockpit."""

from __future__ import annotations

import contextlib
import json
import mimetypes
import runpy
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from patience import patience
from selenium.webdriver import Chrome
from status_cases import busy_ledger, config_file

from slurm_elastic.cli.arguments import CONFIG_VARIABLE
from slurm_elastic.cli.main import main
from slurm_elastic.watch.web.policy import STATIC
from tests.watch.web.stage import Page

ETC = Path(__file__).parents[3] / "etc"
COCKPIT = """
window.cockpit = {spawn(command) {
  let told;
  const done = fetch("/spawn?" + encodeURIComponent(JSON.stringify(command))).then(async (answer) => {
    told?.(await answer.text());
    if (answer.status !== 200) throw new Error("exit " + answer.status);
  });
  done.stream = (callback) => { told = callback; return done; };
  return done;
}};
"""
"""A stand-in for Cockpit's library (cockpit.spawn of its guide): the command runs, its output comes."""


@contextlib.contextmanager
def running(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[misc,index]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Threaded(socketserver.ThreadingMixIn, WSGIServer): ...


def test_open_ondemand_serves_it_below_a_path_as_its_user(
    browser: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_ledger(tmp_path / "ledger.db").close()
    monkeypatch.setenv(CONFIG_VARIABLE, str(config_file(tmp_path)))
    app = runpy.run_path(str(ETC / "ondemand" / "passenger_wsgi.py"))["application"]

    def mounted(environment: dict[str, Any], start: Callable[..., Any]) -> Any:
        environment["PATH_INFO"] = environment["PATH_INFO"].removeprefix("/pun/sys/slurm-elastic")
        return app(environment, start)

    server = make_server("127.0.0.1", 0, mounted, server_class=Threaded, handler_class=Quiet)
    with running(server) as port:
        page = Page(browser, f"http://127.0.0.1:{port}/pun/sys/slurm-elastic/").sized(1600)
        page.go()
        page.wait(lambda: "Slurm does not answer" in page.text("main"))
        page.go("#/explain/no-such-node")
        page.wait(lambda: "nothing is known about" in page.text("main"))
        browser.get("about:blank")
        # Not by the browser: it breaks requests off where another test gives this machine an address.
        for path, method, code, kept in (
            ("api/events", "GET", 404, None), ("../policy.py", "GET", 404, None),
            ("api/status", "POST", 405, None), ("api/status", "GET", 200, "no-store"),
            ("app.js", "GET", 200, "no-cache"),
        ):  # fmt: skip
            client = HTTPConnection("127.0.0.1", port, timeout=patience(30))
            client.request(method, f"/pun/sys/slurm-elastic/{path}")
            answer = client.getresponse()
            assert answer.status == code
            assert kept is None or answer.getheader("Cache-Control") == kept
            client.close()


def test_cockpit_runs_the_commands(
    browser: Chrome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy_ledger(tmp_path / "ledger.db").close()
    file, one_by_one = str(config_file(tmp_path)), threading.Lock()
    manifest = json.loads((ETC / "cockpit" / "manifest.json").read_text())
    assert set(manifest["menu"]) == {"index"}
    base = "/cockpit/@localhost/slurm-elastic/"

    class Cockpit(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            from urllib.parse import unquote

            path, _, query = self.path.partition("?")
            code, body = 200, b""
            if path == "/spawn":
                program, *words = json.loads(unquote(query))
                assert program == "slurm-elastic"
                with one_by_one:
                    capsys.readouterr()
                    code = 500 if main(["--config", file, *words]) else 200
                    body = capsys.readouterr().out.encode()
            elif path.endswith("/base1/cockpit.js"):
                body = COCKPIT.encode()
            elif (asked := STATIC / (path.removeprefix(base) or "index.html")).is_file():
                body = asked.read_bytes()
            else:
                code = 404
            self.send_response(code)
            self.send_header("Content-Type", mimetypes.guess_type(path)[0] or "text/html")
            self.send_header("Content-Security-Policy", manifest["content-security-policy"])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Cockpit)) as port:
        page = Page(browser, f"http://127.0.0.1:{port}{base}").sized(1600)
        page.go()
        page.wait(lambda: "Slurm does not answer" in page.text("main"))
        page.go("#/cost/market")
        page.wait(lambda: "Checked: parts" in page.text("main"))
        page.go("#/explain/no-such-node")
        page.wait(lambda: "exit 500" in page.text("main"))
        browser.get("about:blank")
