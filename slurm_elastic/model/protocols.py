"""The protocols between packages. The docstrings are the contracts; each has contract tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    LaunchSpec,
    NodeRequest,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.slurm import JobMail, Reservation, SlurmJob, SlurmNode, SuspendExclusions

RankingKey = Callable[[NodeRequest, Offer], float]
"""Smaller ranks first; a ranking is a list of names of such keys, compared as a tuple."""


class Provider(Protocol):
    """One cloud: an account in a region. Every call may raise the five ProviderErrors.

    No call blocks for longer than the provider's time-out. Exceptions of the SDK that the provider
    does not know pass through unchanged. A provider lists and changes only machines with this
    cluster's UUID in their tags.
    """

    name: str

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The cloud's present offers for ``pool``: every allowed type x zone x market.

        Combinations that the cloud does not have (unknown type, no price) are left out, not
        guessed.
        """
        ...

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Start machines for ``spec.nodes`` in one bulk call. Fewer machines are a partial launch,
        for any of the nodes. The answer has the order of ``spec.nodes``.

        Idempotent by ``spec.generation``: a repeated call with the same spec returns the machines
        of the first call, also if the first answer was lost. The create call itself sets the
        machines' tags (cluster name, cluster UUID, pool, node or node list, generation, jobs).

        After an error no machine was started, except after TransientError: then the machines may
        exist; repeat the call with the same spec, or look in ``instances``. On the repeated call
        CapacityError and QuotaError mean that there are no machines; other errors prove nothing.
        UnsettledError: the machines may exist without being listed; repeat the call later.
        """
        ...

    def instances(self) -> Sequence[Instance]:
        """List all machines with this cluster's UUID except TERMINATED ones. The list is complete,
        and listing changes nothing in the cloud: people and other services list, too.

        A new machine may be missing for minutes (eventual consistency). A machine that the cloud
        took may be listed once as TERMINATED.
        """
        ...

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete exactly these machines, in bulk. The answer has each id. An error if a machine
        could neither be ended nor looked up.
        """
        ...

    def notices(self) -> Sequence[Notice]:
        """The present interruption and rebalance warnings; empty if the cloud gives none."""
        ...

    def check(self) -> None:
        """Prove with one cheap read-only call that the credentials work."""
        ...


@runtime_checkable
class Tidying(Protocol):
    """A provider whose machines need housekeeping: it ends failed machines and removes the remains
    of ended machines.
    """

    def tidy(self) -> Sequence[Instance]:
        """Do the housekeeping, and return the list of ``instances``. A machine that this ended,
        because it would never come up, is listed once as TERMINATED. Only the acting slurm-elasticd
        calls this, once in each round, and not while another head works for the cluster.
        """
        ...


def list_tidily(provider: Provider) -> Sequence[Instance]:
    """The list of ``instances``, after the housekeeping that the provider may need."""
    return provider.tidy() if isinstance(provider, Tidying) else provider.instances()


@runtime_checkable
class Reporting(Protocol):
    """A provider that may have found something that a person must look at."""

    @property
    def trouble(self) -> str:
        """The finding of the last housekeeping, as a sentence for ``status`` and ``doctor``; "" if
        there is none. It calls no cloud.
        """
        ...


@runtime_checkable
class Limited(Protocol):
    """A provider whose cloud limits how many machines an account starts at a time."""

    def startable(self) -> int | None:
        """How many machines the cloud would start now. More must wait. None: there is no limit."""
        ...


@runtime_checkable
class Chooser(Protocol):
    """A provider that can choose among several offers in one launch (``alternatives``)."""

    alternatives: int
    """The maximum number of alternatives in a launch; 0: none."""

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """The errors of the offers that gave too few machines in that launch, by ``Offer.key``.
        Only known for the latest launches.
        """
        ...


@runtime_checkable
class Stops(Protocol):
    """A provider that can stop machines and start them again with their disk, name and tags. Every
    call may raise the five ProviderErrors.
    """

    def recipe(self, pool: Pool) -> str:
        """A word for the recipe (image, user data, settings) of a new machine of the pool. A
        machine with another word was made differently. Never empty.
        """
        ...

    def stop(self, ids: Sequence[str]) -> Collection[str]:
        """Stop exactly these machines. None of them may be a spot machine. A machine that is
        stopped or stopping is no error. ``instances`` lists them as STOPPING, then as STOPPED,
        until they are started or ended. After an error some machines may have stopped. Returns the
        ids that were left alone, because these machines are gone or not ours.
        """
        ...

    def start(self, instance: str) -> None:
        """Start a stopped machine. A machine that runs or is starting is no error.

        After an error the machine is still stopped, except after TransientError: then it may run;
        repeat the call, or look in ``instances``. InstanceNotFound: the machine is gone.
        """
        ...


@runtime_checkable
class LooksUp(Protocol):
    """A provider whose cloud can be asked for machines by their ids, whatever tags they have. A
    list that lacks a machine proves nothing about it.
    """

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """The machines among these that the cloud does not have, or has as ended. Changes nothing.
        It may raise any ProviderError.
        """
        ...


@runtime_checkable
class Console(Protocol):
    """A provider that shows the console output of its machines."""

    def console(self, instance: str) -> str:
        """The console output of a machine since its boot; "" if there is none yet. It may raise any
        ProviderError.
        """
        ...


@runtime_checkable
class Expiring(Protocol):
    """A provider that knows when its credentials expire."""

    def credentials_end(self) -> float | None:
        """When the credentials expire (Unix time). None: unknown, or they are renewed
        automatically. Makes at most one cheap call. It may raise any ProviderError.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A provider that can examine its cloud's state for ``doctor``."""

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Examine the image, network, quota, clock and the like, without any change. A thing that
        cannot be read is a finding, too. Raises no ProviderError.
        """
        ...


NO_NODE = "Slurm lists no node at all (does PrivateData=nodes hide them?)"
"""The error for an empty list of nodes. Such a list proves nothing about any machine."""


class Slurm(Protocol):
    """slurmctld, as far as we read and change it. Every call may raise SlurmError. It does so if
    slurmctld is stopped, is starting or hangs, so an empty answer never means that.
    """

    def version(self) -> tuple[int, int]:
        """Slurm's version, as (22, 5)."""
        ...

    def slurmd_timeout(self) -> float:
        """SlurmdTimeout (s), read at most some minutes ago. If it is 0, slurmctld does not ping
        nodes that are up.
        """
        ...

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes, or the nodes ``names``, by name, including powered-down ones. One command."""
        ...

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        """The jobs that wait, run or complete. ``ended``: include the ended jobs that Slurm still
        lists. One command.
        """
        ...

    def job(self, number: int) -> SlurmJob | None:
        """The job, also after its end while Slurm lists it. None if Slurm does not list it."""
        ...

    def owners(self, jobs: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """By job: its ``user`` and ``account`` if set. Contains only the jobs that Slurm knows. It
        costs less than a list of all jobs.
        """
        ...

    def update_nodes(
        self,
        names: Sequence[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """``scontrol update nodename=... state=... reason=...`` batched by compressed hostlist.

        ``address`` becomes the NodeAddr of each node before the state changes.
        """
        ...

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """``scontrol update nodename=... weight=...``, one command per weight if they fit."""
        ...

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Set the NodeAddr of nodes, by node, in as few commands as possible."""
        ...

    def requeue(self, job: int) -> None:
        """``scontrol requeue``; the job's restart count grows by one."""
        ...

    def start_now(self, job: int) -> None:
        """Remove the BeginTime hold that a requeue puts on a PENDING job."""
        ...

    def change_pending(
        self,
        jobs: Sequence[int],
        *,
        partitions: Sequence[str] = (),
        begin_in: float | None = None,
    ) -> None:
        """Change the partitions of PENDING jobs, or their begin time to ``begin_in`` seconds from
        now (0: now). A job that is no longer pending is no error.
        """
        ...

    def set_requeue(self, job: int, *, requeue: bool) -> None:
        """``scontrol update jobid=... requeue=0|1``: whether Slurm may requeue the job."""
        ...

    def signal(self, job: int, name: str, *, full: bool) -> None:
        """``scancel --signal``: to the batch script alone, or with ``full`` to its children too."""
        ...

    def batch_script(self, job: int) -> str:
        """``scontrol write batch_script``: the text of the job's script, "" if it has none."""
        ...

    def dependencies(self) -> Mapping[int, str]:
        """What each waiting job depends on, in Slurm's words; without independent jobs."""
        ...

    def any_nodes(self, job: int) -> None:
        """Remove the named nodes (``-w``) of a PENDING job, so that it may start on other nodes."""
        ...

    def excluded_nodes(self, job: int) -> tuple[str, ...]:
        """The nodes that a job excludes. 22.05's list of jobs lacks them."""
        ...

    def exclude_nodes(self, job: int, nodes: Sequence[str]) -> None:
        """Replace the excluded nodes of a PENDING job by these."""
        ...

    def hold(self, job: int) -> None:
        """``scontrol uhold``: a PENDING job does not start until it is released."""
        ...

    def release(self, job: int) -> None:
        """``scontrol release``: end the hold (priority 0) of a PENDING job."""
        ...

    def suspend(self, job: int) -> None:
        """``scontrol suspend``: stop all processes of a RUNNING job, including its launcher. It
        takes effect some seconds later. A resume before that may leave some processes stopped.
        """
        ...

    def resume(self, job: int) -> None:
        """``scontrol resume``: the processes of a SUSPENDED job continue at once."""
        ...

    def reservations(self) -> Sequence[Reservation]:
        """All reservations of nodes, including past and future ones. One command."""
        ...

    def reserve(self, name: str, nodes: Sequence[str], start: float, end: float) -> None:
        """Keep all users' jobs off these nodes from ``start`` until ``end`` (Unix time). Jobs that
        run now may run on. The nodes may be in other reservations too.
        """
        ...

    def reserve_other_nodes(self, name: str, nodes: Sequence[str]) -> None:
        """Change the nodes of a reservation of ``reserve``."""
        ...

    def unreserve(self, name: str) -> None:
        """End a reservation of ``reserve``."""
        ...

    def excluded_by_job(self) -> Mapping[int, tuple[str, ...]]:
        """By pending job, its excluded nodes (``--exclude``), if the list of jobs lacks them. At
        most one command.
        """
        ...

    def default_times(self) -> Mapping[str, float | None]:
        """By partition with a DefaultTime: its value (s, None: no limit). One command."""
        ...

    def max_times(self) -> Mapping[str, float | None]:
        """By partition: MaxTime (s, None: no limit). One command."""
        ...

    def free_licenses(self) -> Mapping[str, int]:
        """By name: the number of free licences, which no job uses and no reservation keeps. One
        command.
        """
        ...

    def partition_states(self) -> Mapping[str, str]:
        """By partition: UP, DOWN, DRAIN or INACTIVE. One command."""
        ...

    def default_partition(self) -> str:
        """The partition of jobs that name none; "" if there is no such partition. One command."""
        ...

    def slurmctld_started(self) -> float:
        """When the answering slurmctld was started (Unix time). One command."""
        ...

    def suspend_exclusions(self) -> SuspendExclusions:
        """The SuspendExc* options of slurm.conf. One command."""
        ...

    def tell(self, job: int, text: str) -> None:
        """Write lines to the output of a RUNNING batch job."""
        ...

    def finished(self, days: int) -> Sequence[tuple[str, str, int, int, int]]:
        """The jobs that ended in the last ``days`` days according to slurmdbd, oldest first: (user,
        account, CPUs, time limit in s, run time in s). SlurmError without slurmdbd.
        """
        ...

    def accounted_comment(self, job: int) -> str:
        """The AdminComment of an ended job in slurmdbd."""
        ...

    def set_accounted_comment(self, cluster: str, job: int, text: str) -> None:
        """Replace the job's AdminComment in slurmdbd. This needs administrator rights there."""
        ...

    def admin_comments(self, jobs: Collection[int] | None = None) -> Mapping[int, str]:
        """The AdminComments of these jobs (None: all), with all tasks of an array. One command for
        each of a few jobs.
        """
        ...

    def set_admin_comment(self, job: int, text: str) -> None:
        """Replace the job's AdminComment. Its user can see but not change it."""
        ...

    def mail_of(self, job: int) -> JobMail | None:
        """The mail that the job asks for. None: none, or Slurm no longer has the job."""
        ...


@runtime_checkable
class Forgets(Protocol):
    """A checkpoint method whose jobs choose their images themselves, when their next run begins."""

    def forget(self, run: JobRun, attempt: int, reason: str) -> None:
        """Use no image of the run ``attempt`` for the job's next run, for this ``reason``. Call it
        before ``run`` begins. It may raise CheckpointError.
        """
        ...


class Checkpointer(Protocol):
    """One method to save a running job's progress. Every call may raise CheckpointError. After the
    error the run continues as if the call had not been made. No call blocks beyond its deadline
    (Unix time).
    """

    name: str

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Save the run and return the image, verified as complete and readable.

        With ``stop`` the run does no work after the image. It is held, with its job RUNNING in
        Slurm, until the job is requeued or cancelled, or until ``release``. Without ``stop`` the
        run continues. Older images may be deleted, but the last good image stays until a newer one
        is complete.
        """
        ...

    def release(self, run: JobRun) -> None:
        """Let a held run continue on its nodes where it stopped: the job is not requeued."""
        ...

    def images(self, run: JobRun) -> Sequence[Image]:
        """The good images from which the job's next run can continue, newest first."""
        ...

    def origin(self, run: JobRun) -> Origin | None:
        """Where the run began, according to its launcher. None before the launcher has begun, and
        always None for programs that restore themselves.
        """
        ...

    def hindered(self, run: JobRun) -> str:
        """Why the run cannot be saved now; "" if unknown. The check does not disturb the run."""
        ...

    def is_at_work(self, run: JobRun) -> bool:
        """Whether the run's launcher reports that it is not held. False without a report of it."""
        ...

    def is_silent(self, run: JobRun) -> bool:
        """Whether the launcher of an earlier run has reported, and that of this run has not.
        CheckpointError if the reports cannot be read.
        """
        ...

    def verify(self, image: Image) -> None:
        """Verify the image again from this host. CheckpointError names the fault."""
        ...

    def remove(self, job: int) -> None:
        """Delete all images of an ended job. An image that is already gone is no error."""
        ...
