"""Python modules that the distribution has and our environment cannot see."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from slurm_elastic.base.errors import ConfigError


def from_distribution(name: str, advice: str) -> ModuleType:
    """The module, this environment's own if it has it: those that are compiled come with the
    distribution, for its Python, and a virtual environment of that can use them. ConfigError, with
    the ``advice``, where there is none.
    """
    path, version = [*sys.path], f"{sys.version_info.major}.{sys.version_info.minor}"
    sys.path += [f"{sys.base_prefix}/lib/python3/dist-packages"]  # Debian
    sys.path += [f"{sys.base_prefix}/lib64/python{version}/site-packages"]  # Fedora
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"Python module {name!r} is missing ({error}); {advice}") from error
    finally:
        sys.path[:] = path
