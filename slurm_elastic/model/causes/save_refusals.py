"""Why a job is not saved as it asks, or not at all (``config.job_checkpoint``)."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause, Quoted

NO_DIRECTORY = "keeps images in checkpoint.directory, which is not set here"
NO_COMPONENTS = (
    "a component of a heterogeneous job cannot be saved alone, because Slurm requeues all of them"
)
BATCH = "saves batch jobs"
ONE_NODE = f"{BATCH} of one node"
"""The submit filter and the programs on nodes refuse a job in these words, too."""


class RequestInvalid(Cause, frozen=True, kw_only=True):
    """The job's own request for a method is not valid. ``error``: why, for its user."""

    error: str

    @property
    def words(self) -> str:
        return self.error


class DirectoryMissing(Cause, frozen=True, kw_only=True):
    """The ``method`` needs ``checkpoint.directory``."""

    method: str

    @property
    def words(self) -> str:
        return f"method {self.method} {NO_DIRECTORY}"


class SignOnMachine(Cause, frozen=True, kw_only=True):
    """The ``sign`` is a file that the head cannot see before the run ends."""

    sign: str

    @property
    def words(self) -> str:
        return (
            f"the head cannot see {self.sign} before its run ends, because its cloud copies files"
            " (data: copy): saved=exit and saved=line:TEXT work there"
        )


class NoBatchJob(Cause, frozen=True, kw_only=True):
    """The ``method`` saves batch jobs only. ``one_node``: of one node only."""

    method: str
    one_node: bool

    @property
    def words(self) -> str:
        jobs = ONE_NODE if self.one_node else BATCH
        return f"{self.method} {jobs}, and this is no batch job (srun, salloc)"


class SeveralNodes(Cause, frozen=True, kw_only=True):
    """The ``method`` saves jobs of one node only, and the job has several ``nodes``."""

    method: str
    nodes: int

    @property
    def words(self) -> str:
        return f"{self.method} {ONE_NODE}, and this one has {self.nodes}"


class ComponentAlone(Cause, frozen=True, kw_only=True):
    """The job is a component of a heterogeneous job."""

    @property
    def words(self) -> str:
        return NO_COMPONENTS


class MethodNotHere(Cause, frozen=True, kw_only=True):
    """The ``method`` could not be set up when slurm-elastic-ckptman started."""

    method: str

    @property
    def words(self) -> str:
        return (
            f"method {self.method} cannot be used on this site; the log of slurm-elastic-ckptman"
            " tells the administrators why"
        )


class WantsNoSave(Cause, frozen=True, kw_only=True):
    """The job itself asks for no checkpoints."""

    @property
    def words(self) -> str:
        return "its comment says ckpt=none"


class NoMethodNamed(Cause, frozen=True, kw_only=True):
    """Nobody asks for a method."""

    @property
    def words(self) -> str:
        return "neither its comment nor the configuration names a method"


class NoMethodSet(Cause, frozen=True, kw_only=True):
    """A person asks for a save of a job that has no method."""

    @property
    def words(self) -> str:
        return "no checkpoint method is set for it"


class SavedOnlyToMove(Cause, frozen=True, kw_only=True):
    """A person asks for a save of a job that its save would end."""

    @property
    def words(self) -> str:
        return "it ends when it saves itself, so it is saved only to be moved"


class FilesOnMachine(Cause, frozen=True, kw_only=True):
    """A person asks for a save of a job whose files are on its machine alone."""

    @property
    def words(self) -> str:
        return (
            "its files come back only when its run ends (data: copy), so it is saved only to be"
            " moved"
        )


class JobNotRunning(Cause, frozen=True, kw_only=True):
    """A person asks for a save of a job that does not run."""

    @property
    def words(self) -> str:
        return "it does not run"


SaveRefusal = (
    Quoted
    | RequestInvalid
    | DirectoryMissing
    | SignOnMachine
    | NoBatchJob
    | SeveralNodes
    | ComponentAlone
    | MethodNotHere
    | WantsNoSave
    | NoMethodNamed
    | NoMethodSet
    | SavedOnlyToMove
    | FilesOnMachine
    | JobNotRunning
)
"""Why a job is not saved."""
