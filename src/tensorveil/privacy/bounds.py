"""Public bounds of values, and the clipping that makes them true."""

from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data.cells import places_in_cells, stable_order
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, UnprovenError
from tensorveil.privacy.noise.secret_words import RowWords
from tensorveil.privacy.units import Unit

SMALLEST_WIDTH, LARGEST_WIDTH = 1e-200, 1e150  # what follows a release takes squares of values
MOST_OBSERVATIONS = 2**30  # so that no sum of whole numbers leaves int64
VALUE_STEPS = 2**20  # centred values are whole multiples of 2^-20, so that sums of them are exact


@final
@dataclass(frozen=True)
class Bounds:
    """The public range that values are clipped to; never read off the data.

    Examples
    --------
    >>> Bounds(1, 5).width
    4.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = checks.finite_number("low", self.low), checks.finite_number("high", self.high)
        if not low < high:
            raise InputError(f"bounds must have low below high, got {low:g} and {high:g}; swap or widen them")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        wide = SMALLEST_WIDTH <= high - low <= LARGEST_WIDTH
        if not wide or self.steps(np.array([low, high])).tolist() != [-VALUE_STEPS, VALUE_STEPS]:  # too few floats
            raise InputError(
                f"bounds must be 1e-200 to 1e150 apart, and far enough apart for floating-point numbers of their size, "
                f"got {low!r} and {high!r}; scale the bounds and the values, or subtract a constant from them"
            )

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low

    @property
    def middle(self) -> float:
        """Half way between low and high: the public centre."""
        return self.low + self.width / 2

    def centred(self, values: Floats) -> Floats:
        """Values on the scale where the bounds are -1 and 1."""
        return np.asarray((values - self.middle) / (self.width / 2))

    def steps(self, values: Floats) -> Integers:
        """Finite values, clipped to the bounds, as whole steps from -2^20 at low to 2^20 at high."""
        centred = self.centred(np.clip(values, self.low, self.high))
        return np.rint(np.clip(centred, -1.0, 1.0) * VALUE_STEPS).astype(np.int64)

    def uncentred(self, values: Floats) -> Floats:
        """Values back on their own scale."""
        return np.asarray(self.middle + values * (self.width / 2))


@dataclass(frozen=True)
class Where:
    """Where values were observed, in the order of the coordinates: what weights may read."""

    coordinates: NDArray[np.uint32]
    shape: tuple[int, ...]
    unit: Unit

    def __len__(self) -> int:
        return len(self.coordinates)

    def index(self, mode: int) -> Integers:
        """Each observation's index in a mode."""
        return self.coordinates[:, mode].astype(np.int64)


def identities(coordinates: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Coordinates, sorted, and the place within the cell: one row per observation, no two alike."""
    return np.column_stack([coordinates, places_in_cells(coordinates).astype(np.uint32)])


@final
@dataclass(frozen=True)
class BoundedObservations(Where):
    """Observations whose values keep to public bounds: the only thing a mechanism accepts; made by `clip`.

    They are sorted by coordinates, and several observations of one cell by their steps.

    Attributes
    ----------
    steps : centred values times 2^20, whole numbers from -2^20 to 2^20: the bounds are at -1 and 1 exactly
    layouts : what queries keep between two questions about the same observations, e.g. an order of the rows.
    """

    steps: Integers
    layouts: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def centred(self) -> Floats:
        """Centred values, from -1 to 1, exactly the steps over 2^20."""
        return np.asarray(self.steps / VALUE_STEPS)

    def with_steps(self, steps: Integers) -> Self:
        """The same observations with other values, in steps."""
        return replace(self, steps=steps, layouts={})

    def kept(self, chosen: NDArray[np.bool_]) -> Self:
        """The chosen observations, in the same order."""
        return replace(self, coordinates=self.coordinates[chosen], steps=self.steps[chosen], layouts={})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "layouts": {}}  # another process makes its own

    def __repr__(self) -> str:
        return f"BoundedObservations({' x '.join(map(str, self.shape))}, unit {self.unit})"


def check_public(observations: Any, unit: Unit) -> None:
    """Refuse observations, or shards, whose shape, labels or merged values would tell what the unit keeps private."""
    if unit.coordinates_public:
        return
    if observations.duplicates == "mean":
        raise UnprovenError(
            f'observations merged by duplicates="mean" have no theorem for the unit {unit}, because one of several '
            'values moves a mean by an amount that depends on the others; read them with duplicates="keep"'
        )
    if observations.inferred_modes:
        inferred = ", ".join(observations.inferred_modes)
        raise UnprovenError(
            f"labels must be public for the unit {unit}, got those of {inferred} read off the data, "
            "which tells who is in it; give labels or a shape, or state public_labels if they are known to everybody"
        )


def clip(observations: Observations, bounds: Bounds, unit: Unit, key: bytes) -> BoundedObservations:
    """Clip values to the bounds and slices to `at_most` observations; silent about how many it touched.

    This is the only way from observations to a mechanism, and the one place that forgets the order of the rows, which
    is private under every unit: a file may be sorted by value. The result is sorted by coordinates, and several
    observations of one cell by their clipped values. What is kept of a slice depends on that slice alone, and which
    coordinates are kept does not depend on values: see docs/proofs/contributions.md.
    """
    if not isinstance(observations, Observations):
        raise InputError(f"observations must be Observations, got {type(observations).__name__}; build them first")
    if len(observations) > MOST_OBSERVATIONS:
        raise InputError("observations must be at most 2^30, got more; complete parts of the tensor")
    resolved = unit.resolved(observations.mode_names)
    check_public(observations, resolved)
    if not np.isfinite(observations.values).all():  # cast to a whole number, NaN would be -2^63 steps
        raise InputError("values must be finite, got NaN or infinite ones; leave those observations out")
    coordinates, steps = observations.coordinates, bounds.steps(observations.values)
    order = stable_order((*coordinates.T, steps + VALUE_STEPS), (*observations.shape, 2 * VALUE_STEPS + 1))
    coordinates, steps = coordinates.take(order, axis=0), steps[order]
    if resolved.at_most is not None:
        kept = _kept(coordinates, resolved, key)
        coordinates, steps = coordinates[kept], steps[kept]
    coordinates.setflags(write=False)
    steps.setflags(write=False)
    return BoundedObservations(coordinates, observations.shape, resolved, steps)


def _kept(coordinates: NDArray[np.uint32], unit: Unit, key: bytes) -> NDArray[np.bool_]:
    """Which observations, sorted by cell, are kept: of every slice the `at_most` with the smallest hashes."""
    slices = coordinates[:, unit.mode_number]
    order = np.lexsort((RowWords(key).of(identities(coordinates)), slices))
    kept = np.zeros(len(coordinates), dtype=np.bool_)
    kept[order] = places_in_cells(slices[order, None]) < (unit.at_most or 0)
    return kept
