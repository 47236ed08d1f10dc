"""How long a browser waits for the page of a large cluster: from the address to the painted nodes.

The server has just been started and has read nothing; the browser is warm, as an operator's is.
Beside it stands a bare reading of the same ledger and of Slurm's same answers, on the same clock.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import Row, bounded, compared, median, noted

PAINTED_SECONDS = 1.0
BARE = 4.0
"""Times of a bare reading until it is painted: to read, to write, to understand and to draw it."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_PAINTED = """
const done = arguments[0];
const look = () => {
  const [shown] = performance.getEntriesByName("painted");
  if (shown) done(shown.startTime / 1000);
  else setTimeout(look, 5);
};
look();
"""


def rows(config: Path, bare: Sequence[str], runs: int) -> list[Row]:
    """The median's seconds, also beside those of ``bare``; a note where there is no browser."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        return [noted("the page: no chromium to paint it", 0.0, "s")]
    painted = median(list(paints(config, driver, chromium, runs)))
    read = median([timed(bare) for _ in range(runs)])
    return [
        bounded("the page: painted after", painted, PAINTED_SECONDS, "s"),
        compared("the page: beside bare reading", painted, read, "s", at_most=BARE),
    ]


def timed(command: Sequence[str]) -> float:
    """Seconds by the clock."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def paints(config: Path, driver: str, chromium: str, runs: int) -> Iterator[float]:
    """Seconds from the address to the painted page, each of a server that was just started."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = Chrome(options=options, service=ChromeService(driver))
        try:
            browser.set_script_timeout(120)
            for _ in range(runs + 1):  # the first warms the browser
                with serving(config) as address:
                    browser.get(address)  # the key becomes a cookie
                with serving(config) as address:
                    browser.get(address)
                    yield float(browser.execute_async_script(_PAINTED))
        finally:
            browser.quit()


@contextlib.contextmanager
def serving(config: Path) -> Iterator[str]:
    """The address that ``slurm-elastic web`` prints."""
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(config), "web"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "http" not in line:
                raise SystemExit(f"{' '.join(command)} says {line!r}")
            yield line[line.index("http") :].strip()
        finally:
            process.terminate()
