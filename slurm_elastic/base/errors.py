"""The exception tree. A class exists only where a caller acts differently.

::

    SlurmElasticError
      ConfigError            path into the YAML; exit 2; nothing touched
      SlurmError             command, exit code, stderr
      CheckpointError        the run continues; the save is tried again later
        UnreadableError      nothing is known: keep the image, and judge the job by no try
      GrowthError            the growth policy starts and ends nothing; it is asked again later
      SandboxError           the sandbox cannot start or refuses an endpoint; exit 2
      PassingError           a service cannot work now, but may soon; exit 75, systemd restarts it
      EndOnlyError           the ledger cannot record purchases, so nothing may be bought
      ProviderError(cloud)
        CapacityError        cool the offer down, try the next
        QuotaError           cool the cloud's market down for longer, try the next
        AuthError            skip the cloud, alert
          DeniedError        cool the offer (or its market) down, alert, try the next
        TransientError       retry with jittered back-off inside a deadline
          UnsettledError     leave it to the next round: only time shows the outcome
        InstanceNotFound     terminate takes it for success
"""

from __future__ import annotations

import re


class SlurmElasticError(Exception):
    """Any error that this package raises on purpose. Its text is one readable sentence."""


class ConfigError(SlurmElasticError):
    """The configuration, or the system that it must fit, is wrong. Nothing was changed.

    ``problems`` holds all complaints, one sentence each, first to last.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CheckpointError(SlurmElasticError):
    """A job could not be saved, or its image is not complete. The run itself continues."""


class UnreadableError(CheckpointError):
    """The directory of the images cannot be read now, so nothing is known about a run or an image
    in it.
    """


class PolicyError(SlurmElasticError):
    """A policy of another package raised something, or its answer makes no sense."""


class GrowthError(PolicyError):
    """A growth policy of another package failed, so we do not know how many machines to start."""


class ReleaseError(PolicyError):
    """A release policy of another package failed, so we do not know when idle machines may go."""


class SavePolicyError(PolicyError):
    """A checkpoint policy of another package failed, so we do not know when to save a job."""


class SandboxError(SlurmElasticError):
    """The sandbox cannot do what was asked, or an endpoint does not belong to it."""


class PassingError(SlurmElasticError):
    """A service cannot work because of a disk, a lock or slurmctld. The trouble passes by
    itself.
    """


class EndOnlyError(SlurmElasticError):
    """A launch was not made, because it could not be recorded first."""


class OtherHeadError(SlurmElasticError):
    """No machine starts or ends, because another head works for this cluster, too. It passes after
    a person has said which head continues.
    """


_NO_ANSWER = (
    "Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted",
    "Unexpected message received", "Unspecified error", "Connection refused", " is DOWN",
    "Protocol authentication error", "no answer",
)  # fmt: skip
"""Texts by which Slurm's commands, pyslurm and our own code show that slurmctld is stopped or
hangs, or that munged is gone. Measured on 22.05 and 25.11: 22.05's JSON has only "Unspecified
error", and ``scontrol requeue`` reports an unexpected message.
"""
_REFUSED_JOB = re.compile(
    r"Unspecified error for job|^[\d_,%\[\]-]+: Unspecified error", re.MULTILINE
)
"""scontrol's text for slurm.ERROR of the site's own slurm_job_modify, of a job and of a task of an
array. slurmctld gives no other text for it.
"""


UNKNOWN_JOB = "Invalid job id"
_BUSY = ("timed out", "no answer in", "Zero Bytes were transmitted")


class SlurmError(SlurmElasticError):
    """A Slurm command failed, timed out or answered with something unreadable."""

    def __init__(self, command: tuple[str, ...], code: int | None, stderr: str) -> None:
        outcome = {None: "timed out: ", 0: ""}.get(code, f"exit {code}: ")
        super().__init__(f"{' '.join(command)}: {outcome}{stderr.strip() or 'no message'}")
        self.command = command
        self.code = code
        self.stderr = stderr

    @property
    def unanswered(self) -> bool:
        """Whether slurmctld gave no answer. Then we know nothing, and it has refused nothing."""
        text = _REFUSED_JOB.sub("", self.stderr)
        return self.code is None or any(marker in text for marker in _NO_ANSWER)

    @property
    def is_of_unknown_job(self) -> bool:
        """Whether Slurm does not have the job of the command (any longer)."""
        return UNKNOWN_JOB in self.stderr


def is_busy(error: SlurmElasticError) -> bool:
    """Whether slurmctld runs, but had no time to answer a command."""
    return any(marker in str(error) for marker in _BUSY)


class NotLearntError(SlurmElasticError):
    """The ledger may lack machines that the cloud already has for the nodes."""


MAX_ERROR_LENGTH = 1000
"""Characters of an error's text. SDKs put whole answers with thousands of machines into it."""


def bounded(text: str) -> str:
    """The text, fit for log and ledger: short, and valid even if a file name is no UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode()
    excess = len(text) - MAX_ERROR_LENGTH
    return text if excess <= 0 else f"{text[:MAX_ERROR_LENGTH]}... ({excess} more characters)"


def reason_of(error: BaseException) -> str:
    """The reason alone, for a sentence that names the file: str() of OSError names it again."""
    return getattr(error, "strerror", None) or str(error)


def describe_foreign(value: object) -> str:
    """An error or a value of another package's code in one line, even if its own str() fails."""
    name, is_error = type(value).__name__, isinstance(value, BaseException)
    try:
        text = " ".join((str(value) if is_error else repr(value)).split())
    except Exception:  # noqa: BLE001 - another package's code may raise anything
        return name
    return bounded(f"{name}: {text}" if is_error and text else text or name)


class ProviderError(SlurmElasticError):
    """A cloud refused a call or failed. ``code`` is the cloud's own code.

    ``full_message`` is the whole message, for code that looks for names in it. ``message`` is the
    bounded text for people.
    """

    def __init__(self, cloud: str, code: str, message: str) -> None:
        self.cloud = cloud
        self.code = code
        self.full_message = message
        self.message = bounded(message)
        super().__init__(f"{cloud}: {code}: {self.message}")

    @property
    def refusal(self) -> str:
        """Code and message, for a sentence that already names the cloud."""
        return f"{self.code}: {self.message}"


class CapacityError(ProviderError):
    """The offer has no machines at the moment."""


class QuotaError(ProviderError):
    """An account limit is reached; waiting for minutes will not help.

    ``of_size``: the limit has too little left for this launch as a whole, and may have enough for
    a smaller one.
    """

    def __init__(self, cloud: str, code: str, message: str, *, of_size: bool = False) -> None:
        super().__init__(cloud, code, message)
        self.of_size = of_size


class AuthError(ProviderError):
    """Credentials are missing, wrong or expired, or do not permit the call."""


class UnopenedError(AuthError):
    """The cloud cannot be opened on this host: a Python module or a setting cannot be read.

    An AuthError, because only an administrator can mend it, and the cloud's machines are not lost.
    """


class DeniedError(AuthError):
    """The credentials are valid but do not permit this launch. Another offer may be permitted.

    ``of_market``: the denial is for all offers of the offer's market.
    """

    def __init__(self, cloud: str, code: str, message: str, *, of_market: bool = False) -> None:
        super().__init__(cloud, code, message)
        self.of_market = of_market


class TransientError(ProviderError):
    """A throttle, time-out or server error. The call may have taken effect."""


class UnsettledError(TransientError):
    """An earlier call may have taken effect, and nothing shows yet whether it did. A quick retry
    would show no more. The next round may show it.
    """


class InstanceNotFound(ProviderError):  # noqa: N818 - the clouds' own term
    """The cloud does not, or does no longer, know the instance."""
