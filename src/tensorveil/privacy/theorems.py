"""The theorems that guarantees rest on, each with its proof page, and the mark that ties them to the code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from tensorveil.errors import InputError, UnprovenError

F = TypeVar("F", bound=Callable[..., object])


@final
@dataclass(frozen=True)
class Theorem:
    """A statement that is proven in docs/proofs.

    Attributes
    ----------
    name : its id, used by `proves`, by stages and by certificates
    page : the page in docs/proofs; the section has the theorem's name
    mechanism : the mechanism it serves, or "offsets" for the first stage that several can start with, or "ledger"
    units : the kinds of unit it covers; none for those about whole releases
    statement : in one sentence
    source : where the idea is from, as arXiv id or reference
    """

    name: str
    page: str
    mechanism: str
    units: tuple[str, ...]
    statement: str
    source: str


def _table(*theorems: Theorem) -> dict[str, Theorem]:
    return {theorem.name: theorem for theorem in theorems}


DWORK = "Dwork, McSherry, Nissim, Smith 2006, Theorem 1"
BALLE = "Balle, Wang 2018 (arXiv:1805.06530), Theorem 8"

THEOREMS = _table(
    Theorem(
        "input-values",
        "values.md",
        "input",
        ("value", "slice_values"),
        "Laplace, Gaussian or channel noise on every observed value; everything after is post-processing.",
        DWORK,
    ),
    Theorem(
        "local-channel",
        "local.md",
        "local",
        ("value",),
        "Every value goes through a public table at its source; a question asked again gets its first answer.",
        "Kasiviswanathan et al. 2011 (arXiv:0803.0924); Erlingsson, Pihur, Korolova 2014 (arXiv:1407.6981)",
    ),
    Theorem(
        "input-dense",
        "dense.md",
        "input",
        ("entry", "slice"),
        "Noise on every cell of the box, a missing one holding a public default.",
        DWORK,
    ),
    Theorem(
        "input-cells",
        "cell_symbols.md",
        "input",
        ("entry",),
        "Every cell of the box, observed or not, goes through a public table by itself.",
        "Warner 1965; Kasiviswanathan et al. 2011 (arXiv:0803.0924)",
    ),
    Theorem(
        "gradient-joint",
        "gradients.md",
        "gradient",
        ("value", "slice_values", "entry", "slice"),
        "Gradients clipped per unit over all blocks jointly, Gaussian noise on every coordinate of their sum.",
        "Abadi et al. 2016 (arXiv:1607.00133); " + BALLE,
    ),
    Theorem(
        "gradient-sampled",
        "gradients.md",
        "gradient",
        ("value", "slice_values", "entry", "slice"),
        "The same on a Poisson sample of the units.",
        "Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 11",
    ),
    Theorem(
        "gradient-rows",
        "gradients.md",
        "gradient",
        ("value", "entry"),
        "Row gradients clipped per entry and block, norm-exponential noise on every row, budgets added.",
        DWORK,
    ),
    Theorem(
        "output-exact",
        "exact_rows.md",
        "output",
        ("value",),
        "Ridge rows given released features, with their exact sensitivity to one value.",
        "Chaudhuri, Monteleoni, Sarwate 2011 (arXiv:0912.0071), Lemma 1, made exact for least squares",
    ),
    Theorem(
        "statistic-values",
        "normal_equations.md",
        "statistic",
        ("value", "slice_values"),
        "Noise on the right-hand sides of alternating least squares; their matrices read no values.",
        DWORK,
    ),
    Theorem(
        "statistic-entries",
        "normal_equations.md",
        "statistic",
        ("entry",),
        "Noise on right-hand sides and matrices of alternating least squares, on every row.",
        "Dwork, Talwar, Thakurta, Zhang 2014, Algorithm 1",
    ),
    Theorem(
        "statistic-slices",
        "normal_equations.md",
        "statistic",
        ("slice",),
        "The same with weights that bound a whole slice; the slice's own rows are never released (joint privacy).",
        "Kearns, Pai, Roth, Ullman 2014 (arXiv:1207.4084), billboard lemma",
    ),
    Theorem(
        "sums-rows",
        "row_sums.md",
        "sums",
        ("value", "slice_values"),
        "Noise on weighted sums of scores per row; counts are public.",
        DWORK,
    ),
    Theorem(
        "sums-pairs",
        "row_sums.md",
        "sums",
        ("entry", "slice"),
        "Noise on paired sums of scores per row, of which one observation moves both together by at most one.",
        DWORK,
    ),
    Theorem(
        "sums-lengths",
        "lengths.md",
        "sums",
        ("slice",),
        "Noise on sums and counts per row, where the part of each slice is a vector of length one.",
        DWORK,
    ),
    Theorem(
        "histogram",
        "histogram.md",
        "offsets",
        ("value", "slice_values", "entry", "slice"),
        "Noise on the weighted counts of values in cells of the bounds; a whole slice weighs one at most.",
        DWORK,
    ),
    Theorem(
        "ledger-filter",
        "ledger.md",
        "ledger",
        (),
        "What a ledger admits keeps its budget, however later releases are chosen by the outputs of earlier ones.",
        "Rogers, Roth, Ullman, Vadhan 2016 (arXiv:1605.08294); Feldman, Zrnic 2021 (arXiv:2008.11193); "
        "Smith, Thakurta 2022 (arXiv:2210.17520)",
    ),
    Theorem(
        "two-parts",
        "update.md",
        "ledger",
        (),
        "Two releases, the later of which reads the earlier, cost the larger epsilon if no unit is in both parts.",
        "McSherry 2009, Theorem 4 (parallel composition), made adaptive; Dwork, Roth 2014, Theorem B.1",
    ),
    Theorem(
        "coupled-tables",
        "coupled.md",
        "ledger",
        (),
        "Stages that answer once about each of two tables cost one unit, which is in one of them, what they cost once.",
        "McSherry 2009, Theorem 4 (parallel composition), made adaptive",
    ),
    Theorem(
        "ledger-units",
        "ledger.md",
        "ledger",
        (),
        "A release under one unit, priced for the unit of a data set that it is charged to.",
        "Dwork, Roth 2014, group privacy; Dong, Roth, Su 2019 (arXiv:1905.02383), group privacy; "
        "Mironov 2017 (arXiv:1702.07476), weak triangle inequality",
    ),
)

PROVEN_FUNCTIONS: dict[str, list[str]] = {}  # theorem -> the functions that state its sensitivity


def proves(*names: str) -> Callable[[F], F]:
    """Mark the function that returns a sensitivity with the theorems that prove it."""
    for name in names:
        if name not in THEOREMS:
            raise InputError(f"proves must name a theorem of THEOREMS, got {name!r}; add it with its proof first")

    def mark(function: F) -> F:
        for name in names:
            PROVEN_FUNCTIONS.setdefault(name, []).append(f"{function.__module__}.{function.__qualname__}")
        return function

    return mark


def covering(mechanism: str, unit_kind: str) -> tuple[Theorem, ...]:
    """The theorems of a mechanism for a kind of unit; raises UnprovenError where there is none."""
    found = tuple(
        theorem for theorem in THEOREMS.values() if theorem.mechanism == mechanism and unit_kind in theorem.units
    )
    if not found:
        others = sorted(
            {
                theorem.mechanism
                for theorem in THEOREMS.values()
                if unit_kind in theorem.units and theorem.mechanism not in ("offsets", "local")
            }
        )
        raise UnprovenError(
            f"mechanism and unit must have a theorem, got {mechanism!r} with unit {unit_kind!r}, which has none; "
            f"for this unit use {', '.join(others)}"
        )
    return found
