"""Doctor's findings about the engines of a cloud, host by host: version, image, network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.providers.base.preflight import ANSWER, CheckRunner
from slurm_elastic.providers.docker.client import DockerClient
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.settings import DockerCloud


def examine(settings: DockerCloud, engines: Engines) -> Sequence[Finding]:
    """All findings. A host that does not answer does not stop the others."""
    with engines.limited():
        return tuple(f for host in settings.hosts for f in _host(settings, engines, host))


def _host(settings: DockerCloud, engines: Engines, host: str) -> Iterator[Finding]:
    reach = CheckRunner(
        "look at the engine and the way to it", "look at the engine and the way to it"
    )

    def ask_version() -> str:
        info = engines.call(host, lambda client: client.info())
        return f"engine {info.get('ServerVersion')}, {info.get('NCPU')} cpus"

    yield (version_finding := next(reach.at(f"host {host}", ANSWER, ask_version)))
    if version_finding.level is not FindingLevel.OK:
        return
    things: tuple[tuple[str, str, Callable[[DockerClient], object]], ...] = (
        (
            f"image {settings.image}", "containers/build, or docker pull, on that host",
            lambda client: client.inspect_image(settings.image),  # type: ignore[no-untyped-call]
        ),
        (
            f"network {settings.network}", "docker network create, on that host",
            lambda client: client.inspect_network(settings.network),
        ),
    )  # fmt: skip
    for thing, advice, ask in things:
        checks, expected = CheckRunner(advice, advice), "there: nothing is pulled or made"
        yield from checks.at(f"{thing} on {host}", expected, partial(engines.call, host, ask))
