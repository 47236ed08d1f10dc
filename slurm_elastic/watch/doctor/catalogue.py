"""A cloud's catalogue: whether there is one, its age, and whether typed prices agree with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.units import format_duration, money
from slurm_elastic.config.catalogue import CATALOGUE_TTL_S, OLDEST, Catalogue
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Location, Pool
from slurm_elastic.model.finding import Finding, FindingLevel

WHAT = "catalogue"
TOLERANCE = 0.01  # a typed price may differ by this fraction


def examine(
    cloud: CloudSettings,
    pools: Sequence[Pool],
    answer: Catalogue | ProviderError | None,
    now: float,
) -> Iterator[Finding]:
    """Yield the findings; none for a cloud without ``catalogue: true``.

    ``answer`` must be the catalogue that ``cloud`` and ``pools`` were made from: slurm-elasticd may
    write another one while doctor runs.
    """
    if not cloud.catalogued:
        return
    if not isinstance(answer, Catalogue):
        yield Finding.wrong(
            WHAT,
            f"{answer.code}: {answer.message}" if answer else "none is kept yet",
            expected="the cloud's types and prices: pools have only what is typed",
            advice="once the credentials work: `slurm-elastic iam render "
            f"{cloud.provider}` writes the rights that they need",
        )
        return
    yield _age(cloud, answer, now)
    yield from _typed(cloud, answer)
    for pool in pools:
        sold = [name for name in pool.instance_types if name in cloud.shapes]
        if not sold:
            yield Finding.wrong(
                f"types of pool {pool.name}",
                "no type of the catalogue matches instance_types and has a price",
                expected="at least one type",
                advice="widen instance_types, or type one with its price",
            )


def _age(cloud: CloudSettings, catalogue: Catalogue, now: float) -> Finding:
    age = max(now - catalogue.at, 0.0)
    text = f"{len(catalogue.types)} types, {format_duration(round(age)) if age >= 1 else '0s'} old"
    if age <= 2 * CATALOGUE_TTL_S:
        return Finding.ok(WHAT, text)
    is_expired = age > OLDEST and cloud.location is Location.PUBLIC
    return Finding(
        subject=WHAT,
        level=FindingLevel.WRONG if is_expired else FindingLevel.NOTE,
        observed=f"{text}{': its prices no longer count' if is_expired else ''}",
        expected=f"at most {format_duration(CATALOGUE_TTL_S)}, after which slurm-elasticd "
        "refreshes it",
        advice="slurm-elasticd's log says why the cloud gave no newer one",
    )


def _typed(cloud: CloudSettings, catalogue: Catalogue) -> Iterator[Finding]:
    price_by_type = {offered.name: offered.price for offered in catalogue.types if offered.price}
    for name, shape in cloud.shapes.items():
        price = price_by_type.get(name)
        if price is None or abs(shape.price - price) <= TOLERANCE * price:
            continue
        low = shape.price < price
        yield Finding(
            subject=f"price of {name}",
            level=FindingLevel.WRONG if low else FindingLevel.NOTE,
            observed=f"{money(shape.price)}/h is typed, the catalogue has {money(price)}/h",
            expected="the cloud's own price: the spending cap counts with it" if low else "",
            advice="leave the type out of clouds[].types, then the catalogue's counts",
        )
