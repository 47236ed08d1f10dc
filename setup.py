"""With SLURM_ELASTIC_COMPILED set, the simulator's inner modules are compiled by mypyc as they are.

Everything works without; the wheel is then the same for all machines.
"""

from __future__ import annotations

import os

from setuptools import setup

CORE = (
    "budget_queue",
    "engine",
    "events",
    "idle_set",
    "machines",
    "purchases",
    "queueing",
    "runs",
    "scaler",
)

extensions = []
if os.environ.get("SLURM_ELASTIC_COMPILED"):
    from mypyc.build import mypycify

    extensions = mypycify([f"slurm_elastic/simulate/{name}.py" for name in CORE])

setup(ext_modules=extensions)
