"""The base of all causes: why something was decided, as data."""

from __future__ import annotations

import re

from msgspec import Struct

from slurm_elastic.base.sentence import Sentence


def _tag(name: str) -> str:
    """The tag of a class: its name in lower case, words joined by ``-``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


class Cause(Struct, frozen=True, kw_only=True, tag_field="kind", tag=_tag):
    """Why something was decided. Program logic compares causes and reads their fields. The
    ``sentence`` is only for people, and is built when it is shown.
    """

    @property
    def words(self) -> str:
        """The text of the sentence, without a full stop; only ``sentence`` and ``str`` read it."""
        raise NotImplementedError(type(self).__name__)

    @property
    def sentence(self) -> Sentence:
        """The cause for people."""
        return Sentence(self.words)

    def __str__(self) -> str:
        return self.words


class Quoted(Cause, frozen=True, kw_only=True):
    """A cause of which only the sentence is known, such as the error text of a cloud or the reason
    that a person gave.
    """

    text: str

    @property
    def words(self) -> str:
        return self.text
