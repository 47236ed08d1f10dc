"""The exception tree. A class exists only where a caller acts differently.

::

    SlurmElasticError
      ConfigError            path into the YAML; exit 2; nothing touched
      SlurmError             command, exit code, stderr
      CheckpointError        the run goes on as it was; tried again later
      GrowthError            nothing is started or ended by that growth policy; asked again later
      SandboxError           the sandbox cannot start or refuses an endpoint; exit 2
      PassingError           a service cannot go on now, and may soon; exit 75, systemd tries again
      EndOnlyError           nothing may be bought, as it could not be written down
      ProviderError(cloud)
        CapacityError        cool the offer down, try the next
        QuotaError           cool the cloud's market down for longer, try the next
        AuthError            skip the cloud, alert
          DeniedError        cool the offer (or its market) down, alert, try the next
        TransientError       retry with jittered back-off inside a deadline
          UnsettledError     leave it to the next round: only time tells
        InstanceNotFound     terminate counts it as done
"""

from __future__ import annotations


class SlurmElasticError(Exception):
    """Anything this package raises on purpose; its text is one readable sentence."""


class ConfigError(SlurmElasticError):
    """The configuration (or what it must fit to) is wrong; nothing was changed.

    ``problems`` holds every complaint, one sentence each, first to last.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CheckpointError(SlurmElasticError):
    """A job could not be saved, or an image of it is not whole; the run itself goes on."""


class GrowthError(SlurmElasticError):
    """A growth policy of another package raised something, or its answer makes no sense."""


class SandboxError(SlurmElasticError):
    """The sandbox cannot do what was asked, or refuses an endpoint that is not its own."""


class PassingError(SlurmElasticError):
    """A service cannot serve at the moment: a disk, a lock, slurmctld. That passes by itself."""


class EndOnlyError(SlurmElasticError):
    """A launch could not be remembered, so it is not made."""


_NO_ANSWER = (
    "Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted",
    "Unexpected message received", "Unspecified error", "Connection refused", " is DOWN",
    "Protocol authentication error", "no answer",
)  # fmt: skip
"""How Slurm's commands, pyslurm and we say that slurmctld is stopped or hangs, or munged is away
(measured on 22.05 and 25.11: 22.05's JSON has no more than "Unspecified error", and ``scontrol
requeue`` tells of an unexpected message).
"""


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
        """Whether slurmctld gave no answer: nothing is known then, and it has refused nothing."""
        return self.code is None or any(words in self.stderr for words in _NO_ANSWER)


class NotLearntError(SlurmElasticError):
    """The ledger may lack what a cloud has: machines for the nodes may exist already."""


MOST = 1000
"""Characters of an error that are kept: SDKs put whole answers of thousands of machines in it."""


def bounded(text: str) -> str:
    """The text as the log and the ledger may have it: names of files may be no UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode()
    more = len(text) - MOST
    return text if more <= 0 else f"{text[:MOST]}... ({more} more characters)"


def why(error: BaseException) -> str:
    """An error for a sentence that names its file already: OSError's own text does so again."""
    return getattr(error, "strerror", None) or str(error)


def of_stranger(value: object) -> str:
    """An error or a value of another package's code, in one line, whatever its own text does."""
    name, failed = type(value).__name__, isinstance(value, BaseException)
    try:
        text = " ".join((str(value) if failed else repr(value)).split())
    except Exception:  # noqa: BLE001 - a stranger's code may raise anything
        return name
    return bounded(f"{name}: {text}" if failed and text else text or name)


class ProviderError(SlurmElasticError):
    """A cloud refused or failed. ``code`` is the cloud's own word for it. ``said`` is all of its
    message, for whoever looks for names there, and not for people.
    """

    def __init__(self, cloud: str, code: str, message: str) -> None:
        self.cloud = cloud
        self.code = code
        self.said = message
        self.message = bounded(message)
        super().__init__(f"{cloud}: {code}: {self.message}")

    @property
    def refusal(self) -> str:
        """The cloud's word and message, where it is plain which cloud it is."""
        return f"{self.code}: {self.message}"


class CapacityError(ProviderError):
    """The offer has no machines at the moment."""


class QuotaError(ProviderError):
    """An account limit is reached; waiting for minutes will not help."""


class AuthError(ProviderError):
    """Credentials are missing, wrong or expired, or do not permit the call."""


class DeniedError(AuthError):
    """The credentials are good and lack the right to this very launch: another offer's may be
    granted. ``of_market``: what is denied is all of the offer's market.
    """

    def __init__(self, cloud: str, code: str, message: str, *, of_market: bool = False) -> None:
        super().__init__(cloud, code, message)
        self.of_market = of_market


class TransientError(ProviderError):
    """A throttle, time-out or server error; the call may or may not have taken effect."""


class UnsettledError(TransientError):
    """An earlier call may have taken effect and nothing shows it yet. A call that is repeated
    soon learns no more; one of a later round does.
    """


class InstanceNotFound(ProviderError):  # noqa: N818 - the clouds' own term
    """The cloud does not know the instance (any more)."""
