"""Some tests need what a machine may lack; they are skipped there, with the reason.

A program that Debian has is no such reason after scripts/test, which installs it: that skip is a
failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator

import pytest

from slurm_elastic.image import disk, machine

ROOT_PART = pytest.mark.skipif(os.geteuid() != 0, reason="the root part is root's")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
"""Tests that act as another user, or give a file away."""

SET_UP = "SLURM_ELASTIC_SET_UP"
"""In the environment where scripts/lib.sh has installed what tests need."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = {
    **disk.PROGRAMS, **machine.PROGRAMS,
    "ansible-playbook": "ansible-core", "chromedriver": "chromium-driver", "chromium": "chromium",
    "firefox-esr": "firefox-esr",
    "fish": "fish", "gcc": "gcc", "git": "git", "ip": "iproute2", "iptables": "iptables",
    "libvirtd": "libvirt-daemon", "man": "man-db",
    "munged": "munge", "nft": "nftables",
    "mpicc.mpich": "libmpich-dev", "mpicc.openmpi": "libopenmpi-dev", "mpirun.mpich": "mpich",
    "mpirun.openmpi": "openmpi-bin",
    "promtool": "prometheus", "sbatch": "slurm-client",
    "scontrol": "slurm-client", "slurmctld": "slurmctld", "slurmd": "slurmd", "sudo": "sudo",
    "sshd": "openssh-server", "systemd-analyze": "systemd", "valgrind": "valgrind",
    "wg": "wireguard-tools",
    "wireguard-go": "wireguard-go", "zsh": "zsh",
}  # fmt: skip
"""Debian's package of each program that tests run; one that is not here has its package's name."""
_NOT_INSTALLED = "not installed: "


def missing(*programs: str) -> str:
    """Why a test of these programs is skipped: the packages that are not there; '' if all are."""
    gone = {PACKAGES.get(p, p) for p in programs if shutil.which(p, path=PATH) is None}
    return not_installed(*gone) if gone else ""


def not_installed(*packages: str) -> str:
    """The reason of a skip for want of these packages."""
    return f"{_NOT_INSTALLED}{', '.join(sorted(packages))}"


def unless(*programs: str) -> pytest.MarkDecorator:
    """The mark of tests that run these programs."""
    return pytest.mark.skipif(bool(missing(*programs)), reason=missing(*programs))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After scripts/test has set up, a skip for want of a package is a failure."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same of a module that skips itself."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if SET_UP not in os.environ or not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason.startswith(_NOT_INSTALLED):
        report.outcome = "failed"
        report.longrepr = f"{reason}: set_up_tests in scripts/lib.sh should have done that"
