"""A service that polls once an hour looks when slurmctld's programs say that something happened."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.ckptman import service as services
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.wake import SOCKET, SlurmEvents
from slurm_elastic.controller.notify_socket import WakeSocket
from tests.ckptman.world import CkptWorld


class Looks(Service):
    """Counts its looks and signs of life, and does nothing else."""

    looks = beats = 0

    def tick(self) -> None:
        self.looks += 1

    def _leave_signs_of_life(self) -> None:
        self.beats += 1


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Looks, Path]]:
    monkeypatch.setattr(services, "HEARTBEAT_EVERY_S", 0.05)
    world = CkptWorld(poll_interval=3600.0)
    site = world.ckpt
    object.__setattr__(site, "monotonic", time.monotonic)
    service = Looks(site, KeyedExecutor(0))
    with WakeSocket(world.dir / SOCKET) as wake:
        events = SlurmEvents(site.stop, wake.wait, service.wake_after_event)
        thread = threading.Thread(target=service.run)
        thread.start()
        events.start()
        yield service, world.dir / SOCKET
        service.stop()
        thread.join()
        events.join(patience(30))
    world.close()


def test_an_event_is_looked_at_at_once_and_some_times_more(
    looking: tuple[Looks, Path],
) -> None:
    service, path = looking
    eventually(lambda: service.looks == 1)
    eventually(lambda: service.beats > 3)  # it lives although it rests
    assert service.looks == 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"{}", str(path))
    eventually(lambda: service.looks >= 4)


def test_without_events_it_polls(looking: tuple[Looks, Path]) -> None:
    service, _ = looking
    eventually(lambda: service.looks == 1)
    service.wake()
    eventually(lambda: service.looks == 2)
    beats = service.beats
    eventually(lambda: service.beats > beats + 3)
    assert service.looks == 2
