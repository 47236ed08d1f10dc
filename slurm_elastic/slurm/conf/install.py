"""``conf install``: writes the planned files, slurm.conf last, and lets slurmctld read them.

All checks come before the first change, and a failure on the way takes every change back. All paths
are recorded in ``installed.json`` beside the configuration. Root owns it, so that SlurmUser cannot
choose what a later uninstall removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError, reason_of
from slurm_elastic.base.processes import service_remedies
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


def _next_step(config_path: Path) -> str:
    """Return what to do with the services after an install."""
    if not manifest_path(config_path).exists():
        services = service_remedies.enable(
            "slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog"
        )
        return (
            f"Start the services next: {services}; slurm-elastic-hub, too, with join.network, and"
            " slurm-elastic-copier with data: copy"
        )
    return (
        "slurm-elasticd, slurm-elastic-ckptman, slurm-elastic-local, slurm-elastic-hub and"
        " slurm-elastic-copier read slurm-elastic.yaml only when they start. Restart the running"
        " ones: slurm-elastic doctor names them, and"
        f" {service_remedies.restart('slurm-elasticd')}"
    )


class InstallManifest(Struct, frozen=True, kw_only=True):
    """The record of an install. ``files``: by path, the SHA-256 of the written content."""

    slurm_conf: str
    backup: str
    programs_dir: str
    files: dict[str, str]


class InstallResult(Struct, frozen=True, kw_only=True):
    """``changed``: the paths written or removed. ``lines``: sentences for the admin, in order.
    ``restart_needed``: slurmctld still runs with the old configuration.
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
    """Install, or update an installation. ``restart`` is a command that restarts slurmctld.

    ``force`` removes nodes of an earlier install even while jobs run on them or wait for them, and
    while their machines cost money. It also installs if slurmctld runs and a throw-away slurmctld
    does not start on the site's own files. ``verify=False`` leaves out the check's slurmctld, as
    the sandbox does, whose site is made for it.

    Raises ConfigError, with nothing changed, if a check fails. After a later failure everything is
    as before.
    """
    planned = plan.make(config, version=version)
    lines = _proven_lines(planned, force=force) if verify else []
    plan.refuse_edited(planned)
    _check_state_dir(config)
    controller.require_own_conf(config.slurm)
    changes = planned.changes()
    lines += planned.notices + planned.manual
    changed = leaving.changed_in_running(config.slurm, planned.pools)
    lines += map(str, changed)
    departing = _departing(planned, changed)
    if departing.nodes or departing.partitions:
        # The check's first slurmctld fails, too, on a partition with nodes that it does not know.
        removal.refuse_mentions(config.slurm, planned.site, planned.version, departing, force=force)
    costs = leaving.find_costs(config, departing, {cloud.name for cloud in config.clouds})
    # Before any file changes: a pending job that lists a partition which goes would end with
    # NODE_FAIL at slurmctld's next start.
    with leaving.lists_restored_on_failure(config.slurm) as lists:
        _prepare_jobs(planned, departing, costs, lists, force=force)
        lines += [*costs.lines(), _next_step(config_path)]
        if not changes:
            with all_or_nothing() as files:
                _write_state(config, config_path, planned, files)
            lines.append("already installed as configured: no change")
            return _ensure_served(planned, restart, lines)
        sentence, restart_needed = _make_changes(
            planned, config_path, changes, restart, departing, lists
        )
    paths = tuple(file.path for file in changes)
    lines += [f"wrote {path}" for path in paths]
    return InstallResult(changed=paths, lines=(*lines, sentence), restart_needed=restart_needed)


def _proven_lines(planned: ConfPlan, *, force: bool) -> list[str]:
    """What ``conf check`` proves. ConfigError if it refuses the plan, or a restart."""
    report = check.check(planned)
    check.require_restartable(planned.config.slurm, report.failure, force=force)
    return list(report.lines)


def _ensure_served(planned: ConfPlan, restart: str | None, lines: Sequence[str]) -> InstallResult:
    """Let slurmctld read the installed files if it has not, because an earlier install may have had
    no ``restart``.
    """
    try:
        if not controller.is_up(planned.config.slurm) or _is_served(planned):
            return InstallResult(changed=(), lines=tuple(lines))
    except SlurmError as error:
        # A controller that stands by answers pings and nothing else.
        unknown = f"slurmctld does not say whether it serves what is installed: {error}"
        return InstallResult(changed=(), lines=(*lines, unknown))
    sentence, restart_needed = tell_slurmctld(planned.config, planned.version, restart)
    not_yet = "slurmctld does not serve yet what is installed"
    new_lines = (not_yet, sentence) if restart_needed else (sentence,)
    return InstallResult(changed=(), lines=(*lines, *new_lines), restart_needed=restart_needed)


def _is_served(planned: ConfPlan) -> bool:
    directory = planned.site.directory
    things = leaving.installed(directory)
    # Only files that slurmctld reads at its start. The submit filter needs no restart.
    read_files = (fragment.FILE_NAME, gresconf.FILE_NAME)
    paths = [directory / name for name in read_files if (directory / name).exists()]
    written_at = max(path.stat().st_mtime for path in paths)
    return controller.serves(planned.config.slurm, things.nodes, things.partitions, written_at)


def _make_changes(
    planned: ConfPlan,
    config_path: Path,
    changes: tuple[PlannedFile, ...],
    restart: str | None,
    departing: leaving.NodesAndPartitions,
    lists: leaving.JobLists,
) -> tuple[str, bool]:
    """Make all changes or none. Return a sentence for the admin, and whether it needs a restart."""
    with all_or_nothing() as files:
        _write_state(planned.config, config_path, planned, files)
        _back_up(planned, files)
        for file in changes:
            files.write(file)
            log.info("installed path=%s bytes=%d", file.path, len(file.content))
        if planned.site.directory / submit_filter.FILTER in {file.path for file in changes}:
            touch_lua(planned.site.directory)
        with filter_read_again(planned.site.directory, files):
            # A second time, for jobs that were submitted before the new filter was in place.
            _prepare_jobs(planned, departing, leaving.LeavingCosts(), lists, force=True)
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


@contextlib.contextmanager
def filter_read_again(directory: Path, files: Transaction) -> Iterator[None]:
    """If the block fails, take ``files`` back and let slurmctld read the restored filter.
    slurmctld may have loaded the filter that was in place in between.
    """
    try:
        yield
    except BaseException:
        files.roll_back()
        # A full or read-only disk must not hide the first error.
        with contextlib.suppress(OSError):
            touch_lua(directory)
        raise


def manifest_path(config_path: Path) -> Path:
    return config_path.parent / MANIFEST


def read_manifest(config_path: Path) -> InstallManifest | None:
    """The record of the install, or None if this host has none."""
    path = manifest_path(config_path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=InstallManifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {reason_of(error)}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: is no record of an install: {error}; `slurm-elastic conf install` writes it"
            " again"
        ) from error


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _write_state(config: Config, config_path: Path, planned: ConfPlan, files: Transaction) -> None:
    """Write the state directories, the cluster's id and the manifest."""
    owner = _slurm_user(config)
    files.make_directory(config.state, owner, statedir.DIRECTORY)
    # With two heads the services make the shared ones: root may be nobody there (root_squash).
    for name in STATE_DIRECTORIES if config.ha.directory is None else ():
        files.make_below(config.state, name, owner, statedir.DIRECTORY)
    # Also an existing directory, which `make_directory` leaves as it is.
    statedir.close_to_others(config.state, owner[0] if owner else os.geteuid())
    if config.cluster.uuid is None:
        configfile.ensure_uuid(config_path)
    copy = _installed_copy(config_path)
    manifest = InstallManifest(
        slurm_conf=config.slurm.conf,
        backup=config.slurm.conf + BACKUP_SUFFIX,
        programs_dir=config.slurm.programs_dir,
        files={
            **_earlier_files(config, config_path),
            **{
                str(f.path): digest(f.content) for f in (*planned.files, copy) if f.mode is not None
            },
        },
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    record = PlannedFile(path=manifest_path(config_path), content=content, mode=0o644)
    for file in (copy, record):
        if file.differs():
            files.write(file)


def _installed_copy(config_path: Path) -> PlannedFile:
    """The copy of the configuration that serves screens while the file itself is wrong. Only the
    readers of the file may read the copy.
    """
    return PlannedFile(
        path=config_path.parent / configfile.INSTALLED_COPY,
        content=config_path.read_bytes(),
        mode=stat.S_IMODE(config_path.stat().st_mode) & 0o644,
    )


def _earlier_files(config: Config, config_path: Path) -> dict[str, str]:
    """The files of earlier installs, for the uninstall: slurmctld may still call programs of an
    earlier ``programs_dir``. Files beside another slurm.conf stay with that.
    """
    manifest = None
    with contextlib.suppress(ConfigError):  # a damaged record is written again
        manifest = read_manifest(config_path)
    if manifest is None:
        return {}
    is_same, directory = manifest.slurm_conf == config.slurm.conf, Path(manifest.slurm_conf).parent
    return {
        path: written
        for path, written in manifest.files.items()
        if is_same or Path(path).parent != directory
    }


def _slurm_user(config: Config) -> tuple[int, int] | None:
    """Uid and gid for SlurmUser's files. None if we are not root, so that files are ours anyway."""
    if os.geteuid() != 0:
        return None
    try:
        entry = account(config.slurm.user)
    except KeyError as error:
        raise ConfigError(f"slurm.user: this host has no user {config.slurm.user}") from error
    return entry.pw_uid, entry.pw_gid


def _check_state_dir(config: Config) -> None:
    """Check that an existing directory belongs to SlurmUser: we must never take over one such as
    /var/lib.
    """
    owner = _slurm_user(config)
    if owner is None or not config.state.exists():
        return
    owner_uid = config.state.stat().st_uid
    if not config.state.is_dir():
        raise ConfigError(f"state_dir: {config.state} is not a directory")
    if owner_uid != owner[0]:
        raise ConfigError(
            f"state_dir: {config.state} belongs to uid {owner_uid}, not to {config.slurm.user}"
        )


def _departing(
    planned: ConfPlan, changed: Sequence[leaving.ChangedNodes]
) -> leaving.NodesAndPartitions:
    """The nodes and partitions of earlier installs that the planned install does not have, and the
    nodes that it changes. ``changed``: as the running slurmctld has them.
    """
    resized, other_gres = (
        frozenset(node for change in changed if change.key == key for node in change.nodes)
        for key in (leaving.CPUS, leaving.GRES)
    )
    new = leaving.NodesAndPartitions(
        nodes=frozenset(node for pool in planned.pools for node in pool.nodes),
        partitions=frozenset(cloud.partition_name for cloud in planned.config.clouds),
    )
    site, directory, pools = planned.site, planned.site.directory, planned.pools
    of_site = leaving.NodesAndPartitions(
        nodes=frozenset(site.node_names),
        partitions=frozenset(name for record in site.partitions for name in record.names),
    )
    departing = leaving.installed(directory).without(new)
    return replace(
        departing.joined(leaving.running(planned.config.slurm).without(new.joined(of_site))),
        resized=leaving.resized(directory, pools) | resized,
        other_gres=leaving.with_other_gres(directory, pools) | other_gres,
    )


def _prepare_jobs(
    planned: ConfPlan,
    departing: leaving.NodesAndPartitions,
    costs: leaving.LeavingCosts,
    lists: leaving.JobLists,
    *,
    force: bool,
) -> None:
    if departing or costs:
        settings = planned.config.slurm
        leaving.prepare_jobs(
            settings, departing, lists, up=controller.is_up(settings), costs=costs, force=force
        )


def _back_up(planned: ConfPlan, files: Transaction) -> None:
    """Keep slurm.conf as it was before our lines. A backup of an earlier install stays."""
    path = Path(planned.config.slurm.conf)
    text = path.read_bytes()
    if not our_lines.has_include(text):
        mode = path.stat().st_mode & 0o7777
        files.write(PlannedFile(path=Path(f"{path}{BACKUP_SUFFIX}"), content=text, mode=mode))


def _apply(
    planned: ConfPlan, changes: tuple[PlannedFile, ...], restart: str | None, files: Transaction
) -> tuple[str, bool]:
    """Let slurmctld read the files. Return a sentence for the admin, and whether a restart is
    needed.
    """
    names = {file.path.name for file in changes}
    read_files = {fragment.FILE_NAME, gresconf.FILE_NAME, gresconf.SITE_FILE}
    if not names & {*read_files, Path(planned.config.slurm.conf).name}:
        return "slurmctld needs no restart", False
    try:
        return tell_slurmctld(planned.config, planned.version, restart)
    except SlurmElasticError as error:
        raise taken_back(error, files, planned.config, planned.version, restart) from error


def taken_back(
    error: SlurmElasticError,
    files: Transaction,
    config: Config,
    version: tuple[int, int],
    restart: str | None,
) -> SlurmElasticError:
    """Take every change back and let slurmctld run on the old files. Return the error to raise.

    The programs stay if slurmctld may still call them: without its PrologSlurmctld it requeues
    every job.
    """
    settings, programs = config.slurm, Path(config.slurm.programs_dir)
    files.roll_back(except_in=programs)
    # slurmctld may have read the new filter already, so it must read the old one again.
    touch_lua(Path(settings.conf).parent)
    # `scontrol reconfigure` may have failed after slurmctld had read the new files.
    is_read = False
    # The first error is the one to report; the last words say whether slurmctld answers.
    with contextlib.suppress(SlurmElasticError):
        _, restart_needed = tell_slurmctld(config, version, restart)
        is_read = not restart_needed and controller.is_up(settings)
    answers = "answers" if controller.is_up(settings) else "does not answer"
    if files.has_changes and not is_read and _may_use(settings, restart):
        files.keep_changes()
        return SlurmElasticError(
            f"{error}; slurmctld {answers}; all files are as before, but {programs} stays, because"
            " slurmctld may still call its programs; restart slurmctld, then install again or"
            " remove the directory"
        )
    files.roll_back()
    return SlurmElasticError(f"{error}; all files are as before, and slurmctld {answers}")


def _may_use(settings: SlurmSettings, restart: str | None) -> bool:
    """Whether the running slurmctld calls our programs, or may call them without an answer."""
    try:
        return controller.uses(settings, settings.programs_dir)
    except SlurmError:
        # A slurmctld that does not answer after a restart has started on the old files, if at all.
        return restart is None


def tell_slurmctld(
    config: Config, version: tuple[int, int], restart: str | None
) -> tuple[str, bool]:
    """Let slurmctld read its files. Return a sentence, and whether a restart is still needed.
    SlurmError if slurmctld does not come up.
    """
    settings = config.slurm
    if restart is not None:
        controller.restart(settings, restart)
        return f"slurmctld was restarted: {restart}", False
    if not controller.is_up(settings):
        if controller.may_run_here(settings):
            return f"slurmctld does not answer now: {_restart_by_hand(version)}", True
        return "slurmctld is not running; it will read this when it starts", False
    if version >= controller.RECONFIGURES_NODES:
        controller.reconfigure(settings)
        return "slurmctld was reconfigured", False
    return _restart_by_hand(version), True


def _restart_by_hand(version: tuple[int, int]) -> str:
    """The sentence that lets an administrator restart slurmctld."""
    restart = (
        f"stop and start slurmctld now ({service_remedies.restart('slurmctld')}; running jobs"
        " continue)"
    )
    if version >= controller.RECONFIGURES_NODES:
        return restart
    return (
        f"{restart}. Do NOT"
        f" run `scontrol reconfigure`: on Slurm {version[0]}.{version[1]:02} it ends slurmctld when"
        " nodes were added or removed"
    )


def touch_lua(directory: Path) -> None:
    """Make Slurm read job_submit.lua again at the next submission."""
    path = directory / submit_filter.PLUGIN_SCRIPT
    if path.exists():
        # In the future, because Slurm compares whole seconds: it reads the file again only if the
        # file is newer than its last reading.
        soon = max(time.time(), path.stat().st_mtime) + 2
        os.utime(path, (soon, soon))
