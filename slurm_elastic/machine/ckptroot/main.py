"""The commands: the launcher calls ``run`` and ``ready`` by sudo, root calls ``sweep``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from . import attendant, job_state, log, private_tmp, starting
from .image_wait import RunEnded
from .payload import become
from .session import finish
from .signals import block
from .site import CONFIG, Absent, RequestRefused, read, trust
from .store import JobStore
from .sweep import sweep
from .tempfiles import PLACES

USAGE = """\
usage: slurm-elastic-ckpt-root ready METHOD               can this job be run so, on this node?
       slurm-elastic-ckpt-root run METHOD UMASK SCRIPT [ARGUMENT...]
       slurm-elastic-ckpt-root attend                     serve the first node of a job of several
       slurm-elastic-ckpt-root sweep                      remove what ended jobs left behind
"""


def main(argv: Sequence[str] | None = None, config: str = CONFIG) -> int:
    """Run the command and return the exit code. For ``run`` it is the exit code of the job's
    script.
    """
    log.begin()
    try:
        return _command(list(sys.argv[1:] if argv is None else argv), config)
    except (RequestRefused, OSError) as refusal:
        log.write(log.WARNING, f"refused: {refusal}")
        sys.stderr.write(f"slurm-elastic: {refusal}\n")
        return 1


def _command(arguments: list[str], config: str) -> int:
    if os.geteuid() != 0:
        raise RequestRefused("this is for root: start it by sudo")
    match arguments:
        case ["ready", method]:
            _ready(method, config)
            return 0
        case ["run", method, umask, script, *rest]:
            return _run(config, method, _octal(umask), [script, *rest])
        case ["attend"]:
            return attendant.attend(*starting.attending(config))
        case ["sweep"]:
            site = read(config)
            for line in sweep(site):
                sys.stdout.write(line + "\n")
            for place in PLACES:
                private_tmp.sweep(place)
            return 0
    sys.stderr.write(USAGE)
    return 2


def _octal(text: str) -> int:
    try:
        value = int(text, 8)
    except ValueError as error:
        raise RequestRefused(f"umask {text!r} is no octal number") from error
    if not 0 <= value <= 0o777:
        raise RequestRefused(f"umask {text!r} is not between 0 and 777")
    return value


def _ready(method: str, config: str) -> None:
    """RequestRefused if the script had better run without us.

    If only the shared directory or slurmctld's answer is missing and the job may have images,
    return: ``run`` waits for it.
    """
    site, caller = starting.allowed(method, config, asks=True)
    try:
        trust(site.directory, directory=True)
    except Absent:
        if not caller.restarts:
            raise
        return
    state = job_state.ask(site, caller.job)
    if state is not None:
        starting.check_owner(state, caller)
    elif not starting.may_have_images(JobStore(site, caller.job), caller):
        raise RequestRefused("slurmctld does not answer")


def _run(config: str, method: str, umask: int, argv: list[str]) -> int:
    """Drive the job's run. If an error prevents that, run the job without checkpoints."""
    os.umask(0o027)
    # Before the first fork: a signal to the whole step may then kill the payload, but not us.
    block()
    # Prepare the run without checkpoints first: no later error may prevent it.
    plain = starting.plain(config, umask, argv)
    try:
        site, caller = starting.allowed(method, config)
        store, session = starting.begin(site, caller, umask, method, argv)
    except RunEnded as end:
        log.write(log.NOTICE, f"a job's run is over before it began: {end}")
        return finish(int(signal.SIGTERM))
    except Exception as refusal:  # noqa: BLE001 - nothing was started yet
        line = f"a job runs without checkpoints: {str(refusal) or type(refusal).__name__}"
        log.write(log.WARNING, line)
        become(plain)
    return finish(starting.drive(store, session))
