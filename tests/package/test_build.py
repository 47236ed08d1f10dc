"""Builds make the same wheel and sources each time and a spec that rpm reads; what a .deb has of libraries."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from patience import patience

REPO = Path(__file__).parents[2]
EXTRAS = (
    "boto3 botocore docker flask libvirt matplotlib moto openstack paramiko prometheus_client pycdlib"
    " pyone starlette sushy uvicorn werkzeug"
)
BARE = f"""
import runpy, sys
sys.modules |= dict.fromkeys({EXTRAS!r}.split())
sys.argv[0] = ""
runpy.run_module("slurm_elastic.cli.setting_up.manual", run_name="__main__")
"""
"""A name that stands for nothing in sys.modules cannot be imported."""


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts/package wants root")
def test_a_wheel_has_its_data_files_and_is_the_same_bytes_each_time(tmp_path):
    one, other = (package("wheel", tmp_path / name) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    for wanted in (
        "slurm_elastic/slurm/hooks/job_submit.lua", "slurm_elastic/py.typed", "share/man/man1/slurm-elastic-cost.1",
        "share/bash-completion/completions/slurm-elastic", "share/zsh/site-functions/_slurm-elastic",
        "slurm_elastic/simulate/core/_core.abi3.so",
    ):  # fmt: skip
        assert any(name.endswith(wanted) for name in names), wanted
    assert not [name for name in names if name.endswith((".c", ".h"))]
    # Neither the version of Python nor that of the building host's libraries binds it.
    assert one.name.endswith(f"-cp311-abi3-linux_{os.uname().machine}.whl")
    assert any(
        name.startswith("slurm_elastic/sandbox/") and name.endswith(".csv") for name in names
    )


def package(kind: str, directory: Path) -> Path:
    done = subprocess.run(
        [REPO / "scripts" / "package", kind, "--output", directory],
        capture_output=True, text=True, check=False, timeout=patience(200),
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


@pytest.mark.release
@pytest.mark.skipif(os.geteuid() != 0, reason="scripts/package wants root")
def test_from_its_sources_pip_installs_the_same_with_man_pages(tmp_path):
    one, other = (package("sdist", tmp_path / name) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as packed:
        assert {member.uid for member in packed.getmembers()} == {0}
    pip(tmp_path, "wheel", "--no-build-isolation", "--wheel-dir", tmp_path / "made", one)
    (made,) = (tmp_path / "made").iterdir()
    with zipfile.ZipFile(made) as mine, zipfile.ZipFile(package("wheel", tmp_path)) as usual:
        assert sorted(mine.namelist()) == sorted(usual.namelist())

    apart = ("--ignore-installed", "--prefix", tmp_path / "there")  # what the tests run with stays
    pip(tmp_path, "install", *apart, made)
    pages = {page.name for page in (tmp_path / "there" / "share" / "man").rglob("*.[18]")}
    assert {"slurm-elastic.1", "slurm-elastic-sandbox.1", "slurm-elasticd.8"} <= pages
    assert (tmp_path / "there" / "bin" / "slurm-elasticd").exists()


def pip(work: Path, command: str, *words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", command, "--no-deps", "--no-index", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=patience(200), cwd=work,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
def test_man_pages_are_made_without_the_libraries_of_any_cloud(tmp_path):
    """Where pip builds, it has what pyproject.toml's build-system names, and no extra."""
    made = subprocess.run(
        [sys.executable, "-c", BARE, tmp_path],
        capture_output=True, text=True, check=False, timeout=patience(100), cwd=REPO,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "man" / "man1" / "slurm-elastic-quickstart.1").exists()


def test_the_services_of_amazons_that_are_asked_are_described_in_a_package():
    spec = importlib.util.spec_from_file_location("tree", REPO / "packaging" / "tree.py")
    assert spec is not None
    assert spec.loader is not None
    tree = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tree)
    opened = re.compile(
        r'(?:\.client\(|other_service\(\w+, |service_client\([\w.]+, )"([a-z0-9-]+)"'
    )
    asked = {
        name
        for path in (REPO / "slurm_elastic").rglob("*.py")
        for name in opened.findall(path.read_text("utf-8"))
    }
    assert {"ec2", "s3", "sqs", "pricing"} <= asked <= tree.SERVICES


def test_rpm_reads_the_spec():
    spec = REPO / "packaging" / "slurm-elastic.spec"
    done = subprocess.run(
        ["rpmspec", "-P", spec], capture_output=True, text=True, check=False, timeout=patience(60)
    )
    assert done.returncode == 0, done.stderr
    assert "%{" not in done.stdout.replace("%{nil}", "")
    assert "/opt/slurm-elastic" in done.stdout
