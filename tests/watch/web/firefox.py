"""Debian's Firefox, driven by its own protocol (Marionette), as Debian has no geckodriver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from patience import eventually, patience
from ports import free_ports

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of a reference to an element (WebDriver, 12.1)."""
PREFS = {
    "app.update.enabled": False, "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0, "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False, "toolkit.telemetry.enabled": False,
    "network.connectivity-service.enabled": False, "browser.region.update.enabled": False,
    "services.settings.server": "data:,", "extensions.update.enabled": False,
    # Reloading the result of a form asks a person first; nobody is here.
    "dom.confirm_repost.testing.always_accept": True,
}  # fmt: skip
MIN_WIDTH = 500
"""A window of Firefox is not narrower; a page is, by a zoom."""
STREAM = "/api/events"
"""Firefox reports each stream of events that ends, such as when the page is left."""
COMPLAINTS = """
return Services.console.getMessageArray()
  .filter((m) => m instanceof Ci.nsIScriptError && (m.sourceName || "").startsWith(arguments[0])
    && !(m.flags & Ci.nsIScriptError.warningFlag))
  .map((m) => m.errorMessage);
"""


class Firefox:
    """One window. Its methods are those of ``stage.Page`` that its tests use."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._number, self._zoomed = link, 0, 1.0
        self._read()  # its greeting
        self._ask("WebDriver:NewSession", {})
        self._ask("WebDriver:SetTimeouts", {"pageLoad": int(patience(60) * 1000)})

    def go(self, address: str) -> None:
        self._ask("WebDriver:Navigate", {"url": address})
        self._zoom()  # Firefox has one for each site

    def _zoom(self) -> None:
        self.chrome("gBrowser.selectedBrowser.fullZoom = arguments[0]", self._zoomed)

    def reload(self) -> None:
        self._ask("WebDriver:Refresh", {})

    def js(self, script: str, *values: Any) -> Any:
        asked = {"script": script, "args": list(values)}
        return self._ask("WebDriver:ExecuteScript", asked)["value"]

    def text(self, selector: str = "main") -> str:
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait(self, condition: Callable[[], Any]) -> None:
        eventually(condition, 20.0, lambda: f"not so: {self.text('body')[:2000]}")

    def click(self, selector: str) -> None:
        found = self._ask("WebDriver:FindElement", {"using": "css selector", "value": selector})
        self._ask("WebDriver:ElementClick", {"id": found["value"][ELEMENT]})

    def sized(self, width: int, height: int, *, dark: bool) -> None:
        self._zoomed = zoom = 1.0 if width >= MIN_WIDTH else 1.5
        self._zoom()
        override = "layout.css.prefers-color-scheme.content-override"
        self.chrome(
            "Services.prefs.setIntPref(arguments[0], arguments[1])", override, int(not dark)
        )
        # The frame of the window is not the page's.
        frame = self.chrome("return [outerWidth - innerWidth, gNavToolbox.clientHeight]")
        rect = {"width": int(width * zoom + frame[0]), "height": int(height * zoom + frame[1])}
        self._ask("WebDriver:SetWindowRect", rect)

    def overflow(self) -> int:
        return self.js("return document.documentElement.scrollWidth - innerWidth")

    def shot(self, path: Path) -> None:
        found = self._ask("WebDriver:TakeScreenshot", {"full": True, "hash": False})
        path.write_bytes(base64.b64decode(found["value"]))

    def complaints(self, address: str) -> list[str]:
        """The errors of scripts and policies on this page since the last call."""
        found: list[str] = self.chrome(COMPLAINTS, address)
        self.chrome("Services.console.reset()")
        return [line for line in found if STREAM not in line]

    def chrome(self, script: str, *values: Any) -> Any:
        """A script with the rights of Firefox itself."""
        self._ask("Marionette:SetContext", {"value": "chrome"})
        try:
            return self.js(script, *values)
        finally:
            self._ask("Marionette:SetContext", {"value": "content"})

    def quit(self) -> None:
        self._ask("Marionette:Quit", {"flags": ["eForceQuit"]})

    def _ask(self, command: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, parameters])
        self._link.sendall(f"{len(message.encode())}:{message}".encode())
        _, _, error, result = self._read()
        assert error is None, f"{command}: {error['error']}: {error['message']}"
        return result

    def _read(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            size += self._link.recv(1)
        body = b""
        while len(body) < int(size[:-1]):
            body += self._link.recv(int(size[:-1]) - len(body))
        return json.loads(body)


@contextlib.contextmanager
def firefox() -> Iterator[Firefox]:
    """A Firefox with a profile and a home of its own."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="firefox-", ignore_cleanup_errors=True) as home:
        profile = Path(home) / "profile"
        profile.mkdir()
        prefs = {**PREFS, "marionette.port": port}
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in prefs.items())
        (profile / "user.js").write_text("\n".join(lines))
        flags = ["--headless", "--marionette", "--no-remote", "--remote-allow-system-access"]
        command = [FIREFOX or "", *flags, "--profile", str(profile)]
        environment = {**os.environ, "HOME": home, "MOZ_CRASHREPORTER_DISABLE": "1"}
        environment.pop("DBUS_SESSION_BUS_ADDRESS", None)
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                link = eventually(lambda: _connected(port))
                link.settimeout(patience(120))
                with link:
                    browser = Firefox(link)
                    yield browser
                    browser.quit()
                process.wait(patience(30))
            finally:
                process.kill()


def _connected(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), 5)
    return None
