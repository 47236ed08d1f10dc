"""The apt sources for an image, taken from this host's, also for another release of Debian."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.image import rooted
from slurm_elastic.image.commands import APART, run

_FORM = "$(LABEL)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
_LABELS = ("Debian", "Debian-Security", "Debian Backports")
_ALIASES = ("stable", "oldstable", "oldoldstable", "testing", "unstable")
_COPIED_OPTIONS = (
    "Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::Retries",
    "Acquire::http::Proxy", "Acquire::https::Proxy",
)  # fmt: skip
"""Options of this host's apt that say how packages are reached. They do not stay in the image."""


def host_release() -> str:
    """Return the codename of this host's Debian. SlurmElasticError if /etc/os-release has none."""
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    codename = fields.get("VERSION_CODENAME", "").strip('"')
    if not codename:
        raise SlurmElasticError("/etc/os-release names no release: set debian: in the recipe")
    return codename


def sources(debian: str, host: str) -> tuple[str, ...]:
    """Return lines of sources.list for the release ``debian``, based on this host's own sources.

    SlurmElasticError if a configured archive of this host cannot be fetched. An image without the
    archive would never get its packages.
    """
    configured = _targets("--no-release-info")
    fetched, apt_error = _targets(), ""
    if missing_in(configured, fetched, host):
        # The host has not run apt-get update since its sources were changed. Fetch the lists.
        fetched, apt_error = _fetch_targets()
    if missing := missing_in(configured, fetched, host):
        raise SlurmElasticError(
            f"this host's apt sources have {', '.join(missing)}, which cannot be fetched, and an "
            "image without would never get its packages; "
            f"{apt_error or 'apt-get update gives no reason'}"
        )
    lines = sources_in(fetched, debian, host)
    if not lines:
        raise SlurmElasticError(
            "this host's apt sources have no Debian mirror: add one to /etc/apt/sources.list"
        )
    return lines


def _fetch_targets() -> tuple[str, str]:
    """Fetch the package lists into a directory of our own, so that the host's lists stay unchanged.

    Return the fetched targets and apt's error. The error may be about an unrelated archive.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-apt-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)  # apt's own user fetches
        (Path(name) / "partial").mkdir()
        lists, apt_error = f"-oDir::State::Lists={name}", ""
        try:
            run(["apt-get", "update", "--quiet", lists])
        except SlurmElasticError as error:
            apt_error = str(error)
        return _targets(lists), apt_error


def _targets(*options: str) -> str:
    """Return the package lists in apt's sources. Without ``--no-release-info`` only the fetched
    ones.
    """
    return run(["apt-get", "indextargets", *options, "--format", _FORM, "Created-By: Packages"])


def missing_in(configured: str, fetched: str, host: str) -> tuple[str, ...]:
    """Return the archives of the host's release that were not fetched. Only their release files
    tell whether an archive is Debian's own. Pure.
    """
    fetched_archives = {tuple(line.split("|")[2:]) for line in fetched.splitlines()}
    configured_archives = dict.fromkeys(
        tuple(line.split("|")[2:]) for line in configured.splitlines()
    )
    return tuple(
        " ".join(fields)
        for fields in configured_archives
        if fields not in fetched_archives and re.split("[-/]", fields[1])[0] in (host, *_ALIASES)
    )


def sources_in(targets: str, debian: str, host: str) -> tuple[str, ...]:
    """Return lines of sources.list made from apt's index targets. Only Debian's own archives count.
    Pure.
    """
    components: dict[tuple[str, str], list[str]] = {}
    for line in targets.splitlines():
        label, codename, uri, _, component = line.split("|")
        if label in _LABELS and codename.split("-")[0] == host:
            components.setdefault((uri, codename), []).append(component)
    return tuple(
        f"deb {uri} {debian}{codename.removeprefix(host)} {' '.join(dict.fromkeys(names))}"
        for (uri, codename), names in components.items()
    )


def options() -> tuple[str, ...]:
    """Return the host's values of ``_COPIED_OPTIONS``, as lines of apt.conf."""
    dump = run(["apt-config", "dump", "--format", "%f %v%n", *_COPIED_OPTIONS])
    pairs = (line.split(" ", 1) for line in dump.splitlines() if " " in line)
    return tuple(f'{key} "{value}";' for key, value in pairs if value)


def bootstrap(
    debian: str, tree: Path, names: Sequence[str], more_sources: Sequence[str] = (),
    early_command: str = "",
) -> None:  # fmt: skip
    """Install a new Debian with the packages ``names`` in the directory ``tree``; as root. Start no
    service.

    ``more_sources``: lines of sources.list besides the host's. ``early_command``: a shell command
    that runs before the packages are installed, with the tree as its ``$1``.
    """
    settings = [f"--aptopt={option}" for option in (*options(), 'Acquire::Languages "none";')]
    if early_command:
        settings.append(f"--essential-hook={early_command}")
    lines = [*sources(debian, host_release()), *more_sources]
    run(
        [*APART, "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
         f"--include={','.join(names)}", *settings, debian, tree, "-"],
        text="".join(f"{line}\n" for line in lines),
    )  # fmt: skip
    # mmdebstrap copies settings of this host, which do not belong into the tree.
    for name in ("etc/apt/apt.conf.d/99mmdebstrap", "etc/hostname", "etc/resolv.conf"):
        rooted.entry(tree, name).unlink(missing_ok=True)


def in_tree(tree: Path, command: str) -> str:
    """Run a shell command in the tree (chroot, its own pid namespace) and return its output."""
    inner = f"mount -t proc proc {shlex.quote(f'{tree}/proc')} && exec chroot " + shlex.quote(
        str(tree)
    )
    return run([*APART, "sh", "-c", f"{inner} /bin/sh -c {shlex.quote(command)}"])


def version_in(tree: Path, package: str) -> str:
    """Return the upstream version of a package in the tree (``24.11.5``), or "" if it is not
    installed.
    """
    listing = run(
        ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\\n"]
    )
    for line in listing.splitlines():
        name, _, version = line.partition(" ")
        if name == package:
            return re.split(r"[-+~]", version.partition(":")[2] or version)[0]
    return ""
