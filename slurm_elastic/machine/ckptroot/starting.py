"""Begin a job's run: identify the job, take its directory, and decide whether it continues from
images.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from . import caller as callers
from . import criu, dmtcp, job_nodes, job_state, outputs
from .caller import Caller
from .identity import JobKey
from .image_wait import ImageWait, RunEnded
from .job_state import JobState
from .payload import Payload
from .quota import JobQuota
from .run import Run
from .session import Session
from .signals import Relay
from .site import Absent, HelperSite, RequestRefused, read, trust
from .store import JobStore, Meta, Taken, read_script

METHODS = {"criu": criu, "dmtcp": dmtcp}


def allowed(method: str, config: str, *, asks: bool = False) -> tuple[HelperSite, Caller]:
    """Return the configuration and the caller. RequestRefused if this node does not offer the
    method, or not to this caller. The shared directory is not checked yet (``is_there``).
    """
    if method not in METHODS:
        raise RequestRefused(f"unknown method {method!r}")
    site = read(config, checks_directory=False)
    METHODS[method].available(site)
    return site, callers.identify(site, asks=asks)


def attending(config: str) -> tuple[HelperSite, Caller]:
    """Return the configuration and the caller, which is a step on a node of the job other than its
    first. RequestRefused if this node does not offer DMTCP.
    """
    site = read(config)
    dmtcp.available(site)
    return site, callers.identify(site, attends=True)


def begin(
    site: HelperSite, caller: Caller, umask: int, method: str, argv: Sequence[str]
) -> tuple[JobStore, Session]:
    """Start or restore the job. ``argv`` is the script that Slurm started, and its arguments.

    After any exception, such as RunEnded or RequestRefused, nothing was started.
    """
    store, wait = JobStore(site, caller.job), ImageWait(caller.job)
    payload = Payload(
        argv=(str(store.path / "script"), *argv[1:]),
        environment=caller.environment,
        directory=os.getcwd(),
        umask=umask,
        uid=caller.uid,
        gid=caller.gid,
        groups=caller.groups,
    )
    try:
        state = take(site, caller, store, wait)
        wait.finish()
        meta = meta_of(site, caller, store, state, method, argv[0])
        saver = (
            criu.Criu(site, caller, payload)
            if method == "criu"
            else dmtcp.Dmtcp(site, caller, payload, job_nodes.of_job(site, state))
        )
        run = Run(site, caller, state.restarts, store, meta, saver, submitted=state.submitted)
        session = Session(run, Relay(os.getppid()))
        try:
            session.begin(wait)
            wait.finish()
        except Exception as error:
            session.abandon(error)
            raise
    except BaseException:
        # Release the job's lock, because the script may run without us from here on.
        store.close()
        raise
    return store, session


def drive(store: JobStore, session: Session) -> int:
    """Run the session to its end and return the payload's wait status."""
    try:
        status = session.run()
        session.leave(status)
        return status
    finally:
        store.close()


def take(site: HelperSite, caller: Caller, store: JobStore, wait: ImageWait) -> JobState:
    """Take the job's directory. Return slurmctld's state of the job, read after any wait."""
    # A job without images loses nothing by starting at once, so only the others wait for slurmctld.
    wait.patient = may_have_images(store, caller)
    if not is_there(site.directory, wait):
        raise RequestRefused(f"{site.directory} is not there")
    # A mount point is empty while its file server is away. The job would start over there, and
    # save on the node's own disk.
    if wait.patient:
        is_there(site.jobs, wait)
    state = _ask(site, caller, wait, caller.restarts)
    wait.patient = state.restarts > 0
    while True:
        try:
            store.open()
            break
        except (Taken, OSError) as error:
            # A read-only or failing directory still has the job's images. Without the lock we can
            # neither use them nor report to the head, and a new start would lose the job's work.
            is_endless = isinstance(error, OSError) and _has_images(store)
            if not wait.retry_after_pause(str(error), is_endless=is_endless):
                raise
    # During a wait the job may have been cancelled or requeued.
    if wait.waited:
        state = _ask(site, caller, wait, state.restarts)
    store.claim(state.restarts)
    return state


def is_there(directory: Path, wait: ImageWait) -> bool:
    """Return whether the directory is there, after a wait for it. RequestRefused if another user
    than root could change it.
    """
    while True:
        try:
            trust(directory, directory=True)
        except Absent as absent:
            if not wait.retry_after_pause(str(absent)):
                return False
        else:
            return True


def _ask(site: HelperSite, caller: Caller, wait: ImageWait, restarts: int | None) -> JobState:
    """Return slurmctld's state of the job.

    ``restarts``: how often the job was restarted before this run, if known. RunEnded if the run is
    over in Slurm. RequestRefused if slurmctld does not answer.
    """
    while True:
        state = job_state.ask(site, caller.job, look=wait.raise_if_cancelled)
        if state is not None:
            break
        if not wait.retry_after_pause("slurmctld does not answer"):
            raise RequestRefused("slurmctld does not answer")
    # If our node had lost its connection, the job may already run on another node.
    if wait.waited and state.ends(state.restarts if restarts is None else restarts):
        raise RunEnded(f"Slurm says {state.state}, restarted {state.restarts} times")
    check_owner(state, caller)
    return state


def meta_of(
    site: HelperSite, caller: Caller, store: JobStore, state: JobState, method: str, script: str
) -> Meta:
    """Return how the job began, in this run or an earlier one.

    A directory of another script, user or method belongs to an earlier job with the same id: its
    first run was not ours if the node did not boot or has no root part.
    """
    before = store.meta()
    own_script, digest = read_script(caller, script)
    key = JobKey(site.cluster, caller.job, caller.uid, caller.gid, digest)
    # Whatever Slurm says of restarts: a slurmctld that was restored from older state starts the job
    # as if for the first time. The key contains a random token of this submission.
    if before and (before.key(site.cluster), before.method) == (key, method):
        return before
    if before and before.uid != caller.uid:
        # Slurm uses job numbers again after MaxJobId. The images of the earlier job count against
        # its own user.
        JobQuota(site, caller.job, before.uid, store.path).forget()
    label = state.label(caller.job)
    meta = Meta(caller.job, label, caller.uid, caller.gid, method, outputs.of_step(), digest)
    store.begin(meta, own_script)
    return meta


def check_owner(state: JobState, caller: Caller) -> None:
    """RequestRefused if the job does not belong to the user who called sudo."""
    if state.uid != caller.uid:
        raise RequestRefused(
            f"job {caller.job} is of uid {state.uid}, sudo was called by {caller.uid}"
        )


def may_have_images(store: JobStore, caller: Caller) -> bool:
    """Return whether this is a restart, as far as we can tell without slurmctld.

    A user who fakes that only makes his own job wait.
    """
    try:
        return bool(caller.restarts or store.images())
    except OSError:
        return True


def _has_images(store: JobStore) -> bool:
    """Return whether the directory has complete images. True if we cannot know that now."""
    try:
        return bool(store.images())
    except OSError:
        return True


def plain(config: str, umask: int, argv: list[str]) -> Payload:
    """Return the launcher again, which then runs the script without us.

    It runs as the user, in this directory, with the environment that sudo was called with.
    RequestRefused if it cannot be built: the script must never run as another user, or with root's
    environment.
    """
    try:
        sudo = read(config, checks_directory=False).sudo
    except (RequestRefused, OSError, ValueError):
        sudo = HelperSite.sudo
    user, gid = callers.sudo_user(), callers.sudo_number("SUDO_GID")
    return Payload(
        argv=argv,
        environment={**callers.own_environment(sudo), b"SLURM_ELASTIC_PLAIN": b"1"},
        directory=".",  # the present one, even if it was deleted
        umask=umask,
        uid=user.pw_uid,
        gid=gid,
        groups=callers.slurms_groups(user, gid),
    )
