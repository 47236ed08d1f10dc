"""The ways to save a job. Each module is loaded when a method of its kind is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.model.protocols import Checkpointer, Slurm
from slurm_elastic.model.slurm import SlurmJob

Look = Callable[[int], SlurmJob | None]
"""A job as Slurm has it now (None: not any more); may raise SlurmError."""


def open_checkpointer(method: str, config: Config, slurm: Slurm, look: Look) -> Checkpointer:
    """The method of that name. ``look`` shares one list of jobs among all who ask at a time.

    ConfigError where the configuration lacks what the method needs, or this Python does.
    """
    try:
        return _open(method, config, slurm, look)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"checkpoint method {method!r}: Python module {error.name!r} is missing;"
            " install slurm-elastic[ssh]"
        ) from error


def _open(method: str, config: Config, slurm: Slurm, look: Look) -> Checkpointer:
    match method:
        case "signal":
            from slurm_elastic.checkpointers.signal import SignalCheckpointer

            return SignalCheckpointer(
                config.checkpoint.signal, config.state / "signal-saves", slurm, look
            )
        case "criu":
            from slurm_elastic.checkpointers.criu import CriuCheckpointer

            return CriuCheckpointer(_directory(config), config.cluster.name)
        case "dmtcp":
            from slurm_elastic.checkpointers.dmtcp import DmtcpCheckpointer

            return DmtcpCheckpointer(_directory(config), config.cluster.name)
        case "blcr":
            from slurm_elastic.checkpointers.blcr import BlcrCheckpointer

            settings = config.checkpoint
            records = config.state / "blcr-images"
            return BlcrCheckpointer(
                settings.blcr, _directory(config), records, slurm, keep=settings.keep
            )
        case "fake":
            from slurm_elastic.checkpointers.fake import FakeCheckpointer

            return FakeCheckpointer()
    raise ConfigError(f"checkpoint method {method!r} is not known")


def _directory(config: Config) -> Path:
    if config.checkpoint.directory is None:
        raise ConfigError("checkpoint.directory is not set: the method keeps its images there")
    return Path(config.checkpoint.directory)
