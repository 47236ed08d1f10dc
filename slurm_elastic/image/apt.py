"""Where Debian's packages come from: this host's own apt sources, also for another release."""

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
_TAKEN = (
    "Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::Retries",
    "Acquire::http::Proxy", "Acquire::https::Proxy",
)  # fmt: skip
"""This host's options of apt that say how packages are reached; they do not stay in an image."""


def host_release() -> str:
    """The codename of this host's Debian; SlurmElasticError on anything else."""
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    told = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    codename = told.get("VERSION_CODENAME", "").strip('"')
    if not codename:
        raise SlurmElasticError("/etc/os-release names no release: say debian: in the recipe")
    return codename


def sources(debian: str, host: str) -> tuple[str, ...]:
    """Lines of sources.list for a release of Debian, from where this host takes its own.

    SlurmElasticError where an archive that this host is to have cannot be had: an image would lack
    it now and later.
    """
    configured = _targets("--no-release-info")
    fetched, why = _targets(), ""
    if missing_in(configured, fetched, host):
        fetched, why = _fetched()
    if missing := missing_in(configured, fetched, host):
        raise SlurmElasticError(
            f"this host's apt sources have {', '.join(missing)}, which cannot be fetched, and an "
            f"image without would never get its packages; {why or 'apt-get update gives no reason'}"
        )
    found = sources_in(fetched, debian, host)
    if not found:
        raise SlurmElasticError("this host's apt sources tell of no Debian mirror")
    return found


def _fetched() -> tuple[str, str]:
    """The same in lists of our own, which leave the host's as they are; and apt's complaint, which
    may be about another archive.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-apt-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)  # apt's own user fetches
        (Path(name) / "partial").mkdir()
        lists, why = f"-oDir::State::Lists={name}", ""
        try:
            run(["apt-get", "update", "--quiet", lists])
        except SlurmElasticError as error:
            why = str(error)
        return _targets(lists), why


def _targets(*options: str) -> str:
    """The lists of packages in apt's sources; without ``--no-release-info`` what was fetched."""
    return run(["apt-get", "indextargets", *options, "--format", _FORM, "Created-By: Packages"])


def missing_in(configured: str, fetched: str, host: str) -> tuple[str, ...]:
    """The archives of the host's release that were not fetched, so that nobody knows yet whether
    they are Debian's own. Pure.
    """
    known = {tuple(line.split("|")[2:]) for line in fetched.splitlines()}
    wanted = dict.fromkeys(tuple(line.split("|")[2:]) for line in configured.splitlines())
    return tuple(
        " ".join(words)
        for words in wanted
        if words not in known and re.split("[-/]", words[1])[0] in (host, *_ALIASES)
    )


def sources_in(told: str, debian: str, host: str) -> tuple[str, ...]:
    """The meaning of apt's index targets. Pure; only Debian's own archives count."""
    components: dict[tuple[str, str], list[str]] = {}
    for line in told.splitlines():
        label, codename, uri, _, component = line.split("|")
        if label in _LABELS and codename.split("-")[0] == host:
            components.setdefault((uri, codename), []).append(component)
    return tuple(
        f"deb {uri} {debian}{codename.removeprefix(host)} {' '.join(dict.fromkeys(names))}"
        for (uri, codename), names in components.items()
    )


def options() -> tuple[str, ...]:
    """The host's own ``_TAKEN``, as lines of apt.conf."""
    told = run(["apt-config", "dump", "--format", "%f %v%n", *_TAKEN])
    pairs = (line.split(" ", 1) for line in told.splitlines() if " " in line)
    return tuple(f'{key} "{value}";' for key, value in pairs if value)


def bootstrap(
    debian: str, tree: Path, wanted: Sequence[str], further: Sequence[str] = (),
    first: str = "",
) -> None:  # fmt: skip
    """A new Debian with these packages in the directory ``tree``; as root. It starts no service.

    ``first``: a shell command before the packages are there, with the tree as its ``$1``.
    """
    settings = [f"--aptopt={option}" for option in (*options(), 'Acquire::Languages "none";')]
    if first:
        settings.append(f"--essential-hook={first}")
    lines = [*sources(debian, host_release()), *further]
    run(
        [*APART, "mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory",
         f"--include={','.join(wanted)}", *settings, debian, tree, "-"],
        text="".join(f"{line}\n" for line in lines),
    )  # fmt: skip
    for left in ("etc/apt/apt.conf.d/99mmdebstrap", "etc/hostname", "etc/resolv.conf"):
        rooted.entry(tree, left).unlink(missing_ok=True)


def in_tree(tree: Path, command: str) -> str:
    """The output of a shell command that runs in the tree as its /, with processes of its own."""
    inner = f"mount -t proc proc {shlex.quote(f'{tree}/proc')} && exec chroot " + shlex.quote(
        str(tree)
    )
    return run([*APART, "sh", "-c", f"{inner} /bin/sh -c {shlex.quote(command)}"])


def version_in(tree: Path, package: str) -> str:
    """The upstream version of a package in the tree: ``24.11.5``; empty where it lacks it."""
    told = run(
        ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\\n"]
    )
    for line in told.splitlines():
        name, _, version = line.partition(" ")
        if name == package:
            return re.split(r"[-+~]", version.partition(":")[2] or version)[0]
    return ""
