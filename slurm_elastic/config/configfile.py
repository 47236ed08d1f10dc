"""Reads the configuration file, checks it as a whole, and writes it out again.

ConfigError has every complaint at once, each a line
``FILE:LINE: PATH: found ..., expected ...[; did you mean ...?]``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import msgspec.inspect as mi
from msgspec.structs import replace

from slurm_elastic.base import trust, writing
from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, settled
from slurm_elastic.config import document as yaml_document
from slurm_elastic.config.catalogue import from_state
from slurm_elastic.config.check import UUID_FORM, check, is_uuid
from slurm_elastic.config.cloud_kinds import Tolerant, table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import Problems, Shape, render
from slurm_elastic.config.partial import Draft

log = logging.getLogger(__name__)

UUID_FILE = "cluster-uuid"
MAX_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


def load(path: Path, *, whole: bool = False) -> Config:
    """``read`` it, and add the types of the catalogues in the state directory."""
    return from_state(read(path, whole=whole), time.time())


def read(path: Path, *, whole: bool = False) -> Config:
    """The configuration in ``path``, with the UUID from ``cluster-uuid`` beside it if that exists.

    Raises ConfigError for anything that is wrong with either file; for root, that includes that
    somebody else could have written it. If a kind of cloud cannot be used, its clouds become
    ``UnusableCloud``; with ``whole``, that is an error, too.
    """
    is_root = os.geteuid() == 0
    if is_root:
        require_ours(path)
    config = parse(text(path), str(path), whole=whole)
    if is_root:
        with contextlib.suppress(KeyError):
            trust.also(account(config.slurm.user).pw_uid)
    kept = read_uuid(path)
    if kept is None:
        return config
    if config.cluster.uuid not in (None, kept):
        # Machines of the other identity would be nobody's: never seen, never deleted, still paid.
        raise ConfigError(
            f"{path}: cluster.uuid: found '{config.cluster.uuid}', expected '{kept}' as in"
            f" {_uuid_file(path)}: remove one of them"
        )
    return replace(config, cluster=replace(config.cluster, uuid=kept))


def require_ours(path: Path) -> None:
    """ConfigError if others than root and we could have written the file or the UUID beside it."""
    for file in (path, _uuid_file(path)):
        try:
            wrong = trust.flaw(file, trust.roots())
        except OSError:
            continue  # reading it will fail, and say why
        if wrong:
            raise ConfigError(f"{file}: others may have written it: {wrong}")


def parse(text: str, source: str, *, whole: bool = True) -> Config:
    """The configuration in ``text``; complaints call it ``source``. ``whole`` as for ``read``."""
    keys = "cluster, clouds and pools"
    return settled(_converted(text, source, Config, keys, check, whole=whole))


def load_as(path: Path, kind: type[T], keys: str) -> T:
    """Another YAML file as a Struct; ``keys``: what an empty file should have had. ConfigError with
    every complaint at once, in the same form.
    """
    return _converted(text(path), str(path), kind, keys)


def _converted(
    text: str, source: str, kind: type[T], keys: str,
    also: Callable[[Draft], None] | None = None, *, whole: bool = True,
) -> T:  # fmt: skip
    document = yaml_document.read(text, source)
    if document.value is None:
        raise ConfigError(f"{source}: found an empty file, expected {keys}")
    problems = Problems(document)
    shape = Shape(problems, {CloudSettings: table() if whole else Tolerant(table())})
    value = shape.convert(_schema(cast(Hashable, kind)), document.value, ())
    if also:
        also(Draft(problems, shape, strict=whole))
    for note in problems.notes:
        log.warning(note)
    sentences = problems.sentences()
    if sentences or not isinstance(value, kind):
        raise ConfigError(*sentences)
    return value


def dump(config: Config) -> str:
    """The configuration as YAML with all defaults; ``parse`` reads it back."""
    return yaml_document.write(render(_schema(Config), config))


def read_uuid(path: Path) -> str | None:
    """The UUID in the file beside ``path``, None without one; ConfigError if it is none."""
    file = _uuid_file(path)
    try:
        found = file.read_bytes()[:100].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if not is_uuid(found):
        raise ConfigError(f"{file}: found {yaml_document.shown(found)}, expected {UUID_FORM}")
    return found


def ensure_uuid(path: Path) -> str:
    """The UUID in the file beside the configuration ``path``, which is made now if there is none.

    Of several that try at once, the first makes it. Raises ConfigError if the file can be neither
    read nor written.
    """
    kept = read_uuid(path)
    if kept is not None:
        return kept
    file = _uuid_file(path)
    try:
        writing.create(file, f"{uuid.uuid4()}\n".encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    made = read_uuid(path)
    if made is None:
        raise ConfigError(f"{file}: was removed while it was made")
    return made


def _uuid_file(path: Path) -> Path:
    return path.parent / UUID_FILE


def text(path: Path) -> str:
    """What is in it. ConfigError where that is no text, or more than a configuration has."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: found more than {MAX_BYTES} bytes, expected a YAML file")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: found byte 0x{error.object[error.start]:02x} at offset {error.start},"
            " expected UTF-8 text"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: found a directory, expected a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


@cache
def _schema(kind: Hashable) -> mi.Type:
    return mi.type_info(kind)
