"""Images of one job that do not follow from each other.

A run continues from an older image, or starts over, if its node cannot use the newest one. The
images that it makes are of a new line, with copies of the outputs of their own. The newer image
stays whole even if this run's saves fail, because another node may be able to use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .manifest import ImageManifest


def copies(directory: Path, line: int) -> Path:
    """Return the directory with the copies of a line of the job in ``directory``. A line has the
    number of its first image, and the job's first line is 0.
    """
    return directory / (f"keep-{line}" if line else "keep")


def leaves_line(
    numbers: Iterable[int], manifests: Sequence[ImageManifest], line: int, parent: int
) -> bool:
    """Return whether a run that continues from image ``parent`` leaves the line: it has newer
    images. An image whose manifest cannot be read may be of any line.
    """
    in_other_lines = {image.number for image in manifests if image.line != line}
    return any(number > parent and number not in in_other_lines for number in numbers)


def needed(manifests: Mapping[int, ImageManifest], keep: int) -> set[int]:
    """Return the numbers of the images to keep: the newest one with its parents, ``keep`` in
    total, and the best image of other lines until the newest has more work in it.
    """
    if not manifests:
        return set()
    newest = manifests[max(manifests)]
    chain = [newest]
    while len(chain) < keep and (parent := manifests.get(chain[-1].parent)) is not None:
        chain.append(parent)
    kept = {image.number for image in chain}
    candidates = [image for image in manifests.values() if image.number not in kept]
    best = max(candidates, key=lambda image: (image.worked, image.number), default=newest)
    return kept | ({best.number} if best.worked > newest.worked else set())
