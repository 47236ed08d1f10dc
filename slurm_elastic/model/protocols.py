"""The shapes that parts meet at: contracts in the docstrings, a contract suite for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.cluster import Instance, LaunchSpec, NodeRequest, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode, SuspendExclusions

RankingKey = Callable[[NodeRequest, Offer], float]
"""Smaller ranks first; a ranking is a list of names of such keys, compared as a tuple."""


class Provider(Protocol):
    """One cloud: an account in a region. Every call may raise the five ProviderErrors.

    No call blocks for longer than the provider's time-out. Unknown exceptions of the SDK stay
    unknown. Only machines that carry this cluster's UUID in their tags are ever listed or touched.
    """

    name: str

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The offers of this cloud for ``pool`` now: every type x zone x market the pool allows.

        An offer the cloud does not have (unknown type, no price) is left out, not guessed.
        """
        ...

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Start machines for ``spec.nodes`` in one bulk call; fewer back is a partial launch.

        Idempotent by ``spec.generation``: a repeated call with the same spec returns the machines
        of the first one, also when its answer was lost. Machines carry their tags (cluster name,
        cluster UUID, pool, node or node list, generation, jobs) from the create call itself.
        An error means that nothing was started, but for TransientError, after which the machines
        may exist: call again with the same spec, or look in ``instances``. On that repeated call
        CapacityError and QuotaError mean that there are none; other errors tell nothing of them.
        UnsettledError: they may be there without being listed; call again in a while.
        """
        ...

    def instances(self) -> Sequence[Instance]:
        """All machines with this cluster's UUID that are not TERMINATED: the truth.

        A fresh machine may be missing for minutes (eventual consistency). One that was lost (taken
        by the cloud, or ended by the provider as it would never come up) may be told once as
        TERMINATED.
        """
        ...

    def terminate(self, ids: Sequence[str]) -> None:
        """Delete exactly these machines, in bulk. Deleting twice, or what is gone, is no error."""
        ...

    def notices(self) -> Sequence[Notice]:
        """Standing interruption and rebalance warnings; empty where the cloud gives none."""
        ...

    def check(self) -> None:
        """Prove that the credentials work, by one cheap read-only call."""
        ...


@runtime_checkable
class Limited(Protocol):
    """A provider whose cloud lets an account start only so many machines at a time."""

    def startable(self) -> int | None:
        """How many it would start now; what is above that waits. None: it has no such limit."""
        ...


@runtime_checkable
class Chooser(Protocol):
    """A provider that can choose among several offers in one launch (``alternatives``)."""

    alternatives: int
    """How many it takes; 0: none."""

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """By ``Offer.key``, which offers gave nothing or too little in that launch, and why; of the
        last launches only.
        """
        ...


class ImageStore(Protocol):
    """A cloud's images, for the administrator. ``forms`` of files that it takes; ``places``, each
    of which needs an image of its own (hosts; one without a name where there is no such choice).
    Every call may raise the five ProviderErrors.
    """

    forms: tuple[str, ...]
    places: tuple[str, ...]

    def images(self) -> Sequence[CloudImage]:
        """All that the account sees and pools might start from, unfinished ones too."""
        ...

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The steps of an upload, a sentence each; ConfigError where settings lack what it needs.
        Nothing is asked of the cloud.
        """
        ...

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:
        """The image, proved to be there whole; ``say`` is told each step. Whatever breaks it off,
        no pool takes what is left for an image.
        """
        ...

    def remove(self, image: CloudImage) -> None:
        """Delete what an upload that was broken off has left."""
        ...

    def start_of(self, pool: Pool) -> str:
        """The id of the image that machines of the pool start from now; empty: nobody tells."""
        ...


@runtime_checkable
class Stops(Protocol):
    """A provider that stops machines, and starts them again with their disk, name and tags. Every
    call may raise the five ProviderErrors.
    """

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine of the pool now (image, user data, settings), in a
        word: another word is another machine. Never empty.
        """
        ...

    def stop(self, ids: Sequence[str]) -> None:
        """Stop exactly these machines, none of them spot; what is stopped, or on its way, is no
        error. ``instances`` tells them as STOPPING, then STOPPED, until they are started or ended.
        After an error some may have stopped.
        """
        ...

    def start(self, instance: str) -> None:
        """Start a machine that was stopped; one that runs, or is about to, is no error.

        An error means that it is stopped still, but for TransientError, after which it may run:
        call again, or look in ``instances``. InstanceNotFound: it is gone.
        """
        ...


@runtime_checkable
class Console(Protocol):
    """A provider that shows what its machines print."""

    def console(self, instance: str) -> str:
        """The text that a machine has printed since its boot; empty: nothing yet. Any
        ProviderError.
        """
        ...


@runtime_checkable
class Expiring(Protocol):
    """A provider that can tell when its credentials end."""

    def credentials_end(self) -> float | None:
        """When somebody has to have renewed them (Unix time); None: no end is known, or they are
        renewed without anybody. At most one cheap call. ProviderError.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A provider that can tell more of its cloud's state than ``check`` and ``offers`` do."""

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Look at image, network, quota, clock: whatever this cloud tells without any change. A
        thing that cannot be read is a finding, too; raises nothing of its own accord.
        """
        ...


NO_NODE = "Slurm lists no node at all (does PrivateData=nodes hide them?)"
"""Such an answer says nothing about any machine."""


class Slurm(Protocol):
    """slurmctld, as far as we read and change it. Every call may raise SlurmError, and does where
    slurmctld is stopped, starting or hangs: an empty answer is never one of those.
    """

    def version(self) -> tuple[int, int]:
        """Slurm's version, as (22, 5)."""
        ...

    def slurmd_timeout(self) -> float:
        """SlurmdTimeout (s), as of some minutes ago or later. With 0 slurmctld pings no node that
        it has up.
        """
        ...

    def nodes(self, names: Sequence[str] | None = None) -> Mapping[str, SlurmNode]:
        """All nodes (or these) by name, powered-down cloud nodes included. One command."""
        ...

    def jobs(self, *, ended: bool = False) -> Sequence[SlurmJob]:
        """The jobs that wait, run or complete; with ``ended`` also those that Slurm still keeps
        though they have ended. One command.
        """
        ...

    def owners(self, jobs: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """By job, its ``user`` and ``account`` as far as it has them; of those of ``jobs`` that
        Slurm knows. Costs less than a list of all.
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

        ``address`` becomes the NodeAddr of each, before its state changes.
        """
        ...

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """``scontrol update nodename=... weight=...``, one command a weight where they fit."""
        ...

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Tell slurmctld the NodeAddr of nodes, in as few commands as fit."""
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
        """Give PENDING jobs another list of partitions, and let them begin in so many seconds (0:
        now). No error where one is pending no longer.
        """
        ...

    def set_requeue(self, job: int, *, requeue: bool) -> None:
        """``scontrol update jobid=... requeue=0|1``: whether Slurm may requeue the job."""
        ...

    def signal(self, job: int, name: str, *, full: bool) -> None:
        """``scancel --signal``: to the batch script alone, or with ``full`` to its children too."""
        ...

    def any_nodes(self, job: int) -> None:
        """A PENDING job may start elsewhere than on the nodes that its user named (``-w``)."""
        ...

    def excluded_nodes(self, job: int) -> tuple[str, ...]:
        """The nodes that a job avoids: 22.05's list of jobs does not have them."""
        ...

    def exclude_nodes(self, job: int, nodes: Sequence[str]) -> None:
        """A PENDING job does not start on these nodes; in the place of those that it avoided."""
        ...

    def hold(self, job: int) -> None:
        """``scontrol uhold``: a PENDING job does not start until somebody releases it."""
        ...

    def release(self, job: int) -> None:
        """``scontrol release``: end a hold (priority 0) that is on a PENDING job."""
        ...

    def suspend(self, job: int) -> None:
        """``scontrol suspend``: stop all processes of a RUNNING job, its launcher among them. Takes
        effect some seconds later; a resume meanwhile may leave some stopped.
        """
        ...

    def resume(self, job: int) -> None:
        """``scontrol resume``: the processes of a SUSPENDED job go on at once."""
        ...

    def reservations(self) -> Sequence[Reservation]:
        """All reservations of nodes, those that are over or yet to come, too. One command."""
        ...

    def excluded_by_job(self) -> Mapping[int, tuple[str, ...]]:
        """The nodes that pending jobs avoid (``--exclude``), by job, if the list of jobs lacks
        them. One command at most.
        """
        ...

    def default_times(self) -> Mapping[str, float | None]:
        """DefaultTime (s, None: no limit) of the partitions that set it. One command."""
        ...

    def max_times(self) -> Mapping[str, float | None]:
        """MaxTime (s, None: no limit) of each partition. One command."""
        ...

    def free_licenses(self) -> Mapping[str, int]:
        """The licences that no job uses and no reservation keeps, by name. One command."""
        ...

    def partition_states(self) -> Mapping[str, str]:
        """UP, DOWN, DRAIN or INACTIVE by partition. One command."""
        ...

    def slurmctld_started(self) -> float:
        """When the slurmctld that answers was started (Unix time). One command."""
        ...

    def suspend_exclusions(self) -> SuspendExclusions:
        """The SuspendExc* options of slurm.conf. One command."""
        ...

    def tell(self, job: int, line: str) -> None:
        """Have a line written to the output of a RUNNING batch job."""
        ...

    def finished(self, days: int) -> Sequence[tuple[str, str, int, int, int]]:
        """The jobs that ended in the last days, by slurmdbd, oldest first: (user, account, CPUs,
        time limit, run), in seconds. SlurmError without slurmdbd.
        """
        ...

    def accounted_comment(self, job: int) -> str:
        """The AdminComment that slurmdbd keeps of a job that has ended."""
        ...

    def set_accounted_comment(self, cluster: str, job: int, text: str) -> None:
        """In the place of what slurmdbd has there; it needs its administrator's rights."""
        ...

    def set_admin_comment(self, job: int, text: str) -> None:
        """The job's AdminComment, which its user sees and cannot change; in the place of what was
        there.
        """
        ...

    def output(self, job: int) -> str:
        """The path of the job's standard output as Slurm has expanded it."""
        ...


class Checkpointer(Protocol):
    """One way to save a running job's progress. Every call may raise CheckpointError, after which
    the run goes on as if nothing had been asked. No call blocks beyond its deadline (Unix time).
    """

    name: str

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Save the run and return the image, which was verified: complete, readable, its size.

        With ``stop`` the run does no work after the image: it is held, its job still RUNNING in
        Slurm, until the job is requeued or cancelled, or until ``release``. Without, it goes on.
        The images before the last good one may go; that one stays until a newer is complete.
        """
        ...

    def release(self, run: JobRun) -> None:
        """The requeue does not come: a held run goes on where it was stopped, on its nodes."""
        ...

    def images(self, run: JobRun) -> Sequence[Image]:
        """The good images from which a next run of this job would go on, newest first."""
        ...

    def origin(self, run: JobRun) -> Origin | None:
        """Where that run began, from its launcher; None while that has not begun, and always of
        programs that restore themselves.
        """
        ...

    def hindered(self, run: JobRun) -> str:
        """Why the run could not be saved now, by a look that costs it nothing; empty where nothing
        is known of that.
        """
        ...

    def verify(self, image: Image) -> None:
        """Prove anew, from this host, that the image is whole; CheckpointError says what is not."""
        ...

    def remove(self, job: int) -> None:
        """Delete all images of a job that has ended. An image that is gone already is no error."""
        ...
