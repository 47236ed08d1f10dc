"""Things of the site that we use, where they can bear no tags: a row for each, which is on disk
before the thing is touched and until it is free again. A thing without a row is somebody else's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import ConfigError, TransientError
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings

_TABLE = "create table if not exists claims (thing text primary key, claim blob not null)"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """``marks`` as clouds have tags; ``seen``: it was seen in use; to end since ``ending`` (Unix
    time).
    """

    marks: dict[str, str]
    seen: bool = False
    ending: float | None = None


class Claims:
    """A file that several processes may share, whichever is first. Any call may raise
    TransientError: then nothing was changed, or nobody knows.
    """

    def __init__(self, cloud: str, file: Path, timeout: float = 30.0) -> None:
        self._cloud = cloud
        self._file = file
        self._timeout = timeout

    def all(self) -> Mapping[str, Claim]:
        """By thing."""
        if not self._file.exists():
            return {}
        with self._opened() as db:
            rows = db.execute("select thing, claim from claims").fetchall()
            return {thing: msgspec.json.decode(claim, type=Claim) for thing, claim in rows}

    def take(self, thing: str, claim: Claim) -> bool:
        """Whether it was free, and is claimed now."""
        with self._opened() as db:
            values = (thing, msgspec.json.encode(claim))
            return bool(db.execute("insert or ignore into claims values (?, ?)", values).rowcount)

    def change(self, thing: str, before: Claim, claim: Claim) -> bool:
        """Whether it was as ``before`` still; else another process was faster: its claim stays."""
        values = (msgspec.json.encode(claim), thing, msgspec.json.encode(before))
        sql = "update claims set claim = ? where thing = ? and claim = ?"
        with self._opened() as db:
            return bool(db.execute(sql, values).rowcount)

    def release(self, thing: str, before: Claim) -> None:
        """The thing is free, unless another process has changed the claim meanwhile."""
        with self._opened() as db:
            values = (thing, msgspec.json.encode(before))
            db.execute("delete from claims where thing = ? and claim = ?", values)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk at its end."""
        try:
            with closing(sqlite3.connect(self._file, timeout=self._timeout)) as db:
                db.execute("pragma synchronous = full")
                db.execute(_TABLE)  # whoever made the file may have died before that
                with db:
                    yield db
        except (sqlite3.Error, msgspec.DecodeError) as error:
            text = f"{self._file} cannot be used: {error}"
            raise TransientError(self._cloud, "NoClaims", text) from error


def claims_of(settings: CloudSettings, named: str | None, config: Config | None) -> Claims:
    """In the state directory, unless the settings have ``named`` a file. ConfigError."""
    if named is None and config is None:
        raise ConfigError(f"cloud {settings.name!r}: no file for its claims is named")
    state = config.state if config else Path()
    return Claims(settings.name, Path(named) if named else state / f"claims-{settings.name}.db")
