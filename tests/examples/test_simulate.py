"""The notebook of the simulator's interface: what readers see beside its cells is what these print.

``UPDATE_GOLDEN=1`` writes the outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "simulate.ipynb"


def printed(cell: dict[str, Any], names: dict[str, Any]) -> list[dict[str, Any]]:
    """What the cell prints, as a notebook keeps it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    text = out.getvalue().splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


def test_the_notebook_shows_what_its_cells_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    for file in EXAMPLES.glob("simulate.*"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 4
    found = [printed(cell, names) for cell in code]
    if os.environ.get("UPDATE_GOLDEN"):
        for number, (cell, outputs) in enumerate(zip(code, found, strict=True), 1):
            cell.update(execution_count=number, outputs=outputs)
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    assert [cell["outputs"] for cell in code] == found
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
