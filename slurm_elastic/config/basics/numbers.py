"""The units and bounds of the configuration's numbers. ``decode`` checks values by these types."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "duration"})]
# Slurm keeps these numbers in 16 bits, of which 65534 and 65535 mean "not set" and "infinite".
SlurmSeconds = Annotated[float, Meta(ge=1, le=65533, extra={"unit": "duration"})]
SuspendSeconds = Annotated[float, Meta(ge=1, extra={"unit": "duration"})]
SlurmTime = Annotated[float, Meta(ge=60, extra={"unit": "duration"})]  # Slurm counts minutes
Mebibytes = Annotated[int, Meta(ge=1, extra={"unit": "size"})]
Cpus = Annotated[int, Meta(ge=1, le=65533)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(gt=0)]
PerSecond = Annotated[float, Meta(gt=0)]
PerHour = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Moment = Annotated[float, Meta(gt=0, extra={"unit": "moment"})]
