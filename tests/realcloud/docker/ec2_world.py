"""A cluster in containers whose public cloud is the sandbox's EC2, which is on this host."""

from __future__ import annotations

import contextlib
from typing import Any, Self

from emulated import running_ec2

from .ec2_parts import ENVIRONMENT, copy_sdk, relay
from .world import ContainerWorld


class Ec2World(ContainerWorld):
    """``ec2`` controls it, ``endpoint`` is its URL for the head, where slurm-elasticd runs."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._parts = contextlib.ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._come_up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        with contextlib.ExitStack() as rest:
            rest.callback(super().close)
            self._parts.close()

    def _lay_out(self) -> None:
        super()._lay_out()
        copy_sdk(self.directory / "opt")
        (self.directory / "ec2").mkdir()

    def _come_up(self) -> None:
        """Start all that is there besides Slurm; ``_parts`` ends it."""
        self.ec2 = self._parts.enter_context(running_ec2(self.directory / "ec2"))
        self.network.reload()
        gateway = self.network.attrs["IPAM"]["Config"][0]["Gateway"]
        port = int(self.ec2.url.rpartition(":")[2])
        self.endpoint = self._parts.enter_context(relay(gateway, port))
        self._prepare()
        self.start_daemon(self._config(), *ENVIRONMENT)

    def _prepare(self) -> None:
        """Set up the head for the configuration."""

    def _config(self) -> dict[str, Any]:
        """slurm-elastic's."""
        raise NotImplementedError
