"""Doctor's findings about a cloud's Docker engines, host by host: version, image, network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.cluster import Finding, Level
from slurm_elastic.providers.base.preflight import looked
from slurm_elastic.providers.docker.client import Client
from slurm_elastic.providers.docker.engines import Engines
from slurm_elastic.providers.docker.settings import DockerCloud


def examine(settings: DockerCloud, engines: Engines) -> Sequence[Finding]:
    """All findings; one host that does not answer leaves the others'."""
    with engines.limited():
        return tuple(f for host in settings.hosts for f in _host(settings, engines, host))


def _host(settings: DockerCloud, engines: Engines, host: str) -> Iterator[Finding]:
    what = f"host {host}"
    try:
        whole = engines.call(host, lambda client: client.info())
    except ProviderError as error:
        yield Finding(
            what=what,
            level=Level.WRONG,
            found=f"{error.code}: {error.message}",
            expected="an answer: until then nothing of this cloud is repaired",
            advice="look at the engine and the way to it",
        )
        return
    found = f"engine {whole.get('ServerVersion')}, {whole.get('NCPU')} cpus"
    yield Finding(what=what, level=Level.OK, found=found)
    yield _has(
        engines, host, f"image {settings.image}", "containers/build, or docker pull, on that host",
        lambda client: client.inspect_image(settings.image),  # type: ignore[no-untyped-call]
    )  # fmt: skip
    yield _has(
        engines, host, f"network {settings.network}", "docker network create, on that host",
        lambda client: client.inspect_network(settings.network),
    )  # fmt: skip


def _has(
    engines: Engines, host: str, thing: str, advice: str, ask: Callable[[Client], object]
) -> Finding:
    def there() -> str:
        engines.call(host, ask)
        return "there"

    expected = "there: nothing is pulled or made"
    return looked(f"{thing} on {host}", there, expected, rights=advice, otherwise=advice)
