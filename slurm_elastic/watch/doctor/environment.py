"""The environment of the services: what their units read, and SlurmUser's home. A cloud's SDK finds
its credentials by both, so a command that asks a cloud in their place needs them, too.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.model.finding import Finding

FILE = Path("/etc/default/slurm-elastic")  # `EnvironmentFile` of the units in `etc/`
WHAT = "environment of the services"


@contextlib.contextmanager
def of_the_services(user: str, file: Path = FILE) -> Iterator[Finding]:
    """Have that environment meanwhile; the finding says how far we may read it."""
    found, finding = _read(file, user)
    with _having(_home(user) | found):
        yield finding


@contextlib.contextmanager
def of_the_units(file: Path = FILE) -> Iterator[None]:
    """Have what their file sets meanwhile, as far as we may read it, and the home that we have."""
    try:
        found = parse(file.read_text())
    except (OSError, UnicodeDecodeError):
        found = {}
    with _having(found):
        yield


@contextlib.contextmanager
def _having(found: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    try:
        os.environ.update(found)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _read(file: Path, user: str) -> tuple[dict[str, str], Finding]:
    try:
        found = parse(file.read_text())
    except FileNotFoundError:
        home = _directory(user)
        told = f"no {file}: credentials are looked for in the home of {user} ({home})"
        if Path(home).is_dir():
            return {}, Finding.ok(WHAT, told)
        advice = f"say in {file} where they are (docs/install.md)"
        return {}, Finding.note(WHAT, f"{told}, which is not there", advice=advice)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return {}, Finding.note(
            WHAT,
            f"{file}: {why}",
            expected="what the services have, which clouds' credentials may depend on",
            advice="run this as root",
        )
    names = ", ".join(sorted(found)) or "nothing"
    return found, Finding.ok(WHAT, f"{file} sets {names}")


def parse(text: str) -> dict[str, str]:
    """Reads a file of ``NAME=value`` lines like systemd does."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            found[name.strip()] = _unquoted(value.strip())
    return found


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value)) if value[:1] in ("'", '"') else value
    except ValueError:  # a quote that nothing closes
        return value


def _home(user: str) -> dict[str, str]:
    """What systemd sets; only root may do so for another user."""
    return {"HOME": _directory(user)} if os.geteuid() == 0 else {}


def _directory(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")
