"""Restore an image, after a check that it belongs to this job and is unchanged."""

from __future__ import annotations

import time
from pathlib import Path

from . import instructions, lines, outputs
from . import manifest as manifests
from .images import OpenFile
from .inventory import check_locked
from .rights import as_user
from .run import Run
from .site import WrongImage


def restore(run: Run, image: Path) -> int:
    """Restore the image and return its number after its tasks run. If that is not possible,
    RequestRefused gives the reason.
    """
    begun, caller, method = time.monotonic(), run.caller, run.method
    manifest = manifests.read(image, run.site.key)
    run.store.require_ours()
    expected = (run.meta.key(run.site.cluster), method.name, image.name)
    actual = (manifest.key, manifest.method, str(manifest.number))
    if actual != expected:
        raise WrongImage(f"it is of {actual}, not of {expected}")
    manifests.compare(image, manifest)
    started_with = instructions.of_image(image)
    with as_user(caller):
        check_locked(manifest.locked)
    method.put_back_files(image)
    not_appended = method.unappended_files(image)
    written = [OpenFile(path, n, path not in not_appended) for path, n in manifest.writing.items()]
    copies = lines.copies(run.store.path, manifest.line)
    for line in outputs.give_back(copies, run.meta.outputs, written, caller, manifest.number):
        run.report(line)
    method.restore(image, manifest)
    run.continue_from(manifest)
    run.has_changed_processor = manifest.processor not in ("", instructions.processor())
    # The restored programs have chosen on the nodes on which they were started. Programs that the
    # job starts from now on choose on this one.
    run.instructions = sorted({*started_with, *instructions.of_node()})
    seconds = time.monotonic() - begun
    run.report(f"continues from image {image.name} on {run.node}, restored in {seconds:.3f} s")
    if manifest.closed:
        run.report(f"its connections are closed: {', '.join(manifest.closed)}")
    return manifest.number
