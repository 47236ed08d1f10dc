"""To-dos of a skeleton that ``init --cloud`` wrote: values that are ``TODO``.

A cloud with to-dos is not in use. The services and the commands that fetch the missing values, such
as ``image upload``, accept the file; checks and ``conf install`` do not (``todo_steps``).
"""

from __future__ import annotations

from msgspec import Struct

TODO = "TODO"


def keys_left(settings: Struct) -> tuple[str, ...]:
    """The keys of a cloud whose values, or a part of them, are to do."""
    return tuple(name for name in settings.__struct_fields__ if _is_left(getattr(settings, name)))


def _is_left(value: object) -> bool:
    if isinstance(value, dict):
        return TODO in value.values()
    return value == TODO or (isinstance(value, tuple) and TODO in value)
