"""Results of simulations that are kept in a file, so that an interrupted search can continue.

A result is kept by its content: the jobs and the scenario, not the policy's name. A changed history
or configuration gives other keys, so an old result is never taken for a new one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from types import BuiltinFunctionType, FunctionType

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.outcome import Figures
from slurm_elastic.simulate.scenario import Scenario

_BEGIN = b'{"key":'
"""The begin of each line."""


class KeptResult(Struct, frozen=True, kw_only=True):
    """A line of the file."""

    key: str
    figures: Figures


class KeptResults:
    """The results in a file. Each is appended as soon as it is known."""

    def __init__(self, path: Path, jobs: Jobs, origin: int) -> None:
        """Read the file if it exists. ConfigError if it holds anything else than results."""
        self._path = path
        self._prefix = _digest(jobs, origin)
        self._figures: dict[str, Figures] = {}
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for number, line in enumerate(lines[:-1], 1):
            try:
                kept = msgspec.json.decode(line, type=KeptResult)
            except msgspec.DecodeError as error:
                raise ConfigError(
                    f"--resume: {path}: line {number} is no result of a search: {error}"
                ) from None
            self._figures[kept.key] = kept.figures
        if lines[-1]:
            if not lines[-1].startswith(_BEGIN[: len(lines[-1])]):
                raise ConfigError(f"--resume: {path}: the last line is no result of a search")
            # An interruption can cut the last line off. The next result must begin a line.
            writing.as_told(path, b"".join(line + b"\n" for line in lines[:-1]))

    def get(self, scenario: Scenario) -> Figures | None:
        """Return the figures of a scenario; None if it must be simulated."""
        return self._figures.get(self._key(scenario))

    def put(self, scenario: Scenario, figures: Figures) -> None:
        """Keep the figures of a scenario."""
        key = self._key(scenario)
        self._figures[key] = figures
        writing.append(
            self._path, msgspec.json.encode(KeptResult(key=key, figures=figures)) + b"\n"
        )

    def _key(self, scenario: Scenario) -> str:
        digest = hashlib.blake2b(self._prefix, digest_size=16)
        digest.update(_ENCODER.encode(scenario))
        return digest.hexdigest()


def _digest(jobs: Jobs, origin: int) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    # Another release may have other rules.
    digest.update(f"{importlib.metadata.version('slurm-elastic')} {origin}\n".encode())
    for column in jobs.columns:
        digest.update(column.tobytes())
    digest.update(_ENCODER.encode(jobs.data))
    return digest.digest()


def _state(value: object) -> object:
    """Return the content of a value that is no Struct, such as a curve of prices."""
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value.__qualname__
    return value.__reduce_ex__(4)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_state, order="deterministic")
