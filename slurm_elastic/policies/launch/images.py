"""Chooses the image that a pool's machines start from: by name pattern, or the newest that fits.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from slurm_elastic.model.boot_image import ImageChoice


class Candidate(Struct, frozen=True, kw_only=True):
    """An image of the cloud. ``created``: Unix s. An empty text: the cloud does not report it."""

    id: str
    name: str = ""
    created: float = 0.0
    os: str = ""
    version: str = ""
    software: frozenset[str] = frozenset()


def newest(choice: ImageChoice, candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the newest image that fulfils ``choice``; None if none does."""
    fitting = [c for c in candidates if not lacks(choice, c)]
    # The id decides between equal times, so that each call returns the same image.
    return max(fitting, key=lambda candidate: (candidate.created, candidate.id), default=None)


def lacks(choice: ImageChoice, candidate: Candidate) -> tuple[str, ...]:
    """Return the wishes that an image does not fulfil; empty if it fits."""
    missing = []
    if choice.name is not None and not fnmatchcase(candidate.name, choice.name):
        missing.append(f"name {choice.name}")
    if choice.os is not None and candidate.os.lower() != choice.os.lower():
        missing.append(f"os {choice.os}")
    if choice.version is not None and not _is_release(candidate.version, choice.version):
        missing.append(f"version {choice.version}")
    missing += [
        f"software {software}"
        for software in choice.software
        if not any(_is_release(has, software) for has in candidate.software)
    ]
    return tuple(missing)


def none_fits(choice: ImageChoice, candidates: Sequence[Candidate]) -> str:
    """Explain which image we looked for, among how many, and which image is nearest."""
    text = f"no image has {wanted(choice)}; looked at {len(candidates)}"
    if not candidates:
        return text
    nearest = min(candidates, key=lambda c: (len(lacks(choice, c)), -c.created, c.id))
    missing = ", ".join(lacks(choice, nearest))
    return f"{text}, the nearest is {nearest.name or '(no name)'} ({nearest.id}), without {missing}"


def wanted(choice: ImageChoice) -> str:
    """Return a choice as text."""
    wishes = [
        *([f"the name {choice.name}"] if choice.name is not None else ()),
        *([f"os {choice.os}"] if choice.os is not None else ()),
        *([f"version {choice.version}"] if choice.version is not None else ()),
        *(f"software {word}" for word in choice.software),
    ]
    return ", ".join(wishes)


def software_of(text: str) -> frozenset[str]:
    """Return the words of a tag: ``slurm-24.11 cuda-12.4``, or separated by commas."""
    return frozenset(text.replace(",", " ").split())


def _is_release(release: str, wish: str) -> bool:
    """Whether ``release`` is a version of ``wish``: ``12.5`` is a ``12``, ``slurm-24.11.5`` a
    ``slurm-24.11``; ``120`` is no ``12``.
    """
    # The dot matters, or 120 would count as a 12.
    return release == wish or release.startswith(f"{wish}.")
