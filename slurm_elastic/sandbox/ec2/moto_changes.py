"""Makes moto fast enough for thousands of machines. Written for moto 5.

moto searches all tags for the tags of a machine, all machines for the machine of a new volume, and
all volumes for the volumes of a machine. The time is quadratic: 10 s for a thousand machines with
eight tags. The functions here return the same answers by look-ups with keys.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moto.ec2.models.instances import Instance

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def application() -> Application:
    """Return moto's WSGI application for all services, with the look-ups replaced."""
    from moto.ec2.models.core import TaggedEC2Resource
    from moto.ec2.models.elastic_block_store import EBSBackend
    from moto.ec2.models.instances import InstanceBackend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    # Patch methods of moto's classes. Subclasses would not work: moto makes its backends itself,
    # and its answers contain the names of their classes.
    replaced = (
        (TaggedEC2Resource, _get_tags),
        (InstanceBackend, _get_instance),
        (EBSBackend, _describe_volumes),
    )
    for owner, replacement in replaced:
        name = replacement.__name__.removeprefix("_")
        if name not in _original_methods:
            _original_methods[name] = getattr(owner, name)
            setattr(owner, name, replacement)
    app: Application = DomainDispatcherApplication(create_backend_app)
    return app


def ask(application: Application, environ: Mapping[str, Any], body: bytes) -> tuple[int, bytes]:
    """Pass a request to moto. Returns the status and the body of the answer."""
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


_original_methods: dict[str, Callable[..., Any]] = {}
"""moto's own methods, for the cases that need more than a look-up."""


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
    """Search the newest machines first, because moto needs a machine when it has just made it."""
    for reservation in reversed(backend.reservations.values()):
        if reservation.instances and reservation.instances[-1].id == instance_id:
            newest: Instance = reservation.instances[-1]
            return newest
    instance: Instance = _original_methods["get_instance"](backend, instance_id)
    return instance


def _describe_volumes(
    backend: Any,  # noqa: ANN401
    volume_ids: list[str] | None = None,
    filters: Any = None,  # noqa: ANN401
) -> list[Any]:
    if volume_ids and not filters and all(i in backend.volumes for i in volume_ids):
        return [backend.volumes[i] for i in volume_ids]
    volumes: list[Any] = _original_methods["describe_volumes"](backend, volume_ids, filters)
    return volumes
