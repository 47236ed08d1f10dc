"""Which image machines of a pool start from: by name pattern, or the newest that fits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from slurm_elastic.model.boot_image import ImageChoice


class Candidate(Struct, frozen=True, kw_only=True):
    """An image that the cloud has; ``created`` is Unix time, empty text: the cloud does not say."""

    id: str
    name: str = ""
    created: float = 0.0
    os: str = ""
    version: str = ""
    software: frozenset[str] = frozenset()


def newest(choice: ImageChoice, candidates: Iterable[Candidate]) -> Candidate | None:
    """The newest of those that lack nothing; None where there is none."""
    fitting = [c for c in candidates if not lacks(choice, c)]
    return max(fitting, key=lambda one: (one.created, one.id), default=None)


def lacks(choice: ImageChoice, one: Candidate) -> tuple[str, ...]:
    """The wishes that an image does not fulfil; empty where it fits."""
    missing = []
    if choice.name is not None and not fnmatchcase(one.name, choice.name):
        missing.append(f"name {choice.name}")
    if choice.os is not None and one.os.lower() != choice.os.lower():
        missing.append(f"os {choice.os}")
    if choice.version is not None and not _is_release(one.version, choice.version):
        missing.append(f"version {choice.version}")
    missing += [
        f"software {wanted}"
        for wanted in choice.software
        if not any(_is_release(has, wanted) for has in one.software)
    ]
    return tuple(missing)


def none_fits(choice: ImageChoice, candidates: Sequence[Candidate]) -> str:
    """The image that was looked for, among how many, and the image that lacks least."""
    text = f"no image has {wanted(choice)}; looked at {len(candidates)}"
    if not candidates:
        return text
    nearest = min(candidates, key=lambda c: (len(lacks(choice, c)), -c.created, c.id))
    missing = ", ".join(lacks(choice, nearest))
    return f"{text}, the nearest is {nearest.name or '(no name)'} ({nearest.id}), without {missing}"


def wanted(choice: ImageChoice) -> str:
    """A choice in words."""
    parts = [
        *([f"the name {choice.name}"] if choice.name is not None else ()),
        *([f"os {choice.os}"] if choice.os is not None else ()),
        *([f"version {choice.version}"] if choice.version is not None else ()),
        *(f"software {word}" for word in choice.software),
    ]
    return ", ".join(parts)


def software_of(text: str) -> frozenset[str]:
    """The words of a tag: ``slurm-24.11 cuda-12.4`` or with commas."""
    return frozenset(text.replace(",", " ").split())


def _is_release(has: str, wanted: str) -> bool:
    """``12.5`` is a ``12``, ``slurm-24.11.5`` a ``slurm-24.11``; ``120`` is no ``12``."""
    return has == wanted or has.startswith(f"{wanted}.")
