"""Lays slurm-elastic out below a directory, as a .deb or .rpm has it.

    python packaging/tree.py ROOT WHEEL

/opt/slurm-elastic is a Python environment of its own. Its libraries are copies of those in the
environment that runs this program, so a package has exactly what the tests ran with, and no index
is asked. It needs the system's Python in the version that runs this program.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
HOME = Path("opt/slurm-elastic")
EXTRAS = (
    "aws",
    "dashboard",
    "docker",
    "libvirt",
    "metrics",
    "opennebula",
    "openstack",
    "redfish",
    "sandbox",
    "ssh",
)
UNUSED = frozenset(
    {"antlr4-python3-runtime", "aws-xray-sdk", "cfn-lint", "graphql-core", "joserfc", "jsonpath-ng"}
    | {"openapi-spec-validator", "py-partiql-parser", "pyparsing", "setuptools"}
)
"""Libraries for services of moto's that the emulated EC2 has no part of: half of all bytes."""
UNITS = (
    "slurm-elasticd.service",
    "slurm-elastic-ckptman.service",
    "slurm-elastic-watchdog.service",
    "slurm-elastic-local.service",
    "slurm-elastic-web.service",
    "slurm-elastic-metrics.service",
    "slurm-elastic-metrics.timer",
    "slurm-elastic-hub.service",
)
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_START = """#!/{home}/bin/python3 -I
import sys

from {module} import {function}

sys.exit({function}())
"""
_SHARED = {
    "bash-completion": "bash-completion",
    "fish": "fish",
    "zsh/site-functions": "zsh/vendor-completions",
}
"""Where a distribution has what a wheel has below ``share``."""


def main() -> None:
    """Lay it out."""
    parser = argparse.ArgumentParser(description="Lay slurm-elastic out below a directory.")
    parser.add_argument("root", type=Path, metavar="ROOT", help="an empty directory")
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="slurm-elastic's own")
    args = parser.parse_args()
    root: Path = args.root
    packages = root / HOME / "lib" / _PYTHON / "site-packages"
    packages.mkdir(parents=True)
    with zipfile.ZipFile(args.wheel) as wheel:
        wheel.extractall(packages)
    (data,) = packages.glob("slurm_elastic-*.data")
    (info,) = packages.glob("slurm_elastic-*.dist-info")
    ours = PathDistribution(info)
    for library in closure(ours):
        copy(library, packages)
    environment(root)
    commands(root, ours)
    shared(root, data / "data" / "share")
    shutil.rmtree(data)
    system(root)
    compiled(root)


def closure(ours: Distribution) -> Iterator[Distribution]:
    """All libraries that we need, each once."""
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    waiting = [(need, extra) for need in ours.requires or () for extra in ("", *EXTRAS)]
    while waiting:
        text, extra = waiting.pop()
        need = Requirement(text)
        name = canonicalize_name(need.name)
        if name in UNUSED or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{sys.prefix} lacks {need}, which a package of slurm-elastic needs")
        if name not in given:
            given.add(name)
            yield found
        for wanted in {"", *need.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(other, wanted) for other in found.requires or ()]


def copy(library: Distribution, packages: Path) -> None:
    """The modules of a library and what it says of itself, without its commands."""
    for file in library.files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc" or file.name in ("RECORD", "INSTALLER"):
            continue
        place = packages / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(library.locate_file(file)), place)


def environment(root: Path) -> None:
    """Make the directory an environment of the system's Python."""
    version = sysconfig.get_python_version()
    text = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    (root / HOME / "pyvenv.cfg").write_text(text, "utf-8")
    (root / HOME / "bin").mkdir()
    (root / HOME / "bin" / "python3").symlink_to(f"/usr/bin/{_PYTHON}")
    (root / HOME / "bin" / "python").symlink_to("python3")


def commands(root: Path, ours: Distribution) -> None:
    """Our commands, on everybody's path."""
    links = root / "usr" / "bin"
    links.mkdir(parents=True)
    for entry in ours.entry_points:
        if entry.group == "console_scripts":
            path = root / HOME / "bin" / entry.name
            module, _, function = entry.value.partition(":")
            text = _START.format(home=HOME, module=module, function=function)
            path.write_text(text, "utf-8")
            path.chmod(0o755)
            (links / entry.name).symlink_to(f"/{HOME}/bin/{entry.name}")


def shared(root: Path, share: Path) -> None:
    """Man pages, compressed, and completions."""
    for page in share.glob("man/man*/*"):
        place = root / "usr" / "share" / page.relative_to(share)
        place = place.with_name(f"{page.name}.gz")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    for name, there in _SHARED.items():
        shutil.copytree(share / name, root / "usr" / "share" / there)


def system(root: Path) -> None:
    """Units, configuration, documentation, the check of GPUs, dashboards and alerts."""
    etc = REPO / "etc"
    put(root / "usr/lib/systemd/system", (etc / name for name in UNITS))
    put(root / "etc/slurm-elastic", [etc / "slurm-elastic.yaml"])
    example = root / "etc/slurm-elastic/slurm-elastic.yaml"
    example.rename(example.with_name("slurm-elastic.yaml.example"))
    put(root / "etc/default", [REPO / "packaging" / "slurm-elastic.default"])
    default = root / "etc/default/slurm-elastic.default"
    default.rename(default.with_name("slurm-elastic"))
    put(root / HOME / "doc", (p for p in (REPO / "docs").iterdir() if p.is_file()))
    share = root / "usr/share/slurm-elastic"
    put(share, [etc / "slurm-elastic-gpu-check"])  # for machines' images
    (share / "slurm-elastic-gpu-check").chmod(0o755)
    put(share / "grafana", (etc / "grafana").iterdir())
    put(share / "prometheus", (etc / "prometheus").iterdir())


def put(directory: Path, files: Iterable[Path]) -> None:
    """Copies, readable by all."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, directory / file.name)


def compiled(root: Path) -> None:
    """Byte code comes along: root's first run would write it, and no removal would take it out."""
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    subprocess.run([*command, str(root / HOME / "lib")], check=True)


if __name__ == "__main__":
    main()
