"""The defects of all rooms: each module enters its own into the registry."""

from __future__ import annotations

from tests.chaos.defects import clouds, jobs, machines, money, screens, slurm
from tests.chaos.defects.registry import ATTACKS, PUT_IN

ROOMS = (clouds, jobs, machines, money, screens, slurm)

__all__ = ["ATTACKS", "PUT_IN", "ROOMS"]
