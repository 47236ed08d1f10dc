"""For all tests: the caller's cloud credentials, configuration and proxies are not there."""

from __future__ import annotations

import os

from slurm_elastic.sandbox.endpoints import isolated_env

_isolated = isolated_env(os.environ)
for _name in os.environ.keys() - _isolated.keys():
    del os.environ[_name]
os.environ.update(_isolated)
