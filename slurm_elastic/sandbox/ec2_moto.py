"""moto, made fit for thousands of machines.

moto looks through all tags for each machine's, through all machines for each new volume's and
through all volumes for each machine's: quadratic, 10 s for a thousand machines with eight tags. The
same answers are looked up here by their keys. Written for moto 5.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moto.ec2.models.instances import Instance

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def application() -> Application:
    """Moto's server of all services as a WSGI application, with the look-ups replaced."""
    from moto.ec2.models.core import TaggedEC2Resource
    from moto.ec2.models.elastic_block_store import EBSBackend
    from moto.ec2.models.instances import InstanceBackend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    # By its insides: moto makes its backends itself, and its answers name their classes.
    replaced = (
        (TaggedEC2Resource, _get_tags),
        (InstanceBackend, _get_instance),
        (EBSBackend, _describe_volumes),
    )
    for owner, ours in replaced:
        name = ours.__name__.removeprefix("_")
        if name not in _moto:
            _moto[name] = getattr(owner, name)
            setattr(owner, name, ours)
    app: Application = DomainDispatcherApplication(create_backend_app)
    return app


def ask(application: Application, environ: Mapping[str, Any], body: bytes) -> tuple[int, bytes]:
    """Hand a request to moto: status and body of its answer."""
    status = 500

    def start(line: str, _headers: object, _exc: object = None) -> None:
        nonlocal status
        status = int(line.split()[0])

    inner = {k: v for k, v in environ.items() if not k.startswith("werkzeug.")}
    inner |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    chunks = application(inner, start)
    try:
        return status, b"".join(chunks)
    finally:
        if hasattr(chunks, "close"):
            chunks.close()


_moto: dict[str, Callable[..., Any]] = {}
"""moto's own, for the cases that need more than a look-up."""


def _get_tags(resource: Any) -> list[dict[str, str]]:  # noqa: ANN401
    from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

    identity = resource.id
    tags = resource.ec2_backend.tags.get(identity, {}) if identity else {}
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(identity), "") if tags else ""
    return [
        {"resource_id": identity, "key": key, "value": value, "resource_type": kind}
        for key, value in tags.items()
    ]


def _get_instance(backend: Any, instance_id: str) -> Instance:  # noqa: ANN401
    """Newest first: moto asks for a machine when it has just made it."""
    for reservation in reversed(backend.reservations.values()):
        if reservation.instances and reservation.instances[-1].id == instance_id:
            newest: Instance = reservation.instances[-1]
            return newest
    found: Instance = _moto["get_instance"](backend, instance_id)
    return found


def _describe_volumes(
    backend: Any,  # noqa: ANN401
    volume_ids: list[str] | None = None,
    filters: Any = None,  # noqa: ANN401
) -> list[Any]:
    if volume_ids and not filters and all(i in backend.volumes for i in volume_ids):
        return [backend.volumes[i] for i in volume_ids]
    found: list[Any] = _moto["describe_volumes"](backend, volume_ids, filters)
    return found
