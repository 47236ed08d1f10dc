"""Reads the configuration file, checks it as a whole, and writes it out again.

ConfigError has all complaints at once. Each is a line
``FILE:LINE: PATH: found ..., expected ...[; did you mean ...?]``.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import stat
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
from slurm_elastic.config import Config, settled, todo_steps
from slurm_elastic.config import document as yaml_document
from slurm_elastic.config.basics import renamed_keys
from slurm_elastic.config.basics.key_places import key_places
from slurm_elastic.config.catalogue import from_state
from slurm_elastic.config.check import UUID_FORM, check, is_uuid
from slurm_elastic.config.cloud_kinds import Tolerant, table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import Conversion, render
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.problems import Problems

log = logging.getLogger(__name__)

UUID_FILE = "cluster-uuid"
INSTALLED_COPY = "installed.yaml"
"""The file as ``conf install`` read it last, beside it and with its mode."""
MAX_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


def load(path: Path, *, whole: bool = False) -> Config:
    """``read`` the file, and add the types of the catalogues in the state directory."""
    return from_state(read(path, whole=whole), time.time())


def read(path: Path, *, whole: bool = False) -> Config:
    """The configuration in ``path``, with the UUID from ``cluster-uuid`` beside it if that exists.

    ConfigError for anything wrong with either file. For root this includes that another user could
    have written it. If a kind of cloud cannot be used, its clouds become ``UnusableCloud``. If
    ``whole``, these are errors, too.
    """
    is_root = os.geteuid() == 0
    if is_root:
        # Root does what the file says, so no other user may write it.
        require_ours(path)
    config = parse(text(path), str(path), whole=whole)
    if is_root:
        # A SlurmUser that this host lacks is a finding of the checks, not of the reader.
        with contextlib.suppress(KeyError):
            trust.trust_slurm_user(account(config.slurm.user).pw_uid)
    uuid_in_file = read_uuid(path)
    if uuid_in_file is None:
        return config
    if config.cluster.uuid not in (None, uuid_in_file):
        # Machines of the other identity would have no owner: never seen or deleted, still paid.
        raise ConfigError(
            f"{path}: cluster.uuid: found '{config.cluster.uuid}', expected '{uuid_in_file}' as in"
            f" {_uuid_file(path)}: remove one of them"
        )
    return replace(config, cluster=replace(config.cluster, uuid=uuid_in_file))


def require_ours(path: Path) -> None:
    """ConfigError if users other than root and we could have written the file or its UUID."""
    for file in (path, _uuid_file(path)):
        try:
            flaw = trust.flaw(file, trust.roots())
        except OSError:
            continue  # reading the file will fail with the reason
        if flaw:
            raise ConfigError(f"{file}: others may have written it: {flaw}")


def parse(text: str, source: str, *, whole: bool = True) -> Config:
    """The configuration in ``text``. Complaints call it ``source``. ``whole`` as for ``read``."""
    keys = "cluster, clouds and pools"
    document = yaml_document.read(text, source)
    return settled(_converted(document, text, Config, keys, check, whole=whole))


def load_as(path: Path, kind: type[T], keys: str) -> T:
    """Read another YAML file as a Struct of the type ``kind``. ``keys``: the keys that an empty
    file lacks, for the error. ConfigError with all complaints at once, in the form above.
    """
    content = text(path)
    return _converted(yaml_document.read(content, str(path)), content, kind, keys)


def _converted(
    document: yaml_document.YamlDocument, text: str, kind: type[T], keys: str,
    check_draft: Callable[[Draft], None] | None = None, *, whole: bool = True,
) -> T:  # fmt: skip
    if document.value is None:
        raise ConfigError(f"{document.source}: found an empty file, expected {keys}")
    if kind is Config:
        _require_new_keys(document)
    problems = Problems(document)
    schema = _schema(cast(Hashable, kind))
    clouds = table() if whole else Tolerant(table())
    shape = Conversion(problems, {CloudSettings: clouds}, key_places(schema))
    value = shape.convert(schema, document.value, ())
    if check_draft:
        check_draft(Draft(problems, shape, strict=whole))
    for note in problems.notes:
        log.warning(note)
    # Even a service needs the values whose types have no word TODO, such as numbers.
    needs_all = whole or not isinstance(value, kind)
    for line, step in todo_steps.steps(document, text) if needs_all else ():
        problems.add_line(line, step)
    sentences = problems.sentences()
    if sentences or not isinstance(value, kind):
        raise ConfigError(*sentences)
    return value


def _require_new_keys(document: yaml_document.YamlDocument) -> None:
    """ConfigError if the file has old keys. Their values are unread, so the checks must not run."""
    sentences = {
        key.path: renamed_keys.sentence(document.locate(key.path), key.new)
        for key in renamed_keys.find(document.value)
    }
    if sentences:
        raise ConfigError(*(
            f"{document.source}:{document.line(path)}: {text}" for path, text in sentences.items()
        ))  # fmt: skip


def dump(config: Config) -> str:
    """The configuration as YAML with all defaults. ``parse`` reads it back."""
    return yaml_document.write(render(_schema(Config), config))


def read_uuid(path: Path) -> str | None:
    """The UUID in the file beside ``path``. None without a file, ConfigError if it has no UUID."""
    file = _uuid_file(path)
    try:
        identity = file.read_bytes()[:100].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if not is_uuid(identity):
        raise ConfigError(f"{file}: found {yaml_document.shown(identity)}, expected {UUID_FORM}")
    return identity


def ensure_uuid(path: Path, identity: str | None = None) -> str:
    """The UUID in the file beside the configuration ``path``. If there is none, the file is made
    now with ``identity`` or a random UUID.

    If several processes try at once, the first makes it. ConfigError if the file can be neither
    read nor written.
    """
    existing = read_uuid(path)
    if existing is not None:
        return existing
    file = _uuid_file(path)
    try:
        # Never over an existing file: two identities would lose the machines of one of them.
        writing.create(file, f"{identity or uuid.uuid4()}\n".encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    # Read it back: another process may have been first.
    created = read_uuid(path)
    if created is None:
        raise ConfigError(f"{file}: was removed while it was created")
    return created


def rewrite(path: Path, text: str, backup: Path | None = None) -> None:
    """Replace the text of an existing configuration. It keeps its mode, its owner and its byte
    order mark, and a link to it stays a link. The old content goes to ``backup``, if given.

    OSError if a file cannot be read or written; the configuration is unchanged then.
    """
    file = path.resolve()
    status, old_content = file.stat(), file.read_bytes()
    mode = stat.S_IMODE(status.st_mode)
    owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
    mark = codecs.BOM_UTF8 if old_content.startswith(codecs.BOM_UTF8) else b""
    if backup is not None:
        writing.replace(backup, old_content, mode, owner)
    writing.replace(file, mark + text.encode(), mode, owner)


def _uuid_file(path: Path) -> Path:
    return path.parent / UUID_FILE


def text(path: Path) -> str:
    """The text of a file. ConfigError if it is no text, or longer than any configuration."""
    try:
        with path.open("rb") as file:
            # One byte more shows a file that is too long without reading it all.
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: found more than {MAX_BYTES} bytes, expected a YAML file")
        return content.decode("utf-8-sig")  # an editor may have put a byte order mark first
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
