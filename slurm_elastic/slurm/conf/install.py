"""``conf install``: put the planned files in place, slurm.conf last, and let slurmctld read them.

Everything is checked before the first change; a failure on the way takes every change back. All
places are kept in ``installed.json`` beside the configuration (owned by root, so that
SlurmUser cannot tell a later uninstall what to remove).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, why
from slurm_elastic.config import Config, SlurmSettings, configfile
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.conf import check, fragment, gresconf, leaving, our_lines, plan, removal
from slurm_elastic.slurm.conf.plan import ConfPlan, PlannedFile
from slurm_elastic.slurm.conf.transaction import Transaction
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.state import statedir

log = logging.getLogger(__name__)


MANIFEST = "installed.json"
BACKUP_SUFFIX = ".before-slurm-elastic"
STATE_DIRECTORIES = ("requests", "requests/bad")
REREAD = (
    "slurm-elasticd and slurm-elastic-local read slurm-elastic.yaml only when they start: restart"
    " those that run (systemctl restart slurm-elasticd)"
)


class Manifest(Struct, frozen=True, kw_only=True):
    """The record of an install: ``files`` by path with the SHA-256 of what was written."""

    slurm_conf: str
    backup: str
    programs_dir: str
    files: dict[str, str]


class InstallResult(Struct, frozen=True, kw_only=True):
    """``changed``: the paths written or removed. ``lines``: what a person should read, in order.
    ``restart_needed``: slurmctld still runs on the old configuration.
    """

    changed: tuple[Path, ...]
    lines: tuple[str, ...]
    restart_needed: bool = False


def install(
    config: Config,
    config_path: Path,
    *,
    restart: str | None = None,
    force: bool = False,
    version: tuple[int, int] | None = None,
    verify: bool = True,
) -> InstallResult:
    """Install or bring up to date. ``restart`` is a command that restarts slurmctld; ``force``
    takes nodes out of an earlier install also while jobs run on, or wait for, them, and while
    their machines are paid.

    Raises ConfigError, with nothing changed, where the check fails; after a failure on the way
    everything is as before. ``verify=False`` leaves out the check's slurmctld (the sandbox, whose
    site is made for it).
    """
    planned = plan.make(config, version=version)
    lines = list(check.check(planned).lines) if verify else []
    _check_state_dir(config)
    changes = planned.changes()
    lines += planned.notices + planned.manual
    gone = _gone(planned)
    if gone:
        # The check's first slurmctld does not start either on a partition with such nodes.
        removal.refuse_mentions(config.slurm, planned.site, planned.version, gone, force=force)
    still = leaving.paid(config, gone, {cloud.name for cloud in config.clouds})
    _leave(planned, gone, still, force=force)
    lines += [*still.lines(), REREAD]
    if not changes:
        with all_or_nothing() as files:
            _ensure_rest(config, config_path, planned, files)
        lines.append("already installed as configured: no change")
        return _have_it_served(planned, restart, lines)
    told, needed = _carry_out(planned, config_path, changes, restart, gone)
    paths = tuple(file.path for file in changes)
    lines += [f"wrote {path}" for path in paths]
    return InstallResult(changed=paths, lines=(*lines, told), restart_needed=needed)


def _have_it_served(planned: ConfPlan, restart: str | None, lines: Sequence[str]) -> InstallResult:
    """Let slurmctld read what is installed, unless it has: an earlier install may have had no
    ``restart``.
    """
    settings = planned.config.slurm
    if not controller.is_up(settings) or _is_served(planned):
        return InstallResult(changed=(), lines=tuple(lines))
    told, needed = tell_slurmctld(planned.config, planned.version, restart)
    not_yet = "slurmctld does not serve yet what is installed"
    added = (not_yet, told) if needed else (told,)
    return InstallResult(changed=(), lines=(*lines, *added), restart_needed=needed)


def _is_served(planned: ConfPlan) -> bool:
    directory = planned.site.directory
    things = leaving.installed(directory)
    # Only what slurmctld reads: the submit filter needs no restart.
    read = (fragment.FILE_NAME, gresconf.FILE_NAME)
    paths = [directory / name for name in read if (directory / name).exists()]
    written_at = max(path.stat().st_mtime for path in paths)
    return controller.serves(planned.config.slurm, things.nodes, things.partitions, written_at)


def _carry_out(
    planned: ConfPlan,
    config_path: Path,
    changes: tuple[PlannedFile, ...],
    restart: str | None,
    gone: leaving.Things,
) -> tuple[str, bool]:
    """All changes or none; what to tell the admin, and whether a restart is still to be made."""
    with all_or_nothing() as files:
        _ensure_rest(planned.config, config_path, planned, files)
        _back_up(planned, files)
        for file in changes:
            files.write(file)
            log.info("installed path=%s bytes=%d", file.path, len(file.content))
        if planned.site.directory / submit_filter.FILTER in {file.path for file in changes}:
            touch_lua(planned.site.directory)
        # Once more, for jobs that came before the new filter was in place.
        _leave(planned, gone, leaving.Paid(), force=True)
        return _apply(planned, changes, restart, files)


@contextlib.contextmanager
def all_or_nothing() -> Iterator[Transaction]:
    try:
        with Transaction() as files:
            yield files
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        raise SlurmElasticError(
            f"{place}{error.strerror or error}; everything is as before"
        ) from error


def manifest_path(config_path: Path) -> Path:
    return config_path.parent / MANIFEST


def read_manifest(config_path: Path) -> Manifest | None:
    """The record of the install, as far as this host remembers."""
    path = manifest_path(config_path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {why(error)}") from error


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _ensure_rest(config: Config, config_path: Path, planned: ConfPlan, files: Transaction) -> None:
    """State directories, the cluster's identity and the manifest."""
    owner = _slurm_user(config)
    files.make_directory(config.state, owner, statedir.DIRECTORY)
    # Of two heads the services make what both share: on their directory root may be nobody.
    for name in STATE_DIRECTORIES if config.ha.directory is None else ():
        files.make_below(config.state, name, owner, statedir.DIRECTORY)
    statedir.close_to_others(config.state, owner[0] if owner else os.geteuid())
    if config.cluster.uuid is None:
        configfile.ensure_uuid(config_path)
    manifest = Manifest(
        slurm_conf=config.slurm.conf,
        backup=config.slurm.conf + BACKUP_SUFFIX,
        programs_dir=config.slurm.programs_dir,
        files={str(f.path): digest(f.content) for f in planned.files if f.mode is not None},
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    file = PlannedFile(path=manifest_path(config_path), content=content, mode=0o644)
    if file.differs():
        files.write(file)


def _slurm_user(config: Config) -> tuple[int, int] | None:
    """Uid and gid for what SlurmUser must own; None when we are not root and own it anyway."""
    if os.geteuid() != 0:
        return None
    try:
        entry = account(config.slurm.user)
    except KeyError as error:
        raise ConfigError(f"slurm.user: this host has no user {config.slurm.user}") from error
    return entry.pw_uid, entry.pw_gid


def _check_state_dir(config: Config) -> None:
    """A directory that exists must be SlurmUser's already: taking /var/lib would be a disaster."""
    owner = _slurm_user(config)
    if owner is None or not config.state.exists():
        return
    found = config.state.stat().st_uid
    if not config.state.is_dir():
        raise ConfigError(f"state_dir: {config.state} is not a directory")
    if found != owner[0]:
        raise ConfigError(
            f"state_dir: {config.state} belongs to uid {found}, not to {config.slurm.user}"
        )


def _gone(planned: ConfPlan) -> leaving.Things:
    """The files that an earlier install had and this one lacks."""
    new = leaving.Things(
        nodes=frozenset(node for pool in planned.pools for node in pool.nodes),
        partitions=frozenset(cloud.partition_name for cloud in planned.config.clouds),
    )
    return leaving.installed(planned.site.directory).without(new)


def _leave(planned: ConfPlan, gone: leaving.Things, still: leaving.Paid, *, force: bool) -> None:
    if gone or still:
        settings = planned.config.slurm
        leaving.leave(settings, gone, up=controller.is_up(settings), still=still, force=force)


def _back_up(planned: ConfPlan, files: Transaction) -> None:
    """Keep slurm.conf as it was before our lines; what is kept from the first install stays."""
    path = Path(planned.config.slurm.conf)
    text = path.read_bytes()
    if not our_lines.has_include(text):
        mode = path.stat().st_mode & 0o7777
        files.write(PlannedFile(path=Path(f"{path}{BACKUP_SUFFIX}"), content=text, mode=mode))


def _apply(
    planned: ConfPlan, changes: tuple[PlannedFile, ...], restart: str | None, files: Transaction
) -> tuple[str, bool]:
    """Let slurmctld know; what to tell the admin, and whether a restart is still to be made."""
    names = {file.path.name for file in changes}
    read = {fragment.FILE_NAME, gresconf.FILE_NAME, gresconf.SITE_FILE}
    if not names & {*read, Path(planned.config.slurm.conf).name}:
        return "slurmctld needs no restart", False
    try:
        return tell_slurmctld(planned.config, planned.version, restart)
    except SlurmElasticError as error:
        raise taken_back(error, files, planned.config.slurm, restart) from error


def taken_back(
    error: SlurmElasticError, files: Transaction, settings: SlurmSettings, restart: str | None
) -> SlurmElasticError:
    """Take every change back and let slurmctld run on the old files again; says how that went."""
    files.roll_back()
    # The filter that was read meanwhile must not outlive its file.
    touch_lua(Path(settings.conf).parent)
    with contextlib.suppress(SlurmElasticError):
        if restart is not None:
            controller.restart(settings, restart)
    answers = "answers" if controller.is_up(settings) else "does not answer"
    return SlurmElasticError(f"{error}; all files are as before, and slurmctld {answers}")


def tell_slurmctld(
    config: Config, version: tuple[int, int], restart: str | None
) -> tuple[str, bool]:
    """Have slurmctld read its files: (sentence, restart needed). SlurmError if it stays down."""
    settings = config.slurm
    if restart is not None:
        controller.restart(settings, restart)
        return f"slurmctld was restarted: {restart}", False
    if not controller.is_up(settings):
        return "slurmctld is not running; it will read this when it starts", False
    if version >= controller.RECONFIGURES_NODES:
        controller.reconfigure(settings)
        return "slurmctld was reconfigured", False
    told = (
        "stop and start slurmctld now (systemctl restart slurmctld; running jobs go on). Do NOT"
        f" run `scontrol reconfigure`: on Slurm {version[0]}.{version[1]:02} it ends slurmctld when"
        " nodes were added or removed"
    )
    return told, True


def touch_lua(directory: Path) -> None:
    """Have Slurm read job_submit.lua again at the next submission."""
    path = directory / submit_filter.PLUGIN_SCRIPT
    if path.exists():
        # Ahead of now and of the last one: Slurm reads the file again where it is newer than its
        # last reading, in whole seconds.
        soon = max(time.time(), path.stat().st_mtime) + 2
        os.utime(path, (soon, soon))
