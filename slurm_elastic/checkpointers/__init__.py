"""The ways to save a job. Each module is loaded when a method of its kind is opened."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.base.errors import ConfigError, describe_foreign
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.config import Config
from slurm_elastic.config.method_kinds import Look, table
from slurm_elastic.model.protocols import Checkpointer, Slurm


def open_checkpointer(method: str, config: Config, slurm: Slurm, look: Look) -> Checkpointer:
    """Open the method of that name. ``look`` answers all callers of one moment from one list of
    jobs.

    Raises ConfigError if the configuration lacks a setting, or this Python a package, that the
    method needs.
    """
    if method not in table().own_names:
        return _open_plugin(method, config, slurm, look)
    try:
        return _open(method, config, slurm, look)
    except ModuleNotFoundError as error:
        reason = missing_module(error, "ssh")
        raise ConfigError(f"checkpoint method {method!r}: {reason}") from error


def _open(method: str, config: Config, slurm: Slurm, look: Look) -> Checkpointer:
    match method:
        case "signal":
            from slurm_elastic.checkpointers.signal import SignalCheckpointer

            return SignalCheckpointer(
                config.checkpoint.signal, config.state / "signal-saves", slurm, look
            )
        case "criu" | "dmtcp":
            from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer

            return LaunchedCheckpointer(method, _directory(config) / config.cluster.name)
        case "blcr":
            from slurm_elastic.checkpointers.blcr import BlcrCheckpointer

            settings = config.checkpoint
            records = config.state / "blcr-images"
            return BlcrCheckpointer(
                settings.blcr, _directory(config), records, slurm, keep=settings.keep_images
            )
        case "fake":
            from slurm_elastic.checkpointers.fake import FakeCheckpointer

            return FakeCheckpointer()
    raise ConfigError(f"checkpoint method {method!r} is not known")


def _open_plugin(method: str, config: Config, slurm: Slurm, look: Look) -> Checkpointer:
    from slurm_elastic.checkpointers.guarded import CALL_TIMEOUT_S, GuardedCheckpointer

    if method not in table().names():
        raise ConfigError(f"checkpoint method {method!r} is not known")

    def opened() -> Checkpointer:
        return table().kind(method).open(config, slurm, look)

    try:
        return GuardedCheckpointer(method, InTime().call(method, opened, CALL_TIMEOUT_S))
    except ConfigError as error:
        raise ConfigError(f"checkpoint method {method!r}, {error}") from error
    # A plug-in may raise anything, even SystemExit. It ran in another thread, so nothing of it can
    # be meant for us.
    except BaseException as error:
        reason = f"cannot be opened: {describe_foreign(error)}"
        raise ConfigError(f"checkpoint method {method!r} {reason}") from error


def _directory(config: Config) -> Path:
    if config.checkpoint.directory is None:
        raise ConfigError("checkpoint.directory is not set: the method keeps its images there")
    return Path(config.checkpoint.directory)
