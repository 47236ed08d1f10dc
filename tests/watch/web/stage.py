"""The page in a real browser: a server with given documents, and Debian's chromium."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from patience import patience
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

from slurm_elastic.watch.web.documents import Documents, DocumentSource, Query
from slurm_elastic.watch.web.policy import HTML, JSON
from slurm_elastic.watch.web.server import OWN_NAMES, PageServer, application

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip
BUSY = re.compile("^(Reading|Summing|Asking) ", re.MULTILINE)
CHANGED = "net::ERR_NETWORK_CHANGED"
"""Other tests make containers and network interfaces beside: with each that comes or goes Chromium
breaks all requests of the moment off, those to loopback, too, and no flag keeps it from that.
"""
LOADS = 5
STARTED = """
const found = performance.getEntriesByType("resource").filter((e) => e.name.endsWith("/start.js"));
return found.some((e) => e.responseStatus === 200);
"""
TAKES = {
    "explain": ("subject",), "day": ("span",), "cost": ("by", "since"), "mine": ("user",),
    "report": ("month",),
}  # fmt: skip
AXE = Path(__file__).parent / "axe" / "axe.min.js"


@contextlib.contextmanager
def served(
    sources: Mapping[str, Callable[[Query], str]],
    *,
    key: str = "",
    period: float = 0.2,
    fresh: float = 0.1,
    names: tuple[str, ...] = OWN_NAMES,
) -> Iterator[str]:
    """The address of the page with these documents."""
    documents = Documents({
        name: DocumentSource(
            make=make, fresh=fresh, takes=TAKES.get(name, ()),
            kind=HTML if name == "report" else JSON,
        )
        for name, make in sources.items()
    })  # fmt: skip
    app = application(documents, names=names, key=key, period=period)
    server = PageServer(app)
    with socket.create_server(("127.0.0.1", 0)) as link:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [link]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{link.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(patience(30))


@contextlib.contextmanager
def chromium() -> Iterator[Chrome]:
    """A browser with a profile of its own, and a log of every request."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options=options, service=ChromeService(DRIVER))
        driver.set_page_load_timeout(patience(60))
        try:
            # Instead of the browser's own first tab, which asks for Google's bar.
            driver.get("about:blank")
            yield driver
        finally:
            driver.quit()


class Page:
    """A visitor: looks, and does something."""

    def __init__(self, driver: Chrome, address: str) -> None:
        self.driver, self.address = driver, address

    def sized(self, width: int, height: int = 900, *, dark: bool = False) -> Page:
        """The window from now on."""
        self._metrics(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        return self

    def _metrics(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def go(self, place: str = "#/") -> Page:
        """Load it anew: so often until its frame is there, as the page itself sees to the rest."""
        for _ in range(LOADS):
            if self._loads(place):
                break
        self.wait(lambda: self.js("return document.querySelector('main h1') !== null"))
        self.wait(lambda: not BUSY.search(self.text("main")))
        return self

    def _loads(self, place: str) -> bool:
        """Whether neither the document nor the script that sees to all others was broken off."""
        try:
            self.driver.get("about:blank")
            self.driver.get(f"{self.address}{place}")
        except WebDriverException as error:
            if CHANGED not in str(error):
                raise
            return False
        return bool(self.js(STARTED))

    def js(self, script: str, *values: Any) -> Any:
        """A script's value."""
        return self.driver.execute_script(script, *values)

    def text(self, selector: str = "body") -> str:
        """The words that are read there."""
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Until it is so."""
        try:
            return WebDriverWait(self.driver, patience(seconds), 0.05).until(lambda _: condition())
        except TimeoutException as error:
            raise AssertionError(f"not so: {self.text()[:2000]}") from error

    def shot(self, path: Path, most: int = 1500) -> None:
        """A picture of the page, ``most`` pixels high: the window grows, as Chromium loses what a
        canvas has where it captures beyond it.
        """
        height = self.js("return document.documentElement.scrollHeight")
        width = self.js("return innerWidth")
        self._metrics(width, min(max(height, 300), most))
        self.driver.execute_async_script(
            "requestAnimationFrame(() => setTimeout(arguments[0], 50))"
        )
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(found["data"]))

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return self.js("return document.documentElement.scrollWidth - innerWidth")

    def axe(self) -> list[str]:
        """The findings of axe-core, in lines."""
        self.js(AXE.read_text())
        found = self.driver.execute_async_script(
            "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"
        )
        return [
            f"{one['id']}: {one['help']}: {node['target']} {node['html'][:120]}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def requests(self) -> list[str]:
        """The addresses that were asked since the last call."""
        entries = (
            json.loads(one["message"])["message"] for one in self.driver.get_log("performance")
        )
        return [
            one["params"]["request"]["url"]
            for one in entries
            if one["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """The browser's console, without what the host did to it (CHANGED)."""
        found = [one["message"] for one in self.driver.get_log("browser")]
        return [line for line in found if CHANGED not in line]
