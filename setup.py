"""A wheel has man pages and completions, made from the commands
(slurm_elastic.cli.setting_up.manual), and the pages of docs/, which ``slurm-elastic help`` shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup

MADE = Path("build", "share")

made: dict[str, list[str]] = {}
if "bdist_wheel" in sys.argv:
    here = str(Path(__file__).parent.resolve())
    paths = [here, os.environ.get("PYTHONPATH", "")]  # pip's has what the build needs
    command = [sys.executable, "-m", "slurm_elastic.cli.setting_up.manual", str(MADE)]
    subprocess.run(
        command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    )
    for path in sorted(MADE.rglob("*")):
        if path.is_file():
            place = Path("share", path.parent.relative_to(MADE))
            made.setdefault(str(place), []).append(str(path))

if {"bdist_wheel", "sdist"}.intersection(sys.argv):
    pages = (path for path in Path("docs").glob("*") if path.suffix in (".md", ".png"))
    made["share/doc/slurm-elastic"] = sorted(map(str, pages))

setup(data_files=sorted(made.items()))
