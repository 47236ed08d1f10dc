"""Caches botocore's data about Amazon's services for the whole process.

Botocore reads its files again for each session (3 MB for EC2, 1 MB for all endpoints). At its
import moto opens a session per service, which was a third of the emulated EC2's start time. Each of
our clients opens a session, too, which was half of the time of a test with several clients. A
session also looks through 400 directories for the services that have a model.
"""

from __future__ import annotations

import os
from typing import Any

import boto3
from botocore.loaders import JSONFileLoader, Loader

_SHIPPED = os.path.join(Loader.BUILTIN_DATA_PATH, "")
_SHIPPED_DIRECTORIES = {
    Loader.BUILTIN_DATA_PATH,
    os.path.join(os.path.dirname(boto3.__file__), "data"),
}
_read = JSONFileLoader.load_file
_list_services = Loader.list_available_services
_cache: dict[str, Any] = {}
_services: dict[tuple[str, ...], list[str]] = {}


def cache_shipped_files() -> None:
    """Cache the files in botocore's package and their list from now on, because they never change.
    Other files are read each time.
    """
    JSONFileLoader.load_file = _load_cached  # type: ignore[assignment, method-assign]
    Loader.list_available_services = _list_cached  # type: ignore[assignment, method-assign]


def _load_cached(loader: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - what a JSON file has
    if not path.startswith(_SHIPPED):
        return _read(loader, path)
    if path not in _cache:
        _cache[path] = _read(loader, path)
    return _cache[path]


def _list_cached(loader: Loader, type_name: str) -> list[str]:
    locations = tuple(filter(os.path.isdir, loader.search_paths))
    # A person's own models (~/.aws/models, AWS_DATA_PATH) may change at any time.
    if not _SHIPPED_DIRECTORIES.issuperset(locations):
        return _list_services(loader, type_name)
    key = (type_name, *locations)
    if key not in _services:
        _services[key] = _list_services(loader, type_name)
    return _services[key]
