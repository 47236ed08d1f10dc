"""A job as sbatch itself understands it, without submitting it: ``sbatch --verbose --test-only``.

sbatch reads its command line, the script's ``#SBATCH`` lines and its ``SBATCH_`` variables, in this
order of rank (sbatch(1)), prints the options that came of it, and asks slurmctld when such a job
would start. So nothing of that is guessed here, in no release. Measured on 22.05.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import brief
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.command import Patience, run

PATIENCE = 30.0
_OPTION = re.compile(r"^sbatch: ([a-z][a-z-]*) *: (.*)$", re.MULTILINE)
_START = re.compile(r"^sbatch: Job \d+ to start at (\d{4}-\S+) using \d+ processors", re.MULTILINE)
_REFUSED = re.compile(r"^(?:sbatch: (?:error|fatal): |allocation failure: )+(.*)$", re.MULTILINE)
_WHOLE = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_SIZE = re.compile(r"(\d+)([KMGT]?)")
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}


class Submission(Struct, frozen=True, kw_only=True):
    """``options`` by their long names; ``start`` (Unix time) as slurmctld says, None where it does
    not, and ``refused`` why.
    """

    options: Mapping[str, str]
    start: float | None = None
    refused: str = ""


def ask_sbatch(
    settings: SlurmSettings, script: str, options: Sequence[str], *, partition: str = ""
) -> Submission:
    """Run it with these options of sbatch's, in ``partition`` where one is named. Raises
    SlurmElasticError where sbatch takes them for none, or cannot be run.
    """
    only = [f"--partition={partition}"] if partition else []
    command = [os.path.join(settings.bin_dir, "sbatch"), "--verbose", "--test-only"]
    environment = {**os.environ, "SLURM_CONF": settings.conf, "SLURM_TIME_FORMAT": "standard",
                   "LC_ALL": "C.UTF-8"}  # fmt: skip
    try:
        words = [*command, *options, *only, script]
        _, said = run(words, environment, Patience(PATIENCE), lambda _: None)
    except TimeoutError:
        raise SlurmElasticError(f"sbatch gives no answer in {brief(PATIENCE)}") from None
    except OSError as error:
        raise SlurmElasticError(f"sbatch cannot be run: {error}") from None
    return understood(said)


def understood(said: str) -> Submission:
    """By what sbatch printed. SlurmElasticError where it did not come to its options."""
    refused = "; ".join(dict.fromkeys(_REFUSED.findall(said)))
    if "end of defined options" not in said:
        raise SlurmElasticError(f"sbatch does not take this: {refused or said.strip()[-200:]}")
    start = _START.search(said)
    return Submission(
        options={name: value.strip() for name, value in _OPTION.findall(said)},
        start=datetime.fromisoformat(start[1]).timestamp() if start else None,
        refused="" if start else refused,
    )


def seconds(text: str) -> int | None:
    """A time limit in any of sbatch's forms (``30``, ``1:30:00``, ``2-12``); None for no bound."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    days, *parts = found.groups()
    given = [int(part) for part in parts if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, rest = (*given, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + rest
    hours, minutes, rest = {1: (0, *given, 0), 2: (0, *given)}.get(len(given), tuple(given))
    return hours * 3600 + minutes * 60 + rest


def mebibytes(text: str) -> int:
    """A size such as ``4G``; 0 where it is none."""
    found = _SIZE.fullmatch(text.upper().removesuffix("B"))
    return int(int(found[1]) * _MIB[found[2]]) if found else 0


def count(text: str, default: int = 1) -> int:
    """The least of a number or a range (``2-4``)."""
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else default
