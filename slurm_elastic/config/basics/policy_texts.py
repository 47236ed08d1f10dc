"""Reads the policies that a configuration names: ours, and other packages' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import ConfigError, describe_foreign
from slurm_elastic.policies.policy_text import Policy, split


class PolicyKind(Struct, frozen=True, kw_only=True):
    """A policy of another package. ``api``: the interface of its sort for which it is made, such as
    ``growth_kinds.API``.
    """

    policy: type[Policy]
    api: int

    @property
    def name(self) -> str:
        """The word in the configuration."""
        return str(self.policy.__struct_config__.tag)


P = TypeVar("P")
Maker = Callable[..., Any]


class _Makers(Mapping[str, Maker]):
    """The function that makes a policy, by name. A look-up may import another package."""

    def __init__(
        self, kinds: Callable[[], outside.Kinds[Any]], own_makers: Mapping[str, Maker]
    ) -> None:
        self._kinds, self._own_makers = kinds, own_makers

    def __getitem__(self, name: str) -> Maker:
        if name not in self._kinds().other_names:
            return self._own_makers[name]
        try:
            maker: Maker = self._kinds().kind(name).policy
        except ConfigError as error:
            raise ValueError(f"{name!r}, {error}") from None
        return maker

    def __contains__(self, name: object) -> bool:
        return name in self._kinds().names() or name in self._own_makers

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._own_makers, *self._kinds().names())))

    def __len__(self) -> int:
        return len(tuple(iter(self)))


class PolicyPoint(Generic[P]):
    """Reads policies of one sort: ours, and policies that packages offer by an entry point of
    ``group``.

    ``api``: the version of the sort's interface. ``noun``: the sort in messages. ``own_makers``:
    the makers of our policies. ``parse`` makes a policy from a text, by the makers of the names in
    it. ``base``: the class from which policies of other packages inherit. ``unusable`` makes a
    policy that fails whenever it is asked, from a text and the reason. ``check`` raises ValueError
    if a policy has a wrong value.
    """

    def __init__(
        self,
        *,
        group: str,
        api: int,
        noun: str,
        own_makers: Mapping[str, Maker],
        parse: Callable[[str, Mapping[str, Maker]], P],
        base: type[Policy],
        unusable: Callable[[str, str], P],
        check: Callable[[P], None] = lambda _: None,
    ) -> None:
        self.group, self._api, self._noun = group, api, noun
        self._parse, self._own_makers = parse, own_makers
        self._base, self._unusable, self._check = base, unusable, check
        self._makers = _Makers(self.table, own_makers)
        self._table: outside.Kinds[PolicyKind] | None = None

    def table(self) -> outside.Kinds[PolicyKind]:
        """The policies of this installation, read once. No package is imported."""
        if self._table is None:
            own_places = {
                name: f"{maker.__module__}:{maker.__name__}"
                for name, maker in self._own_makers.items()
            }
            other_places = outside.installed(self.group)
            self._table = outside.Kinds(PolicyKind, self._api, self._noun, own_places, other_places)
        return self._table

    def forget(self) -> None:
        """Read the entry points again at the next use."""
        self._table = None

    def checked(self, text: str) -> P:
        """The policy of a text such as ``bursts(waste=180)``. ValueError with one sentence if the
        text is no policy, or if the policy cannot be used.
        """
        try:
            policy = self._parse(text, self._makers)
            self._check_form(policy)
            hash(policy)
            msgspec.to_builtins(policy)  # the journal stores it in this form
            self._check(policy)
        except ValueError:  # its text is a sentence already
            raise
        except (Exception, SystemExit) as error:  # another package's code may raise anything
            raise ValueError(f"it cannot be made: {describe_foreign(error)}") from error
        return policy

    def of(self, text: str) -> P:
        """Make the policy of a text in a file that was checked before. If another package's policy
        can no longer be used, the result is a policy that fails whenever it is asked, so that the
        service continues.
        """
        try:
            return self.checked(text)
        except ValueError as error:
            if not self._names_in(text) & self.table().other_names:
                raise
            try:
                return self._parse(text, self._own_makers)
            except ValueError:
                return self._unusable(text, str(error))

    def _names_in(self, text: str) -> set[str]:
        """All names of policies in a text. Policies may contain policies."""
        name, parenthesis, inner = text.partition("(")
        inner_texts = split(inner.rpartition(")")[0]) if parenthesis else []
        return {name.strip()}.union(*map(self._names_in, inner_texts))

    def _check_form(self, policy: object) -> None:
        is_ours = type(policy).__module__.startswith("slurm_elastic.policies.")
        if not is_ours and not isinstance(policy, self._base):
            raise ValueError(f"{type(policy).__name__} is no {self._base.__name__}")
