"""``conf uninstall``: restores slurm.conf, and removes the files once slurmctld does not need them.

The files go last, and only after slurmctld has stopped using them. The state directory, the ledger
and the UUID of the cluster stay, because machines may still carry that UUID.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config import Config
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.release import release_of
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import fragment, gresconf, leaving, our_lines, plan, removal
from slurm_elastic.slurm.conf.install import (
    BACKUP_SUFFIX,
    InstallManifest,
    InstallResult,
    all_or_nothing,
    digest,
    filter_read_again,
    manifest_path,
    read_manifest,
    taken_back,
    tell_slurmctld,
    touch_lua,
)
from slurm_elastic.slurm.conf.plan import PlannedFile
from slurm_elastic.slurm.conf.transaction import Transaction
from slurm_elastic.slurm.hooks import submit_filter

FOREIGN_PLACES = ("/etc/default/slurm-elastic", "/var/log/slurm-elastic")
"""Places that an administrator or our programs create, but ``install`` does not."""
SERVICES = "slurm-elasticd slurm-elastic-ckptman slurm-elastic-watchdog"
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
    dry_run: bool = False,
) -> InstallResult:
    """Take out the parts that ``install`` put in. ``force``: even while jobs run on our nodes or
    wait for them, and while machines cost money. ``verify=False`` leaves out the throw-away
    slurmctld. ``dry_run``: only check, and report what would be removed.

    Raises ConfigError, with nothing changed, with everything by which jobs, machines, the site's
    own lua or its own slurm.conf still need us.
    """
    version = version or release_of(config.slurm)
    manifest = read_manifest(config_path)
    slurm_conf = Path(config.slurm.conf)
    text = plan.bytes_of(slurm_conf)
    if manifest is None and not our_lines.has_include(text):
        return InstallResult(changed=(), lines=("nothing is installed",))
    costs = leaving.find_costs(config, leaving.NodesAndPartitions(), frozenset())
    problems = [*_installed_elsewhere(config, manifest)]
    problems += _problems(config, text, version, costs, force=force)
    if problems:
        raise ConfigError(*problems)
    proven: tuple[str, ...] = ()
    if our_lines.has_include(text) and verify:
        site = read_site(config.slurm, ignore=fragment.FILE_NAME)
        proven = tuple(removal.prove(config.slurm, site, force=force))
        # The check takes up to minutes, and the text from before would overwrite an edit.
        read_again = read_site(config.slurm, ignore=fragment.FILE_NAME)
        if (plan.bytes_of(slurm_conf), read_again) != (text, site):
            raise ConfigError(plan.EDITED)
    if dry_run:
        return InstallResult(changed=(), lines=(*proven, *_preview(config, text, manifest)))
    if our_lines.has_include(text):
        sentence, restart_needed = _remove_lines(config, text, version, restart, costs, force=force)
    else:
        sentence, restart_needed = "slurm.conf has no line of slurm-elastic", False
    # If slurmctld still calls our PrologSlurmctld and its file is gone, it requeues every job.
    if restart_needed or _may_still_be_used(config, manifest):
        later = "then run `slurm-elastic conf uninstall` again: it removes the remaining files"
        return InstallResult(
            changed=(slurm_conf,),
            lines=(*proven, *costs.lines(), sentence, later),
            restart_needed=True,
        )
    _clean_gres_conf(slurm_conf.parent)
    removed, kept_lines = _remove_files(config, config_path, manifest)
    leaving.forget_holds(config)
    left_lines = _foreign_places(config, config_path)
    files = (f"removed {path}" for path in removed)
    # Machines that --force leaves behind end only while slurm-elasticd runs.
    stop = () if costs else (f"the services may still run: {service_remedies.stop(SERVICES)}",)
    lines = (*proven, *costs.lines(), sentence, *files, *kept_lines, *left_lines, *stop)
    return InstallResult(changed=(slurm_conf, *removed), lines=lines)


def _problems(
    config: Config,
    text: bytes,
    version: tuple[int, int],
    costs: leaving.LeavingCosts,
    *,
    force: bool,
) -> Iterator[str]:
    """Yield all reasons that can be known before a change."""
    settings, directory = config.slurm, Path(config.slurm.conf).parent
    yield from _loading_lua(directory)
    if our_lines.has_include(text):
        site = read_site(settings, ignore=fragment.FILE_NAME)
        departing = leaving.installed(site.directory)
        yield from removal.problem_mentions(settings, site, version, departing, force=force)
        is_up = controller.is_up(settings)
        try:
            yield from leaving.hindrances(settings, departing, up=is_up, costs=costs, force=force)
        except SlurmError as error:
            yield f"the jobs on cloud nodes are not known: {error}"
    elif not force:
        # Jobs may have got machines between the first step and the restart of slurmctld.
        yield from costs.problems(frozenset())


def _installed_elsewhere(config: Config, manifest: InstallManifest | None) -> Iterator[str]:
    """A sentence if another slurm.conf has our lines: slurmctld does not start on it without the
    files beside it.
    """
    place, named = Path(manifest.slurm_conf if manifest else config.slurm.conf), config.slurm.conf
    if not place.exists() or place.samefile(named):
        return
    if our_lines.has_include(place.read_bytes()):
        yield (
            f"slurm.conf: found {named}, expected {place}: the install put its lines there, and"
            " they are still in it; set slurm.conf to it, then repeat the uninstall"
        )


def _preview(config: Config, text: bytes, manifest: InstallManifest | None) -> Iterator[str]:
    if our_lines.has_include(text):
        yield f"would take slurm-elastic's two lines out of {config.slurm.conf}"
    for name, written in (manifest.files if manifest else {}).items():
        if Path(name).exists() and _is_as_written(Path(name), written):
            yield f"would remove {name}"
    yield "nothing is changed, because of --dry-run"


def _foreign_places(config: Config, config_path: Path) -> Iterator[str]:
    """A sentence about places that we must not remove, for an admin who wants nothing to stay."""
    places = [config_path.parent, config.state, *map(Path, FOREIGN_PLACES)]
    units = Path("/etc/systemd/system").glob("slurm-elastic*.service")
    existing = [str(path) for path in dict.fromkeys((*places, *units)) if path.exists()]
    if existing:
        yield (
            f"left as they are, the cluster's UUID with them ({page('install')}, Out again):"
            f" {', '.join(existing)}"
        )


def _loading_lua(directory: Path) -> Iterator[str]:
    """A sentence if a site's own job_submit.lua loads our filter: once the filter is gone, every
    submission would fail.
    """
    text = plan.foreign_lua(directory)
    if text is not None and submit_filter.FILTER in text:
        yield (
            f"{directory / submit_filter.PLUGIN_SCRIPT} still loads {submit_filter.FILTER};"
            " take its two lines out first"
        )


def _remove_lines(
    config: Config,
    text: bytes,
    version: tuple[int, int],
    restart: str | None,
    costs: leaving.LeavingCosts,
    *,
    force: bool,
) -> tuple[str, bool]:
    """Take our lines out of slurm.conf and let slurmctld read it. Return a sentence for the admin,
    and whether a restart is still needed.
    """
    settings, path = config.slurm, Path(config.slurm.conf)
    departing = leaving.installed(path.parent)
    with leaving.lists_restored_on_failure(settings) as lists, all_or_nothing() as files:
        with filter_read_again(path.parent, files):
            # First, so that no new job gets our partitions while they are taken out of old jobs.
            _disarm(path.parent, files)
            leaving.prepare_jobs(
                settings,
                departing,
                lists,
                up=controller.is_up(settings),
                costs=costs,
                force=force,
            )
            files.write(PlannedFile(path=path, content=our_lines.without_include(text), mode=None))
        try:
            return tell_slurmctld(config, version, restart)
        except SlurmElasticError as error:
            raise taken_back(error, files, config, version, restart) from error


def _disarm(directory: Path, files: Transaction) -> None:
    """Make the filter do nothing, so that no further job gets our partitions before the restart."""
    path = directory / submit_filter.FILTER
    if path.exists():
        files.write(PlannedFile(path=path, content=_INERT, mode=0o644))
        touch_lua(directory)


def _clean_gres_conf(directory: Path) -> None:
    """Take our lines out of the site's gres.conf. If the file has no other lines, it is removed
    with our files. Our lines have no effect without our nodes in slurm.conf, so they may go last.
    """
    file = PlannedFile(path=directory / gresconf.SITE_FILE, content=b"", mode=None)
    text = file.current() or b""
    other_lines = our_lines.without_include(text, gresconf.FILE_NAME)
    if other_lines and other_lines != text:
        with all_or_nothing() as files:
            files.write(msgspec.structs.replace(file, content=other_lines))


def _may_still_be_used(config: Config, manifest: InstallManifest | None) -> bool:
    """Whether slurmctld calls our programs, or runs here and does not say."""
    settings = config.slurm
    if not controller.is_up(settings):
        return controller.may_run_here(settings)
    # slurmctld may not have been restarted since an install with another ``programs_dir``.
    files = map(Path, manifest.files if manifest else ())
    earlier = {str(path.parent) for path in files if path.name in plan.PROGRAMS}
    return any(controller.uses(settings, place) for place in {settings.programs_dir, *earlier})


def _remove_files(
    config: Config, config_path: Path, manifest: InstallManifest | None
) -> tuple[list[Path], list[str]]:
    """Remove our files. Return their paths, and a sentence for each file that stays."""
    removed: list[Path] = []
    kept_lines: list[str] = []
    for name, written in (manifest.files if manifest else {}).items():
        path = Path(name)
        if not path.exists():
            continue
        if _is_as_written(path, written):
            path.unlink()
            removed.append(path)
        else:
            kept_lines.append(f"{path} was changed since the install and stays")
    if manifest is not None:
        # Files of other people keep a directory. An earlier install may have had another one.
        for directory in {Path(manifest.programs_dir), *(path.parent for path in removed)}:
            with contextlib.suppress(OSError):
                directory.rmdir()
    kept_lines += _drop_backup(Path(config.slurm.conf))
    # Last: if a removal fails, the next run must still know which files are ours.
    manifest_path(config_path).unlink(missing_ok=True)
    return removed, kept_lines


def _is_as_written(path: Path, written: str) -> bool:
    # The filter may be the inert one of `_disarm`.
    return digest(path.read_bytes()) in (written, digest(_INERT))


def _drop_backup(slurm_conf: Path) -> Iterator[str]:
    backup = Path(f"{slurm_conf}{BACKUP_SUFFIX}")
    if not backup.exists():
        return
    if backup.read_bytes() == slurm_conf.read_bytes():
        backup.unlink()
    else:
        yield f"slurm.conf was edited since the install; {backup} keeps it as it was before"
