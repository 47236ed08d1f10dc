"""The environment of the services: the file that their units read, and SlurmUser's home.

A cloud's SDK finds its credentials by both. A command that asks a cloud in the services' place
needs the same environment.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.pages import page
from slurm_elastic.model.finding import Finding

FILE = Path("/etc/default/slurm-elastic")  # `EnvironmentFile` of the units in `etc/`
WHAT = "environment of the services"


@contextlib.contextmanager
def of_the_services(user: str, file: Path = FILE) -> Iterator[Finding]:
    """Set the services' environment for the block; the finding says what we may read of it."""
    variables, finding = _read(file, user)
    with _environment(_home(user) | variables):
        yield finding


@contextlib.contextmanager
def of_the_units(file: Path = FILE) -> Iterator[None]:
    """Set the variables of the units' file for the block, if we may read it; HOME stays ours."""
    try:
        variables = parse(file.read_text())
    except (OSError, UnicodeDecodeError):
        variables = {}
    with _environment(variables):
        yield


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    saved = dict(os.environ)
    try:
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def _read(file: Path, user: str) -> tuple[dict[str, str], Finding]:
    try:
        variables = parse(file.read_text())
    except FileNotFoundError:
        home = _directory(user)
        text = f"no {file}: credentials are looked for in the home of {user} ({home})"
        if Path(home).is_dir():
            return {}, Finding.ok(WHAT, text)
        advice = f"say in {file} where they are ({page('install')})"
        return {}, Finding.note(WHAT, f"{text}, which is not there", advice=advice)
    except (OSError, UnicodeDecodeError) as error:
        error_text = getattr(error, "strerror", None) or str(error)
        return {}, Finding.note(
            WHAT,
            f"{file}: {error_text}",
            expected="what the services have, which clouds' credentials may depend on",
            advice="run this as root",
        )
    names = ", ".join(sorted(variables)) or "nothing"
    return variables, Finding.ok(WHAT, f"{file} sets {names}")


def parse(text: str) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines, read as systemd reads them."""
    variables = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            variables[name.strip()] = _unquoted(value.strip())
    return variables


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value)) if value[:1] in ("'", '"') else value
    except ValueError:  # an unclosed quote
        return value


def _home(user: str) -> dict[str, str]:
    """Return HOME as systemd sets it for the user; nothing if we are not root."""
    return {"HOME": _directory(user)} if os.geteuid() == 0 else {}


def _directory(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")
