"""The complaints about one document, each with its place in the file."""

from __future__ import annotations

from slurm_elastic.config.document import KeyPath, YamlDocument


class Problems:
    """The complaints about one document, each with its place."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self._complaints: list[tuple[int, str]] = []
        self.notes: list[str] = []
        """Sentences about keys that are no mistake, such as removed keys."""
        for line, path, text in document.repeated:
            self.add_line(line, self._placed(path, text))

    def add(self, path: KeyPath, actual: str, expected: str, hint: str | None = None) -> None:
        """Add ``FILE:LINE: PATH: found ..., expected ...[; did you mean ...?]``."""
        if self.document.is_todo(path):
            return  # ``todo_steps`` reports the missing value
        text = self._placed(path, f"found {actual}, expected {expected}")
        self.add_line(self.document.line(path), f"{text}; did you mean {hint}?" if hint else text)

    def note(self, path: KeyPath, text: str) -> None:
        """Add ``FILE:LINE: PATH: TEXT``, which is no complaint."""
        line = self.document.line(path)
        self.notes.append(f"{self.document.source}:{line}: {self._placed(path, text)}")

    def _placed(self, path: KeyPath, text: str) -> str:
        place = self.document.locate(path)
        return f"{place}: {text}" if place else text

    def add_line(self, line: int, text: str) -> None:
        """Add ``FILE:LINE: TEXT``."""
        self._complaints.append((line, f"{self.document.source}:{line}: {text}"))

    def sentences(self) -> tuple[str, ...]:
        """The complaints in the order of the file, each once."""
        ordered = [text for _, text in sorted(self._complaints, key=lambda item: item[0])]
        return tuple(dict.fromkeys(ordered))
