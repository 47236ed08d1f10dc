"""The services that an upgrade stops, by the scripts of each kind of package."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SYSTEMCTL = """#!/bin/sh
[ "$1" != is-enabled ] || { for unit; do :; done; [ $unit = slurm-elastic-hub.service ]; exit; }
[ "$1" = is-active ] || { echo "$@" >>{told}; exit 0; }
for unit; do :; done
case $unit in
    slurm-elasticd.service) state=active ;;
    slurm-elastic-ckptman.service) state=activating ;;
    slurm-elastic-hub.service | slurm-elastic-copier.service) state=failed ;;
    *) state=inactive ;;
esac
case $2 in --quiet) ;; *) echo $state ;; esac
[ $state = active ] || exit 3
"""


def prerm() -> str:
    return (REPO / "packaging/debian/prerm").read_text()


def pre_of_the_spec() -> str:
    spec = (REPO / "packaging/slurm-elastic.spec").read_text()
    units = re.search(r"^%global units (.*)$", spec, re.MULTILINE)
    block = re.search(r"^%pre\n(.*?)^%", spec, re.MULTILINE | re.DOTALL)
    assert units is not None
    assert block is not None
    return (
        block[1].replace("%{units}", units[1]).replace("%{stopped}", "/run/slurm-elastic.stopped")
    )


def installer() -> str:
    function = re.search(
        r"^stop_services\(\) {.*?^}$", (REPO / "scripts/install").read_text(),
        re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    assert function is not None
    services = (
        "slurm-elasticd.service slurm-elastic-ckptman.service slurm-elastic-hub.service "
        "slurm-elastic-copier.service"
    )
    return (
        f"set -eu; STOPPED=(); SERVICES=({services})\n{function[0]}\nstop_services\n"
        'printf "%s\\n" "${STOPPED[@]}" >/run/slurm-elastic.stopped'
    )


@pytest.mark.parametrize(
    ("script", "argument"), [(prerm, "upgrade"), (pre_of_the_spec, "2"), (installer, "")]
)
def test_an_upgrade_stops_what_runs_and_starts_it_with_what_failed(
    script: Callable[[], str], argument: str, tmp_path: Path
) -> None:
    told, programs = tmp_path / "told", tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "deb-systemd-invoke", "py3clean"):
        text = SYSTEMCTL.replace("{told}", str(told)) if name != "py3clean" else "#!/bin/sh\n"
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    text = script().replace("/run/systemd/system", str(tmp_path))
    text = text.replace("/run/slurm-elastic.stopped", str(tmp_path / "stopped"))
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(
        ["/bin/bash", "-c", text, "script", argument], check=True, env={"PATH": path}, cwd=tmp_path
    )
    assert told.read_text().splitlines() == [
        "stop slurm-elasticd.service", "stop slurm-elastic-ckptman.service",
    ]  # fmt: skip
    # The hub failed and is enabled: the release may be the reason. The copier is not enabled.
    assert (tmp_path / "stopped").read_text().split() == [
        "slurm-elasticd.service", "slurm-elastic-ckptman.service", "slurm-elastic-hub.service",
    ]  # fmt: skip


def postinst() -> str:
    """The .deb's script after an upgrade."""
    return (REPO / "packaging/debian/postinst").read_text().replace("py3compile", ": py3compile")


def posttrans_of_the_spec() -> str:
    spec = (REPO / "packaging/slurm-elastic.spec").read_text()
    block = re.search(r"^%posttrans\n(.*?)^%pre", spec, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].replace("%{home}", "/opt/slurm-elastic").replace("%{stopped}", "/nonexistent")


@pytest.mark.parametrize("script", [postinst, posttrans_of_the_spec])
@pytest.mark.parametrize(
    ("is_installed", "diff", "is_told"),
    [(True, "echo + NodeName=pub", True), (True, "true", False), (False, "echo +", False)],
)
def test_an_upgrade_reports_changes_of_the_programs_that_slurmctld_runs(
    script: Callable[[], str], is_installed: bool, diff: str, is_told: bool, tmp_path: Path
) -> None:
    program, manifest = tmp_path / "bin" / "slurm-elastic", tmp_path / "installed.json"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{diff}\n")
    program.chmod(0o755)
    if is_installed:
        manifest.touch()
    text = script().replace("/etc/slurm-elastic/installed.json", str(manifest))
    text = text.replace("/opt/slurm-elastic", str(tmp_path))
    text = text.replace("/run/systemd/system", str(tmp_path / "none"))
    done = subprocess.run(
        ["/bin/bash", "-c", text, "script", "configure", "0.1.0"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert ("slurm-elastic conf install" in done.stdout) is is_told
