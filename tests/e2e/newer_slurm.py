"""A Slurm that no Debian has, and pyslurm of its release, for a test's processes alone.

Both were built beforehand and lie with the public histories (``benchmarks/traces.py``); the README
there says how.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from patience import patience

from benchmarks.traces import VARIABLE, data

RELEASE = "slurm-25.11"
HERE = Path(__file__).parent
REPO = HERE.parents[1]
PYSLURM = f"/opt/pyslurm-{RELEASE}"
QUICKSTART = """
import sys
from slurm_elastic.cli.main import main
from slurm_elastic.cli.setting_up.quickstart_migration import MigrationAct
from slurm_elastic.sandbox import spec
plain, client = spec.default_elastic, sys.argv.pop(1)
def chosen(wanted):
    made = plain(wanted)
    return made | {"slurm": made["slurm"] | {"client": client}}
spec.default_elastic = chosen
MigrationAct.perform = lambda act: []
sys.exit(main())
"""
"""Its ten jobs with that client. Its second act is a race with a job of 16 s, which a busy machine
loses; another test saves a job.
"""


class NewerSlurm:
    """Unpacked below ``directory``; ``start`` runs where it is the Slurm that is installed."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._opt = directory / "opt"

    def start(self, name: str, words: Sequence[str], **environment: str) -> Run:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        log = self._dir / f"{name}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh",
                 str(HERE / "newer_slurm.sh"), str(self._opt), RELEASE, *words],
                cwd=REPO, env={**inherited, **environment}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return Run(process, log)


class Run:
    """A command, and all that it prints."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def said(self, seconds: float) -> str:
        """All that it printed, once it has ended with 0 in that time."""
        try:
            code = self._process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"it does not end: {self._log.read_text()}") from None
        text = self._log.read_text()
        assert code == 0, text
        return text

    def end(self) -> None:
        """As ctrl-C does: what it has made is taken down."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(patience(60))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def unpacked(directory: Path) -> NewerSlurm:
    """Skips, with the reason, where there is nothing to unpack or where it cannot run."""
    place = data()
    built = sorted((place / RELEASE).glob("slurm-*.tar.xz")) if place else []
    if not built:
        pytest.skip(f"no {RELEASE} was built for this machine (${VARIABLE})")
    if platform.machine() != "x86_64":
        pytest.skip(f"{built[0].name} is of another architecture than {platform.machine()}")
    subprocess.run(["tar", "-C", str(directory), "-xJf", str(built[0])], check=True)
    for wheel in (place / RELEASE).glob(
        f"pyslurm-*-cp{sys.version_info[0]}{sys.version_info[1]}-*"
    ):
        zipfile.ZipFile(wheel).extractall(directory / PYSLURM.lstrip("/"))
    newer = NewerSlurm(directory)
    prefix = f"/opt/{RELEASE}"
    probe = f"slurmctld -V && ldd {prefix}/lib/slurm/job_submit_lua.so {prefix}/sbin/*"
    try:
        said = newer.start("probe", ["sh", "-c", probe]).said(60)
    except AssertionError as error:
        pytest.skip(f"{RELEASE} cannot run here: {error}")
    assert said.startswith(f"slurm {RELEASE.removeprefix('slurm-')}."), said
    if missing := sorted(set(re.findall(r"(\S+) => not found", said)) - {"libslurmfull.so"}):
        pytest.skip(f"{RELEASE} needs {', '.join(missing)} (Debian: liblua5.4-0)")
    return newer
