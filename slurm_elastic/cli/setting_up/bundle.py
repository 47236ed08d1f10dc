"""``slurm-elastic bundle``: one archive for support, with secrets removed."""

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

COMMAND_TIMEOUT_S = 120.0
MAX_DECISIONS = 1000
DEFAULT_LOG_LINES = 3000
MAX_PART_BYTES = 8 << 20  # of a longer file of the archive we keep the end
_INCLUDE = re.compile(r"^[ \t]*include[ \t=]+([^\s#]+)", re.IGNORECASE | re.MULTILINE)
PACKAGES = ("msgspec", "PyYAML", "rich", "boto3", "botocore", "openstacksdk", "pyone", "docker",
            "google-auth", "paramiko", "pyslurm", "prometheus-client")  # fmt: skip
"""Python packages whose installed version the archive lists."""
UNITS = (
    "slurm-elasticd",
    "slurm-elastic-ckptman",
    "slurm-elastic-watchdog",
    "slurm-elastic-local",
    "slurm-elastic-hub",
    "slurm-elastic-copier",
)
COMMANDS = {
    "status.txt": ("status", "--all"),
    "status.json": ("status", "--json"),
    "doctor.txt": ("doctor",),
    "checkpoints.txt": ("ckpt", "list"),
}


class BundledFile(NamedTuple):
    """A file of the archive; ``secrets``: how many secrets were removed from it."""

    name: str
    content: bytes
    secrets: int


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bundle",
        description="Collect into one archive for support: versions, configuration, status, "
        "doctor, the last decisions and logs, slurm.conf. Secrets are removed; names of users, "
        "accounts and jobs stay. The command lists the contents: check them before you send the "
        "archive.",
        epilog=examples("slurm-elastic bundle", "slurm-elastic bundle --output /tmp/case-4711.tgz"),
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="write this file, which must not exist yet (default: "
        "slurm-elastic-CLUSTER-TIME.tgz in this directory)",
    )  # fmt: skip
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE",
        help="add the end of this log; may be given again (default: the services' journal)",
    )  # fmt: skip
    parser.add_argument(
        "--lines", type=count, default=DEFAULT_LOG_LINES, metavar="N",
        help=f"take the last N lines of each log (default: {DEFAULT_LOG_LINES})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the archive and print its contents. SlurmElasticError if the user may not read it."""
    path = Path(args.config)
    config = load(path)
    if not may_read(config):
        raise SlurmElasticError(f"{config.state} is for root and {config.slurm.user}")
    stamp = time.strftime("%Y%m%dT%H%M%S")
    name = f"slurm-elastic-{config.cluster.name}-{stamp}"
    output = args.output or Path(f"{name}.tgz")
    configured_secrets = _configured_secrets(config)
    files = [
        _bundled(*source, configured_secrets)
        for source in _sources(config, path, args.log, args.lines)
    ]
    _write(output, name, files)
    for file in files:
        secrets = f", {file.secrets} secrets removed" if file.secrets else ""
        print(f"{len(file.content):>9,} bytes  {visible(file.name)}{secrets}")
    print(f"\n{output} names users and jobs: check it (tar xzf) before you send it")
    return 0


def _sources(
    config: Config, path: Path, logs: list[Path], lines: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (name, function that reads it) for each file, in the order of the archive."""
    yield "versions.txt", lambda: _versions(config)
    yield "slurm-elastic.yaml", lambda: path.read_text("utf-8", "replace")
    for name, arguments in COMMANDS.items():
        # The default argument keeps this loop's value; the function runs after the loop.
        yield name, lambda arguments=arguments: _own_command(path, *arguments)  # type: ignore[misc]
    yield "decisions.jsonl", lambda: _decisions(config)
    for file in _slurm_files(config):
        yield f"slurm/{file.name}", lambda file=file: file.read_text("utf-8", "replace")  # type: ignore[misc]
    scontrol = os.path.join(config.slurm.bin_dir, "scontrol")
    yield "slurm/scontrol-show-config.txt", lambda: _output_of(scontrol, "show", "config")
    yield (
        "slurm/sinfo.txt",
        lambda: _output_of(os.path.join(config.slurm.bin_dir, "sinfo"), "--all", "--long"),
    )
    if not logs:
        units = [word for unit in UNITS for word in ("--unit", unit)]
        yield (
            "journal.txt",
            lambda: _output_of("journalctl", "--no-pager", f"--lines={lines}", *units),
        )
    for log in logs:
        yield f"logs/{log.name}", lambda log=log: _tail(log, lines)  # type: ignore[misc]


def _bundled(
    name: str, read: Callable[[], str], configured_secrets: Collection[str]
) -> BundledFile:
    """Read one file; if that fails, its content in the archive is the reason."""
    try:
        text = read()
    except (OSError, SlurmElasticError, sqlite3.Error, subprocess.SubprocessError) as error:
        text = f"not available: {error}\n"
    clean, secrets = redacted(text, configured_secrets)
    return BundledFile(name, clean.encode("utf-8", "replace")[-MAX_PART_BYTES:], secrets)


def _configured_secrets(config: Config) -> Collection[str]:
    """Secrets that ``redacted`` cannot recognise: a web hook's secret address looks like any URL.

    ``notify.webhook`` that begins with "/" is the path of a file, which is no secret.
    """
    webhook = config.notify.webhook
    return [webhook] if webhook and not webhook.startswith("/") else []


def _versions(config: Config) -> str:
    installed = {
        distribution.metadata["Name"]: distribution.version for distribution in distributions()
    }
    name_and_version = {
        name.lower(): (name, version) for name, version in installed.items() if name
    }
    lines = [f"{name} {name_and_version[name.lower()][1]}" for name in ("slurm-elastic", *PACKAGES)
             if name.lower() in name_and_version]  # fmt: skip
    lines += [f"Python {platform.python_version()} ({sys.executable})", platform.platform()]
    release = Path("/etc/os-release")
    system = release.read_text() if release.exists() else ""
    slurm = _output_of(os.path.join(config.slurm.bin_dir, "scontrol"), "--version")
    return "\n".join([*lines, slurm.strip(), system])


def _own_command(config: Path, *arguments: str) -> str:
    # -P: a file in the current directory must not shadow a module.
    module = "slurm_elastic.cli.main"
    return _output_of(sys.executable, "-P", "-m", module, "--config", str(config), *arguments)


def _output_of(program: str, *arguments: str) -> str:
    """The output of a command (stdout and stderr), and its exit code unless that is 0."""
    if shutil.which(program) is None:
        return f"there is no {program}\n"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "160"}
    result = subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, check=False, env=environment,
    )  # fmt: skip
    text = result.stdout.decode("utf-8", "replace")
    return text if result.returncode == 0 else f"{text}\n(exit code {result.returncode})\n"


def _decisions(config: Config) -> str:
    path = config.state / "ledger.db"
    with config.sharing(), closing(Ledger(path, read_only=True)) as ledger:
        rows = ledger.decisions.last(MAX_DECISIONS)
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def _slurm_files(config: Config) -> list[Path]:
    """slurm.conf and the files that it includes; relative paths start at its directory."""
    conf = Path(config.slurm.conf)
    files: list[Path] = []
    pending = [conf]
    while pending:
        path = pending.pop(0)
        if path in files:
            continue
        files.append(path)
        text = path.read_text("utf-8", "replace") if path.is_file() else ""
        pending += [conf.parent / name for name in _INCLUDE.findall(text)]
    return files


def _tail(log: Path, lines: int) -> str:
    with log.open("rb") as file:
        # seek() to the end returns the size. A log may have many GB: read only its last part.
        file.seek(max(file.seek(0, os.SEEK_END) - MAX_PART_BYTES, 0))
        text = file.read().decode("utf-8", "replace")
    return "".join(text.splitlines(keepends=True)[-lines:])


def _write(output: Path, folder: str, files: list[BundledFile]) -> None:
    """Write the archive, readable by its owner only. ConfigError if ``output`` exists."""
    try:
        number = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"--output: {output} exists already") from None
    with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for entry in files:
            member = tarfile.TarInfo(f"{folder}/{entry.name}")
            member.size, member.mode, member.mtime = len(entry.content), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(entry.content))
