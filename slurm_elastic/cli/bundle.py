"""``slurm-elastic bundle``: one archive for who is asked for help, without secrets."""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import msgspec

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.redaction import redacted
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.records import may_read

PATIENCE = 120.0  # seconds for each command
DECISIONS = 1000
LINES = 3000  # lines of the log
LARGEST = 8 << 20  # bytes of one part; of what is longer the end is kept
_INCLUDE = re.compile(r"^[ \t]*include[ \t=]+([^\s#]+)", re.IGNORECASE | re.MULTILINE)
OURS = ("msgspec", "PyYAML", "rich", "boto3", "botocore", "openstacksdk", "pyone", "docker",
        "paramiko", "pyslurm", "prometheus-client")  # fmt: skip
UNITS = (
    "slurm-elasticd",
    "slurm-elastic-ckptman",
    "slurm-elastic-watchdog",
    "slurm-elastic-local",
    "slurm-elastic-hub",
)
COMMANDS = {
    "status.txt": ("status", "--all"),
    "status.json": ("status", "--json"),
    "doctor.txt": ("doctor",),
    "checkpoints.txt": ("ckpt", "list"),
}


class BundledFile(NamedTuple):
    """A file of the archive; ``secrets`` were taken out of it."""

    name: str
    content: bytes
    secrets: int


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bundle",
        description="Write an archive for who is asked for help: versions, configuration, status, "
        "doctor, the last decisions and logs, slurm.conf. Secrets are taken out; names of users, "
        "accounts and jobs stay. It lists what is in it: look through it before you send it.",
        epilog=examples("slurm-elastic bundle", "slurm-elastic bundle --output /tmp/case-4711.tgz"),
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="write this file, which must not be there (default: slurm-elastic-CLUSTER-TIME.tgz "
        "in this directory)",
    )  # fmt: skip
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE",
        help="add the end of this log; may be given again (default: the services' journal)",
    )  # fmt: skip
    parser.add_argument(
        "--lines", type=count, default=LINES, metavar="N",
        help=f"take so many lines of each log (default: {LINES})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the archive and say what is in it."""
    path = Path(args.config)
    config = load(path)
    if not may_read(config):
        raise SlurmElasticError(f"{config.state} is for root and {config.slurm.user}")
    stamp = time.strftime("%Y%m%dT%H%M%S")
    name = f"slurm-elastic-{config.cluster.name}-{stamp}"
    output = args.output or Path(f"{name}.tgz")
    known = _known(config)
    parts = [_part(*one, known) for one in _collected(config, path, args.log, args.lines)]
    _write(output, name, parts)
    for part in parts:
        secrets = f", {part.secrets} secrets taken out" if part.secrets else ""
        print(f"{len(part.content):>9,} bytes  {visible(part.name)}{secrets}")
    print(f"\n{output}: look through it before you send it (tar xzf); it names users and jobs")
    return 0


def _collected(
    config: Config, path: Path, logs: list[Path], lines: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and reading of each part, in the order of the archive."""
    yield "versions.txt", lambda: _versions(config)
    yield "slurm-elastic.yaml", lambda: path.read_text("utf-8", "replace")
    for name, words in COMMANDS.items():
        yield name, lambda words=words: _ours(path, *words)  # type: ignore[misc]
    yield "decisions.jsonl", lambda: _decisions(config)
    for file in _slurm_files(config):
        yield f"slurm/{file.name}", lambda file=file: file.read_text("utf-8", "replace")  # type: ignore[misc]
    scontrol = os.path.join(config.slurm.bin_dir, "scontrol")
    yield "slurm/scontrol-show-config.txt", lambda: _said(scontrol, "show", "config")
    yield (
        "slurm/sinfo.txt",
        lambda: _said(os.path.join(config.slurm.bin_dir, "sinfo"), "--all", "--long"),
    )
    if not logs:
        units = [word for unit in UNITS for word in ("--unit", unit)]
        yield "journal.txt", lambda: _said("journalctl", "--no-pager", f"--lines={lines}", *units)
    for log in logs:
        yield f"logs/{log.name}", lambda log=log: _tail(log, lines)  # type: ignore[misc]


def _part(name: str, read: Callable[[], str], known: Collection[str]) -> BundledFile:
    """A part that cannot be had says why in its place."""
    try:
        text = read()
    except (OSError, SlurmElasticError, sqlite3.Error, subprocess.SubprocessError) as error:
        text = f"cannot be had: {error}\n"
    clean, secrets = redacted(text, known)
    return BundledFile(name, clean.encode("utf-8", "replace")[-LARGEST:], secrets)


def _known(config: Config) -> Collection[str]:
    """Secrets of the configuration that look like any other address."""
    webhook = config.notify.webhook
    return [webhook] if webhook and not webhook.startswith("/") else []


def _versions(config: Config) -> str:
    found = {one.metadata["Name"]: one.version for one in distributions()}
    known = {name.lower(): (name, version) for name, version in found.items() if name}
    lines = [f"{name} {known[name.lower()][1]}" for name in ("slurm-elastic", *OURS)
             if name.lower() in known]  # fmt: skip
    lines += [f"Python {platform.python_version()} ({sys.executable})", platform.platform()]
    release = Path("/etc/os-release")
    system = release.read_text() if release.exists() else ""
    slurm = _said(os.path.join(config.slurm.bin_dir, "scontrol"), "--version")
    return "\n".join([*lines, slurm.strip(), system])


def _ours(config: Path, *words: str) -> str:
    module = "slurm_elastic.cli.main"
    return _said(sys.executable, "-P", "-m", module, "--config", str(config), *words)


def _said(program: str, *words: str) -> str:
    """All that a command says, and how it ended."""
    if shutil.which(program) is None:
        return f"there is no {program}\n"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "160"}
    done = subprocess.run(
        [program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=PATIENCE, check=False, env=environment,
    )  # fmt: skip
    text = done.stdout.decode("utf-8", "replace")
    return text if done.returncode == 0 else f"{text}\n(exit code {done.returncode})\n"


def _decisions(config: Config) -> str:
    path = config.state / "ledger.db"
    with config.sharing(), closing(Ledger(path, read_only=True)) as ledger:
        rows = ledger.decisions.last(DECISIONS)
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def _slurm_files(config: Config) -> list[Path]:
    """slurm.conf, and the files that it includes: relative ones are beside it."""
    conf = Path(config.slurm.conf)
    found: list[Path] = []
    left = [conf]
    while left:
        path = left.pop(0)
        if path in found:
            continue
        found.append(path)
        text = path.read_text("utf-8", "replace") if path.is_file() else ""
        left += [conf.parent / name for name in _INCLUDE.findall(text)]
    return found


def _tail(log: Path, lines: int) -> str:
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - LARGEST, 0))
        text = file.read().decode("utf-8", "replace")
    return "".join(text.splitlines(keepends=True)[-lines:])


def _write(output: Path, folder: str, parts: list[BundledFile]) -> None:
    """For its owner alone. ConfigError where there is such a file."""
    try:
        number = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"--output: {output} is there already") from None
    with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts:
            member = tarfile.TarInfo(f"{folder}/{part.name}")
            member.size, member.mode, member.mtime = len(part.content), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(part.content))
