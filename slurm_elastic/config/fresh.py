"""The configuration as its file has it now, for processes that run for days."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.local_time import minute
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import INSTALLED_COPY, UUID_FILE, load

log = logging.getLogger(__name__)

CATALOGUE_TTL_S = 300.0
"""A catalogue in the state directory changes types and prices without a change of the file."""

_Version = tuple[tuple[int, ...], ...]


def load_or_installed(file: Path, report: Callable[[str], None]) -> Config:
    """The configuration in ``file``. While the file is wrong, ``report`` this and return the
    configuration of the last ``conf install``. Even then machines cost money, so an operator must
    be able to look and to brake.

    ConfigError, with all complaints about ``file``, if no install has left a copy that can be read.
    """
    try:
        return load(file)
    except ConfigError as error:
        config, installed_at = _installed(file, error)
        complaint, *further = str(error).splitlines()
        number = f" (and {len(further)} more complaints)" if further else ""
        report(
            f"{complaint}{number}; no service can start again before it is corrected. This answer"
            f" is by the configuration of the last conf install ({minute(installed_at)})"
        )
        return config


def _installed(file: Path, error: ConfigError) -> tuple[Config, float]:
    """The configuration of the last ``conf install``, and its time. ``error``, which the file has,
    if no install has left a copy that can be read.
    """
    copy = file.parent / INSTALLED_COPY
    try:
        return load(copy), copy.stat().st_mtime
    except (ConfigError, OSError):
        raise error from None


class FreshConfig:
    """Reads ``file`` again when it has changed. Thread-safe.

    While the file is broken, the last configuration that could be read serves, and ``trouble`` has
    the reason, because an empty screen helps no operator. ``or_installed``: if the file is broken
    from the start, the configuration of the last ``conf install`` serves, as for a command that
    looks.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_lock": Guarded("_config", "_version", "_read_at", "_trouble"),
    }

    def __init__(
        self, file: Path, read: Callable[[Path], Config] = load,
        monotonic: Callable[[], float] = time.monotonic, *, or_installed: bool = False,
    ) -> None:  # fmt: skip
        self._or_installed = or_installed
        self._file, self._read, self._monotonic = file, read, monotonic
        self._lock = threading.Lock()
        self._config: Config | None = None
        self._version: _Version = ()
        self._read_at = 0.0
        self._trouble = ""
        self._reports = ReportOnce[Path]()

    @property
    def trouble(self) -> str:
        """Why the file cannot be used as it is now; "" if it can."""
        with self._lock:
            return self._trouble

    def get(self) -> Config:
        """The configuration: the same object until the file or a catalogue has changed it.

        ConfigError if it has never been read and is wrong.
        """
        with self._lock:
            version, now = self._look(), self._monotonic()
            is_same = version == self._version and now - self._read_at < CATALOGUE_TTL_S
            if self._config is not None and is_same:
                return self._config
            try:
                config = self._read(self._file)
            except ConfigError as error:
                if self._config is None and not self._or_installed:
                    raise
                config = self._config or _installed(self._file, error)[0]
                if self._reports.is_news(self._file, str(error)):
                    log.error("the configuration before the change is used: %s", error)  # noqa: TRY400
                self._trouble = str(error)
            else:
                self._trouble = ""
                self._reports.clear(self._file)
            # The version from before the reading: a change during it is seen at the next call.
            self._version, self._read_at = version, now
            if config != self._config:
                self._config = config
            return self._config

    def _look(self) -> _Version:
        return tuple(map(_state, (self._file, self._file.parent / UUID_FILE)))


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()  # the reader reports it
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
