"""``conf uninstall``: slurm.conf as it was, then, when slurmctld no longer needs them, the files.

The files go last, and only when slurmctld has let go of them. The state directory, the ledger and
the UUID of the cluster stay: there may be machines that carry it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.config import Config
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.release import release_of
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import fragment, gresconf, leaving, our_lines, plan, removal
from slurm_elastic.slurm.conf.install import (
    BACKUP_SUFFIX,
    InstallResult,
    Manifest,
    all_or_nothing,
    digest,
    manifest_path,
    read_manifest,
    taken_back,
    tell_slurmctld,
    touch_lua,
)
from slurm_elastic.slurm.conf.plan import PlannedFile
from slurm_elastic.slurm.conf.transaction import Transaction
from slurm_elastic.slurm.hooks import submit_filter

LEFT = ("/etc/default/slurm-elastic", "/var/log/slurm-elastic")
"""Places that an administrator or our programs have made, and no install."""
_INERT = b"""-- slurm-elastic is being uninstalled: jobs are left as they come.
function slurm_elastic_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end
"""


def uninstall(
    config: Config,
    config_path: Path,
    *,
    restart: str | None = None,
    force: bool = False,
    version: tuple[int, int] | None = None,
    verify: bool = True,
) -> InstallResult:
    """Take out what ``install`` put in. ``force``: also while jobs run on, or wait for, our nodes,
    and while machines are paid. ``verify=False`` leaves out the throw-away slurmctld.

    Raises ConfigError, with nothing changed, where jobs, machines, the site's own lua or its own
    slurm.conf still need us.
    """
    version = version or release_of(config.slurm)
    manifest = read_manifest(config_path)
    slurm_conf = Path(config.slurm.conf)
    text = plan.bytes_of(slurm_conf)
    if manifest is None and not our_lines.has_include(text):
        return InstallResult(changed=(), lines=("nothing is installed",))
    _refuse_for_lua(config)
    still = leaving.paid(config, leaving.Things(), frozenset())
    proven: tuple[str, ...] = ()
    if our_lines.has_include(text):
        proven = _proven(config, version, verify=verify, force=force)
        told, needed = _take_out(config, text, version, restart, still, force=force)
    elif still and not force:
        # Jobs may have got machines after the first step, until slurmctld was restarted.
        raise ConfigError(*still.problems(frozenset()))
    else:
        told, needed = "slurm.conf has no line of slurm-elastic", False
    # A slurmctld that still has our PrologSlurmctld would requeue every job if that file were gone.
    if needed or _still_used(config):
        later = "then run `slurm-elastic conf uninstall` again: it removes the remaining files"
        return InstallResult(
            changed=(slurm_conf,), lines=(*proven, *still.lines(), told, later), restart_needed=True
        )
    _leave_gres_conf(slurm_conf.parent)
    removed, kept = _remove_files(config, config_path, manifest)
    leaving.forget_holds(config)
    left = _left_over(config, config_path)
    files = (f"removed {path}" for path in removed)
    lines = (*proven, *still.lines(), told, *files, *kept, *left)
    return InstallResult(changed=(slurm_conf, *removed), lines=lines)


def _proven(
    config: Config, version: tuple[int, int], *, verify: bool, force: bool
) -> tuple[str, ...]:
    """Sentences about what was proven; ConfigError where slurmctld would not start afterwards."""
    site = read_site(config.slurm, ignore=fragment.FILE_NAME)
    departing = leaving.installed(site.directory)
    removal.refuse_mentions(config.slurm, site, version, departing, force=force)
    return tuple(removal.prove(config.slurm, site, force=force)) if verify else ()


def _left_over(config: Config, config_path: Path) -> Iterator[str]:
    """The things that are still there and not for us to remove: for who wants nothing to stay."""
    places = [config_path.parent, config.state, *map(Path, LEFT)]
    units = Path("/etc/systemd/system").glob("slurm-elastic*.service")
    found = [str(path) for path in dict.fromkeys((*places, *units)) if path.exists()]
    if found:
        yield f"left as they are (docs/install.md, Out again): {', '.join(found)}"


def _refuse_for_lua(config: Config) -> None:
    """A site's own job_submit.lua that loads ours would fail, and with it every submission."""
    directory = Path(config.slurm.conf).parent
    text = plan.foreign_lua(directory)
    if text is not None and submit_filter.FILTER in text:
        raise ConfigError(
            f"{directory / submit_filter.PLUGIN_SCRIPT} still loads {submit_filter.FILTER};"
            " take its two lines out first"
        )


def _take_out(
    config: Config,
    text: bytes,
    version: tuple[int, int],
    restart: str | None,
    still: leaving.Paid,
    *,
    force: bool,
) -> tuple[str, bool]:
    """Take our lines out of slurm.conf, and have slurmctld know: what to tell the admin, and
    whether a restart is still to be made.
    """
    settings, path = config.slurm, Path(config.slurm.conf)
    gone = leaving.installed(path.parent)
    with Transaction() as files:
        try:
            # First, so that no job gets our partitions while those that have them are moved.
            _disarm(path.parent, files)
            leaving.leave(settings, gone, up=controller.is_up(settings), still=still, force=force)
            files.write(PlannedFile(path=path, content=our_lines.without_include(text), mode=None))
        except SlurmElasticError:
            files.roll_back()
            touch_lua(path.parent)
            raise
        try:
            return tell_slurmctld(config, version, restart)
        except SlurmElasticError as error:
            raise taken_back(error, files, settings, restart) from error


def _disarm(directory: Path, files: Transaction) -> None:
    """Until slurmctld starts anew, let it give no further job our partitions."""
    path = directory / submit_filter.FILTER
    if path.exists():
        files.write(PlannedFile(path=path, content=_INERT, mode=0o644))
        touch_lua(directory)


def _leave_gres_conf(directory: Path) -> None:
    """Take our lines out of a gres.conf of the site's; one with nothing else is removed with our
    files. Without slurm.conf's nodes they have no effect, so they may go last.
    """
    file = PlannedFile(path=directory / gresconf.SITE_FILE, content=b"", mode=None)
    text = file.current() or b""
    rest = our_lines.without_include(text, gresconf.FILE_NAME)
    if rest and rest != text:
        with all_or_nothing() as files:
            files.write(msgspec.structs.replace(file, content=rest))


def _still_used(config: Config) -> bool:
    settings = config.slurm
    return controller.is_up(settings) and controller.uses(settings, settings.programs_dir)


def _remove_files(
    config: Config, config_path: Path, manifest: Manifest | None
) -> tuple[list[Path], list[str]]:
    """The files that were removed, and a sentence for each that stays, as it was changed."""
    removed: list[Path] = []
    kept: list[str] = []
    for name, written in (manifest.files if manifest else {}).items():
        path = Path(name)
        if not path.exists():
            continue
        if digest(path.read_bytes()) in (written, digest(_INERT)):
            path.unlink()
            removed.append(path)
        else:
            kept.append(f"{path} was changed since the install and stays")
    if manifest is not None:
        with contextlib.suppress(OSError):
            Path(manifest.programs_dir).rmdir()
    kept += _drop_backup(Path(config.slurm.conf))
    manifest_path(config_path).unlink(missing_ok=True)
    kept.append(f"{config.state} and the cluster's UUID stay")
    return removed, kept


def _drop_backup(slurm_conf: Path) -> Iterator[str]:
    backup = Path(f"{slurm_conf}{BACKUP_SUFFIX}")
    if not backup.exists():
        return
    if backup.read_bytes() == slurm_conf.read_bytes():
        backup.unlink()
    else:
        yield f"slurm.conf was edited since the install; {backup} keeps it as it was before"
