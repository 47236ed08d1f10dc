"""Lays slurm-elastic out below a directory, as a .deb or .rpm has it, and what only the sandbox
needs below another one, for a package of its own.

    python packaging/tree.py ROOT SANDBOX WHEEL

/opt/slurm-elastic is a Python environment of its own. Its libraries are copies of those in the
environment that runs this program, so a package has exactly what the tests ran with, and no index
is asked. It needs the system's Python in the version that runs this program. Byte code is made
where the package is installed: it would be a third of all bytes.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    PackagePath,
    PathDistribution,
    distribution,
)
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
HOME = Path("opt/slurm-elastic")
EXTRAS = (
    "aws",
    "azure",
    "dashboard",
    "docker",
    "gcp",
    "libvirt",
    "metrics",
    "opennebula",
    "openstack",
    "redfish",
    "ssh",
)
SANDBOX = "sandbox"
"""The extra whose libraries nothing else needs."""
UNUSED = frozenset({"grpcio", "pygments", "setuptools"})
"""Libraries for pyone's other protocol, for rich's colours of source code, and for builds."""
SERVICES = frozenset(
    {"ec2", "pricing", "s3", "service-quotas", "sqs"}  # what we ask
    | {"signin", "sso", "sso-oidc", "sts"}  # where credentials come from
    | {"autoscaling", "elb", "elbv2", "iam"}  # what moto reads as it starts
)
"""The services of Amazon's whose descriptions come along, of some 450: 12 MB of 13."""
_FOR_COMPILERS = frozenset({".c", ".h", ".pxd", ".pxi", ".pyi", ".pyx"})
_NO_MODULES = frozenset({"RECORD", "INSTALLER", "examples-1.json", "dashboard.html"})
"""Nobody looks at moto's dashboard, which would load scripts from elsewhere."""
UNITS = (
    "slurm-elasticd.service",
    "slurm-elastic-ckptman.service",
    "slurm-elastic-watchdog.service",
    "slurm-elastic-local.service",
    "slurm-elastic-web.service",
    "slurm-elastic-metrics.service",
    "slurm-elastic-metrics.timer",
    "slurm-elastic-hub.service",
    "slurm-elastic-copier.service",
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
    parser.add_argument("sandbox", type=Path, metavar="SANDBOX", help="another one")
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="slurm-elastic's own")
    args = parser.parse_args()
    root: Path = args.root
    packages = site_packages(root)
    with zipfile.ZipFile(args.wheel) as wheel:
        wheel.extractall(packages)
    (data,) = packages.glob("slurm_elastic-*.data")
    (info,) = packages.glob("slurm_elastic-*.dist-info")
    ours = PathDistribution(info)
    needed = closure(ours, EXTRAS)
    for library in needed.values():
        copy(library, packages)
    apart = site_packages(args.sandbox)
    for name, library in closure(ours, (SANDBOX,)).items():
        if name not in needed:
            copy(library, apart)
    environment(root)
    commands(root, ours)
    shared(root, data / "data" / "share")
    shutil.rmtree(data)
    system(root)
    for place in (root, args.sandbox):
        executable(place / HOME / "lib")


def site_packages(root: Path) -> Path:
    """The directory of the environment's libraries, made."""
    packages = root / HOME / "lib" / _PYTHON / "site-packages"
    packages.mkdir(parents=True)
    return packages


def closure(ours: Distribution, extras: Iterable[str]) -> dict[str, Distribution]:
    """All libraries that we need with these extras, by name."""
    seen: set[tuple[str, str]] = set()
    given: dict[str, Distribution] = {}
    waiting = [(need, extra) for need in ours.requires or () for extra in ("", *extras)]
    while waiting:
        text, extra = waiting.pop()
        need = Requirement(text)
        name = canonicalize_name(need.name)
        if name in UNUSED or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        try:
            found = given.setdefault(name, distribution(name))
        except PackageNotFoundError:
            sys.exit(f"{sys.prefix} lacks {need}, which a package of slurm-elastic needs")
        for wanted in {"", *need.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(other, wanted) for other in found.requires or ()]
    return given


def copy(library: Distribution, packages: Path) -> None:
    """The modules of a library and what it says of itself, without its commands and tests."""
    files = library.files or []
    newest: dict[str, str] = {}
    for file in files:
        if described(file):
            newest[file.parts[2]] = max(newest.get(file.parts[2], ""), file.parts[3])
    for file in files:
        outside = file.parts[0] == ".." or not {"test", "tests"}.isdisjoint(file.parts[1:-1])
        unread = file.suffix in {".pyc", *_FOR_COMPILERS} or file.name in _NO_MODULES
        other = described(file) and (
            file.parts[2] not in SERVICES or file.parts[3] != newest[file.parts[2]]
        )
        if not (outside or unread or other):
            place = packages / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(library.locate_file(file)), place)


def described(file: PackagePath) -> bool:
    """Whether it describes one of Amazon's services: ``botocore/data/SERVICE/VERSION/...``."""
    ours = file.parts[0] in {"boto3", "botocore"} and file.parts[1:2] == ("data",)
    return ours and len(file.parts) > 4


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


def executable(directory: Path) -> None:
    """What names its interpreter can be run: neither a wheel nor our copies keep that."""
    for path in directory.rglob("*"):
        if path.is_file() and path.open("rb").read(2) == b"#!":
            path.chmod(0o755)


if __name__ == "__main__":
    main()
