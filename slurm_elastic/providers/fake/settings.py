"""The settings of the cloud in memory as frozen values."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from slurm_elastic.config.clouds import CloudSettings, InstanceType


class FakeCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fake"):
    """A cloud in memory, for rehearsals and tests."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    """Change it when a rehearsal should have the types of the cloud that it stands for."""
    zones: tuple[str, ...] = ("zone-1",)
    """Change it when a rehearsal should have several zones."""
    spot_factor: float = 0.3
    """Change it when spot machines of the cloud that is rehearsed are cheaper or dearer."""
    stock: int | None = None
    """Change it when a rehearsal should meet refusals for want of capacity."""

    can_stop: ClassVar[bool] = True
    names_images: ClassVar[bool] = True

    @property
    def known_zones(self) -> tuple[str, ...]:
        """The configured ``zones``."""
        return self.zones
