"""How much data a job says that it moves: ``--comment=data=120G``, or ``data=120G/5G``. Pure.

The submit filter reads the same (``slurm/hooks/job_order.lua``). Prices of traffic are per GB of
10^9 bytes, so these are the units here.
"""

from __future__ import annotations

import re

from msgspec import Struct

FORM = "data=SIZE or data=IN/OUT, such as data=120G or data=120G/5G, with M, G or T"
GIGABYTES = {"M": 0.001, "G": 1.0, "T": 1000.0}
_WORD = re.compile(r"(?:^|[\s;])data=(\d[^\s;]*)")
_SIZES = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([MGT])(?:/(\d{1,9}(?:\.\d{1,3})?)([MGT]))?")


class JobData(Struct, frozen=True, kw_only=True):
    """The data that goes to the job's machines and comes from them (GB)."""

    gb_in: float = 0.0
    gb_out: float = 0.0


NO_DATA = JobData()


def data_of(comment: str) -> JobData:
    """The data that a job moves, according to its comment. If it names one size, so much moves in
    and the same out. ValueError if the size begins with a number but has an unknown form.
    """
    word = _WORD.search(comment)
    if word is None:
        return NO_DATA
    sizes = _SIZES.fullmatch(word[1])
    if sizes is None:
        raise ValueError(f"data={word[1]}: expected {FORM}")
    gb_in = float(sizes[1]) * GIGABYTES[sizes[2]]
    gb_out = gb_in if sizes[3] is None else float(sizes[3]) * GIGABYTES[sizes[4]]
    return JobData(gb_in=gb_in, gb_out=gb_out)


def counted_data(comment: str) -> JobData:
    """The data as in ``data_of``, but no data if the size has an unknown form."""
    try:
        return data_of(comment)
    except ValueError:
        return NO_DATA
