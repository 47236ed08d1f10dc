"""A page as PDF, made by WeasyPrint (the extra ``report``) or else by Chromium."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.extras import missing_module

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 120.0


def pdf_of(html: str) -> bytes:
    """The page ``html`` as PDF. SlurmElasticError if neither WeasyPrint nor Chromium is installed,
    or if it fails.
    """
    try:
        from weasyprint import HTML
    except (ImportError, OSError) as error:  # OSError: the library Pango is missing
        missing = missing_module(error, "report") if isinstance(error, ImportError) else str(error)
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        if browser is None:
            raise SlurmElasticError(
                f"a PDF needs WeasyPrint or Chromium. WeasyPrint: {missing}. Chromium: no "
                f"{BROWSERS[0]} in PATH. --html needs neither"
            ) from None
        return _by_browser(browser, html)
    # WeasyPrint warns about properties of the style sheet for screens.
    logging.getLogger("weasyprint").setLevel(logging.ERROR)
    pdf: bytes = HTML(string=html, url_fetcher=_refuse).write_pdf()
    return pdf


def _refuse(url: str, *_: object, **__: object) -> NoReturn:
    """Refuse to fetch ``url`` by ValueError: the page needs no other file."""
    raise ValueError(f"the report fetches nothing, not {url[:80]}")


def _by_browser(browser: str, html: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-report-") as directory:
        page, pdf = Path(directory, "report.html"), Path(directory, "report.pdf")
        writing.as_told(page, html)
        command = [
            browser, "--headless", "--disable-gpu", "--no-pdf-header-footer",
            f"--user-data-dir={directory}/profile", f"--print-to-pdf={pdf}", page.as_uri(),
        ]  # fmt: skip
        if os.geteuid() == 0:
            # Chromium refuses to run as root with its sandbox. The page is ours, without scripts.
            command.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_S, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SlurmElasticError(f"{browser} made no PDF: {error}") from error
        if not pdf.is_file():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise SlurmElasticError(f"{browser} made no PDF: {lines[-1]}")
        return pdf.read_bytes()
