"""A job as sbatch itself understands it, without submitting it: ``sbatch --verbose --test-only``.

sbatch reads its command line, its ``SBATCH_`` variables and the script's ``#SBATCH`` lines, in this
order of priority (sbatch(1)). It prints the resulting options, and asks slurmctld when such a job
would start. So we guess nothing of this in any release. Measured on 22.05.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.units import brief
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.command import CallTimeout, run

TIMEOUT_S = 30.0
_OPTION = re.compile(r"^sbatch: ([a-z][a-z-]*) *: (.*)$", re.MULTILINE)
_START = re.compile(r"^sbatch: Job \d+ to start at (\d{4}-\S+) using \d+ processors", re.MULTILINE)
_REFUSED = re.compile(r"^(?:sbatch: (?:error|fatal): |allocation failure: )+(.*)$", re.MULTILINE)
_PREFIX = re.compile(
    r"^(?:sbatch: )?(?:error: )?(?:Batch job submission failed: |allocation failure: )?"
)
UNSPECIFIED = "Unspecified error"
"""sbatch's text for slurm.ERROR of a job_submit.lua."""
_TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_SIZE = re.compile(r"(\d+)([KMGT]?)")
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}


class Submission(Struct, frozen=True, kw_only=True):
    """``options`` by their long names. ``start``: when slurmctld would start the job (Unix time),
    or None, and then ``refused`` has the reason. ``components``: more than one of a heterogeneous
    job, of which ``options`` are a mixture.
    """

    options: Mapping[str, str]
    components: int = 1
    start: float | None = None
    refused: str = ""

    @property
    def has_invalid_partition(self) -> bool:
        """Whether Slurm refuses the job because it has no such partition."""
        return "invalid partition" in self.refused.lower()


def ask_sbatch(
    settings: SlurmSettings, script: str, options: Sequence[str], *, partition: str = ""
) -> Submission:
    """Run sbatch with these options, in ``partition`` if one is named. SlurmElasticError if sbatch
    rejects them or cannot be run.
    """
    partition_option = [f"--partition={partition}"] if partition else []
    command = [os.path.join(settings.bin_dir, "sbatch"), "--verbose", "--test-only"]
    # The messages are matched below, so the caller's language and time format must not change them.
    environment = {**os.environ, "SLURM_CONF": settings.conf, "SLURM_TIME_FORMAT": "standard",
                   "LC_ALL": "C.UTF-8"}  # fmt: skip
    try:
        arguments = [*command, *options, *partition_option, script]
        _, output = run(arguments, environment, CallTimeout(TIMEOUT_S), lambda _: None)
    except TimeoutError:
        raise SlurmElasticError(f"sbatch gives no answer in {brief(TIMEOUT_S)}") from None
    except OSError as error:
        raise SlurmElasticError(f"sbatch cannot be run: {error}") from None
    return understood(output)


def understood(output: str) -> Submission:
    """Read sbatch's messages. SlurmElasticError if sbatch failed before it printed its options."""
    refused = "; ".join(dict.fromkeys(_REFUSED.findall(output)))
    if "end of defined options" not in output:
        raise SlurmElasticError(f"sbatch rejects this: {refused or output.strip()[-200:]}")
    start = _START.search(output)
    return Submission(
        options={name: value.strip() for name, value in _OPTION.findall(output)},
        components=output.count("end of defined options"),
        start=datetime.fromisoformat(start[1]).timestamp() if start else None,
        refused="" if start else refused,
    )


def seconds(text: str) -> int | None:
    """The seconds of a time limit in any form of sbatch (``30``, ``1:30:00``, ``2-12``). None for
    UNLIMITED and other words.
    """
    match = _TIME_LIMIT.fullmatch(text)
    if match is None:
        return None
    days, *fields = match.groups()
    numbers = [int(field) for field in fields if field is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    # One number is minutes, two are minutes and seconds (sbatch(1), --time).
    hours, minutes, seconds = {1: (0, *numbers, 0), 2: (0, *numbers)}.get(
        len(numbers), tuple(numbers)
    )
    return hours * 3600 + minutes * 60 + seconds


def mebibytes(text: str) -> int:
    """The MiB of a size such as ``4G``. 0 if the text is no size."""
    match = _SIZE.fullmatch(text.upper().removesuffix("B"))
    return int(int(match[1]) * _MIB[match[2]]) if match else 0


def count(text: str, default: int = 1) -> int:
    """The smallest value of a number or a range (``2-4``)."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else default


def is_scripts_refusal(error: SlurmError) -> bool:
    """Return whether a job_submit.lua refused the job and gave a reason: a text of its own and
    slurm.ERROR. An error of the connection may also come with UNSPECIFIED.
    """
    text = joined(error.stderr)
    if UNSPECIFIED not in error.stderr or text == UNSPECIFIED:
        return False
    return not SlurmError(error.command, error.code, text).unanswered


def joined(output: str) -> str:
    """Return sbatch's messages in one line, without their prefixes.

    A refusing job_submit.lua has its own text first (slurm.log_user). Then the error that it
    returns says nothing more if it is slurm.ERROR.
    """
    lines = (_PREFIX.sub("", line.strip()) for line in output.splitlines())
    messages = [line for line in dict.fromkeys(lines) if line]
    return "; ".join([line for line in messages if line != UNSPECIFIED] or messages)
