"""The paths of a sandbox. All its files are below one directory, with a marker file in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.processes.service_remedies import SANDBOX_OF_PROCESS
from slurm_elastic.machine.local.local_processes import SlurmdSettings
from slurm_elastic.sandbox.loopback_only import isolated_env
from slurm_elastic.sandbox.spec import Ports, SandboxSpec

MARKER = SANDBOX_OF_PROCESS
"""In the environment of all processes that a sandbox starts, but not of commands run in it."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = (
    "PYTHONPATH",
    "SLURM_ELASTIC_FAULT",
    "SLURM_ELASTIC_FAULT_ONCE",
    "SUDO_UID",
    "COVERAGE_PROCESS_START",
)


class Saved(Struct, frozen=True, kw_only=True):
    """The contents of the marker file: the specification and ports of the sandbox."""

    spec: SandboxSpec
    ports: Ports


class Layout(Struct, frozen=True, kw_only=True):
    """The paths below ``dir``."""

    dir: Path

    @property
    def marker(self) -> Path:
        """The file that marks the directory as a sandbox."""
        return self.dir / "sandbox.json"

    @property
    def slurm_conf(self) -> Path:
        """The site's slurm.conf."""
        return self.dir / "etc" / "slurm.conf"

    @property
    def config(self) -> Path:
        """The slurm-elastic.yaml."""
        return self.dir / "etc" / "slurm-elastic.yaml"

    @property
    def machines(self) -> Path:
        """The records of static and emulated machines."""
        return self.dir / "run" / "machines"

    @property
    def local_machines(self) -> Path:
        """The records of the local agent."""
        return self.dir / "run" / "local.sock.machines"

    @property
    def images(self) -> Path:
        """The checkpoint images of jobs that the host's root part saves."""
        return self.dir / "images"

    @property
    def log(self) -> Path:
        """The directory of all logs."""
        return self.dir / "log"

    def machine(self, name: str, node: str) -> SlurmdSettings:
        """Return the settings of a slurmd that acts as a machine."""
        return SlurmdSettings(
            id=name,
            node=node,
            directory=str(self.machines / name),
            log=str(self.log / f"slurmd-{node}.out"),
            conf=str(self.slurm_conf),
            environment={MARKER: str(self.dir)},
        )

    def daemon_env(self) -> dict[str, str]:
        """Return the environment of the sandbox's processes: few variables, and no credentials of
        clouds.
        """
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        base = {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            **passed_on,
            **self.config_paths(),
            MARKER: str(self.dir),
        }
        return isolated_env(base)

    def user_env(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of commands run in the sandbox: ``base`` with the sandbox's Slurm,
        and without credentials of clouds.
        """
        slurm = {k: v for k, v in base.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return (
            isolated_env(slurm) | {"PATH": f"{slurm.get('PATH', '')}:{_PATH}"} | self.config_paths()
        )

    def config_paths(self) -> dict[str, str]:
        """Return the variables by which Slurm's commands and ours find their configuration."""
        return {"SLURM_CONF": str(self.slurm_conf), "SLURM_ELASTIC_CONFIG": str(self.config)}

    def save(self, saved: Saved) -> None:
        """Write the marker file."""
        text = msgspec.json.format(msgspec.json.encode(saved, enc_hook=str))
        writing.replace(self.marker, text, 0o644)

    def require_own(self) -> None:
        """Raise SandboxError if the directory belongs to another user, or others may write into
        it.
        """
        try:
            status = self.dir.lstat()
        except FileNotFoundError:
            return
        # Root reads from its files which processes to end, what to run and what to remove.
        if status.st_uid != os.getuid():
            raise SandboxError(f"{self.dir} belongs to another user and is not changed")
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
            raise SandboxError(f"{self.dir} must be a directory in which only its owner may write")

    def read(self) -> Saved:
        """Read the marker file. Raises SandboxError if the directory is no sandbox."""
        self.require_own()
        try:
            return msgspec.json.decode(self.marker.read_bytes(), type=Saved, dec_hook=_path)
        except FileNotFoundError:
            raise SandboxError(
                f"{self.dir} is not a sandbox: it has no {self.marker.name}"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise SandboxError(f"{self.marker} cannot be read: {error}") from None


def _path(kind: type, text: Any) -> Any:  # noqa: ANN401 - msgspec's hook
    return kind(text)
