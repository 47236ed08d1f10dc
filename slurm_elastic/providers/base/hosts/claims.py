"""Claims on things of the site that cannot carry tags, such as hosts. Each claim is a row in a
file. The row is on disk before the thing is touched, and stays until the thing is free again. A
thing without a row is not ours.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import ConfigError, TransientError
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.providers.base.hosts.hosted_cloud import claims_file

_TABLE = "create table if not exists claims (thing text primary key, claim blob not null)"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim on a thing. ``marks`` are like the tags of a machine in a cloud.

    ``seen``: the thing was seen in use. ``ending``: when we decided to end it (Unix time), or None.
    """

    marks: dict[str, str]
    seen: bool = False
    ending: float | None = None


class Claims:
    """The claims of one cloud, in a sqlite file that several processes may share; the first one
    creates it. Any call may raise TransientError: then nothing was changed, or the outcome is
    unknown. ``found_at``: where the claims must be found, too, if the settings no longer name the
    file.
    """

    def __init__(
        self, cloud: str, file: Path, timeout: float = 30.0, found_at: Path | None = None
    ) -> None:
        self._cloud = cloud
        self._file = file
        self._timeout = timeout
        self._found_at = found_at

    def all(self) -> Mapping[str, Claim]:
        """All claims by thing."""
        if not self._file.exists():
            self._refuse_if_away()
            return {}
        with self._opened() as db:
            rows = db.execute("select thing, claim from claims").fetchall()
            return {thing: msgspec.json.decode(claim, type=Claim) for thing, claim in rows}

    def take(self, thing: str, claim: Claim) -> bool:
        """Claim the thing if it is free. Returns False if it is claimed already."""
        with self._opened() as db:
            self._link()
            values = (thing, msgspec.json.encode(claim))
            return bool(db.execute("insert or ignore into claims values (?, ?)", values).rowcount)

    def change(self, thing: str, before: Claim, claim: Claim) -> bool:
        """Replace the claim ``before``. Returns False, and changes nothing, if another process has
        changed it first.
        """
        values = (msgspec.json.encode(claim), thing, msgspec.json.encode(before))
        # Compare and swap: the row must still hold the bytes of ``before``. msgspec encodes an
        # equal claim to equal bytes, as it keeps the order of ``marks``.
        sql = "update claims set claim = ? where thing = ? and claim = ?"
        with self._opened() as db:
            return bool(db.execute(sql, values).rowcount)

    def release(self, thing: str, before: Claim) -> None:
        """Free the thing, unless another process has changed the claim since ``before`` was
        read.
        """
        with self._opened() as db:
            values = (thing, msgspec.json.encode(before))
            db.execute("delete from claims where thing = ? and claim = ?", values)

    def _link(self) -> None:
        """Make the file known where it is looked for without the settings' key. Else the hosts that
        are away would be forgotten with the key.
        """
        link = self._found_at
        # An earlier file of claims at this place stays, as it may have claims.
        if link is None or (link.exists() and not link.is_symlink()):
            return
        target = self._file.absolute()
        if link.is_symlink() and link.readlink() == target:
            return
        link.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)

    def _refuse_if_away(self) -> None:
        """TransientError if the file was there before: its disk may not be mounted. Its claims hold
        all the same, and a new file would give their hosts away.
        """
        for link in (self._file, self._found_at):
            if link is None or not link.is_symlink() or link.exists():
                continue
            if link == self._file or link.readlink() == self._file.absolute():
                text = (
                    f"{link.readlink()} was there and is away: is its disk mounted? If it is lost, "
                    f"switch its hosts off and remove {link}"
                )
                raise TransientError(self._cloud, "NoClaims", text)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk at its end."""
        try:
            if not self._file.exists():
                self._refuse_if_away()
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=self._timeout)) as db:
                # A host is switched on right after this commit. If a power cut lost the row, this
                # host would stay on for ever.
                db.execute("pragma synchronous = full")
                db.execute(_TABLE)  # the process that created the file may have died before this
                with db:
                    yield db
        except (OSError, sqlite3.Error, msgspec.DecodeError) as error:
            place = self._file.parent
            # A unit's ProtectSystem=strict makes each directory that it does not name read-only.
            # sqlite does not tell the reason.
            shut = place.is_dir() and not os.access(place, os.W_OK)
            advice = f"; a unit needs ReadWritePaths={place} and SlurmUser must write there"
            text = f"{self._file} cannot be used: {error}{advice if shut else ''}"
            raise TransientError(self._cloud, "NoClaims", text) from error


def claims_of(settings: CloudSettings, path: str | None, config: Config | None) -> Claims:
    """The claims of a cloud: in the file ``path`` of its settings, else in the state directory.

    ConfigError if there is neither.
    """
    if path is None and config is None:
        raise ConfigError(f"cloud {settings.name!r}: no file for its claims is named")
    default_file = claims_file(settings, config) if config is not None else None
    if path is None and default_file is not None:
        return Claims(settings.name, default_file)
    return Claims(settings.name, Path(path or ""), found_at=default_file)
