"""With SLURM_ELASTIC_COMPILED set, the simulator's inner modules are compiled by mypyc as they are.

Everything works without; the wheel is then the same for all machines. A wheel has man pages and
completions, made from the commands themselves (slurm_elastic.cli.manual).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
MADE = Path("build", "share")

extensions = []
if os.environ.get("SLURM_ELASTIC_COMPILED"):
    from mypyc.build import mypycify

    extensions = mypycify([f"slurm_elastic/simulate/{name}.py" for name in CORE])

made: dict[str, list[str]] = {}
if "bdist_wheel" in sys.argv:
    here = str(Path(__file__).parent.resolve())
    command = [sys.executable, "-m", "slurm_elastic.cli.manual", str(MADE)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": here})
    for path in sorted(MADE.rglob("*")):
        if path.is_file():
            place = Path("share", path.parent.relative_to(MADE))
            made.setdefault(str(place), []).append(str(path))

setup(ext_modules=extensions, data_files=sorted(made.items()))
