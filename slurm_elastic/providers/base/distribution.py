"""Python modules that the Linux distribution has installed and our virtual environment
cannot see.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from slurm_elastic.base.errors import ConfigError


def from_distribution(name: str, advice: str) -> ModuleType:
    """Import the module ``name`` from this environment or from the distribution.

    Compiled modules come with the distribution and fit its Python; a virtual environment of that
    Python can load them. ConfigError with the ``advice`` if the module is in neither.
    """
    original_path, version = [*sys.path], f"{sys.version_info.major}.{sys.version_info.minor}"
    # Appended, so that the environment's own copy of a module comes first.
    sys.path += [f"{sys.base_prefix}/lib/python3/dist-packages"]  # Debian
    sys.path += [f"{sys.base_prefix}/lib64/python{version}/site-packages"]  # Fedora
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"Python module {name!r} is missing ({error}); {advice}") from error
    finally:
        sys.path[:] = original_path
