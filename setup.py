"""A wheel has man pages and completions, made from the commands
(slurm_elastic.cli.setting_up.manual), and the pages of docs/, which ``slurm-elastic help`` shows.

The compiled part of the simulator uses CPython's stable ABI, so one file serves all versions. It is
left out where it cannot be compiled; then the simulator's engine in Python does its work.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

from setuptools import Extension, setup

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

CORE = Path("slurm_elastic", "simulate", "core")
SOURCES = sorted(map(str, [*CORE.glob("*.c"), *CORE.glob("*.h")]))
CHECKSUM = zlib.crc32(b"".join(Path(path).read_bytes() for path in SOURCES))
COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]

core = Extension(
    "slurm_elastic.simulate.core._core",
    [path for path in SOURCES if path.endswith(".c")],
    depends=[path for path in SOURCES if path.endswith(".h")],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), ("SOURCES", f"{CHECKSUM}UL")],
    # The engine in Python rounds after each operation, so the compiled one must not fuse any. No
    # path and no build number may make two builds of the same sources differ.
    extra_compile_args=["-O2", "-ffp-contract=off", "-fwrapv", "-g0"],
    extra_link_args=["-Wl,--build-id=none", "-s"],
    libraries=["m"],
    py_limited_api=True,
    optional=True,
)
has_header = Path(sysconfig.get_path("include"), "Python.h").exists()
can_compile = has_header and shutil.which(COMPILER) is not None

setup(
    data_files=sorted(made.items()),
    ext_modules=[core] if can_compile else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if can_compile else {},
)
