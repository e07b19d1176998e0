"""A release: a model and its guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final, overload

from numpy.typing import ArrayLike, NDArray

from tensorveil.arrays import Floats
from tensorveil.data.modes import checked_mode
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.inference.people.owners import with_owners
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.notebook import html_table
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.plan import Plan, default_names
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tensorveil.release.certificate.certificate import Certificate
    from tensorveil.release.evaluation import Evaluation
    from tensorveil.release.ledger.ledger import Ledger

Labels = NDArray[Any]

CHACHA = "ChaCha20 (20 rounds)"
CLIENTS = "the operating systems of the clients, at the source"
EXACT = "OpenDP's exact samplers on OpenSSL's generator, and ChaCha20 (20 rounds)"


class Interval(NamedTuple):
    """Predictions with the lower and upper ends of their intervals."""

    prediction: Floats
    low: Floats
    high: Floats


@final
@dataclass(frozen=True)
class Release:
    """A completed tensor with its guarantee. Everything computed from it is post-processing.

    Attributes
    ----------
    plan : None for a published algorithm, and for a release that was loaded from a folder
    labels : labels of the indices of each mode; None for a mode that is only numbered.
    bins : for modes that hold binned times: "hour", "day", "week", "weekday", ...
    ledger : the budget that paid: dataset, reservation, entry_hash
    generator : the generator that drew the noise
    certificate : for a loaded release, its certificate. For a new release, `Certificate.of` makes one.
    paid_by : the ledger that paid; `save` records the folder in it. It is neither saved nor compared.
    contributions : where the coordinates are public, how many observations an index of each mode has
    """

    model: Completion
    guarantee: Guarantee
    plan: Plan | None = None
    mode_names: tuple[str, ...] = ()
    labels: tuple[Labels | None, ...] = ()
    bins: tuple[str | None, ...] = ()
    value_name: str = "value"
    ledger: Mapping[str, str] | None = None
    generator: str = CHACHA
    certificate: Certificate | None = None
    paid_by: Ledger | None = field(default=None, repr=False, compare=False)
    contributions: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        order = len(self.model.shape)
        nothing: tuple[None, ...] = (None,) * order
        object.__setattr__(self, "mode_names", tuple(self.mode_names) or default_names(order))
        object.__setattr__(self, "labels", tuple(self.labels) or nothing)
        object.__setattr__(self, "bins", tuple(self.bins) or nothing)
        for name in ("mode_names", "labels", "bins"):
            if len(getattr(self, name)) != order:
                raise InputError(
                    f"{name} must have one item per mode ({order}), got {len(getattr(self, name))}; give one per mode"
                )
        for mode, (labels, size) in enumerate(zip(self.labels, self.model.shape, strict=True)):
            if labels is not None and len(labels) != size:
                raise InputError(f"mode {mode} must have one label per index ({size}), got {len(labels)}; give as many")

    def __repr__(self) -> str:
        told = self.guarantee
        shape = " x ".join(map(str, self.model.shape))
        return f"Release({shape}, {told.status}, epsilon {told.epsilon:g}, delta {told.delta:g}, unit {told.unit!r})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the modes."""
        return self.model.shape

    @property
    def factors(self) -> FactorModel:
        """The factor part of the model."""
        return self.model.factors

    @property
    def withheld_mode(self) -> int | None:
        """Under joint privacy, the mode whose rows stay with their owners."""
        return self.model.withheld_mode

    def mode_number(self, mode: int | str) -> int:
        """The number of a mode, by name or number."""
        return checked_mode(mode, self.mode_names)

    @overload
    def predict(self, coordinates: ArrayLike) -> Floats: ...

    @overload
    def predict(self, coordinates: ArrayLike, interval: float) -> Interval: ...

    def predict(self, coordinates: ArrayLike, interval: float | None = None) -> Floats | Interval:
        """Predicted values at integer coordinates, one row per entry.

        With `interval`, e.g. 0.9, the result is `Interval(prediction, low, high)`: an observed value lies between low
        and high with that posterior probability. Only releases with posterior draws have intervals.
        """
        predicted = self.model.predict(coordinates)
        if interval is None:
            return predicted
        return Interval(predicted, *self.model.interval(coordinates, interval))

    def predict_table(
        self,
        table: Any,
        *,
        unknown: str = "error",
        averaged: Mapping[str, ArrayLike] | None = None,
        interval: float | None = None,
    ) -> Any:
        """Add a column `prediction` to a table with one column of labels per mode; returns the same kind of table.

        Parameters
        ----------
        table : a pandas or polars data frame, an Arrow table or a dict of columns
        unknown : what to do with labels that the release does not know: "error", or "offsets" to predict such rows from
            the mean and the offsets of their known labels (`predict_rows` of release/predictions.py counts them)
        averaged : if given, modes without a column are averaged over: mode name -> weights of its indices; {} for equal
            weights everywhere
        interval : e.g. 0.9, to add columns `low` and `high` as well, between which a value lies with this probability

        Examples
        --------
        >>> import numpy as np, pyarrow as pa, tensorveil as tv
        >>> names, labels = ("user", "film"), (["ann", "bob"], [7, 9, 11])
        >>> data = tv.Observations(np.argwhere(np.ones((2, 3))), np.linspace(1, 5, 6), (2, 3), mode_names=names,
        ...     labels=labels)
        >>> plan = tv.StatisticPerturbation().plan(tv.CP(1), tv.Bounds(1, 5), "value", 9.0, shape=(2, 3),
        ...     mode_names=names)
        >>> wanted = pa.table({"user": ["bob", "ann"], "film": [7, 11]})
        >>> tv.fit(data, plan).predict_table(wanted).column_names
        ['user', 'film', 'prediction']
        """
        from tensorveil.release.predictions import predicted_table

        return predicted_table(self, table, unknown, averaged, interval)

    def top(
        self,
        known: Mapping[str, Any],
        k: int = 10,
        *,
        averaged: Mapping[str, ArrayLike | None] | None = None,
        exclude: Any = None,
        frame: str = "arrow",
    ) -> Any:
        """The k cells with the highest predictions among those with these labels; `tied` counts equal predictions.

        Parameters
        ----------
        known : mode name -> label; all labels of the other modes are tried
        k : number of cells
        averaged : modes to average over instead of trying their labels: mode name -> weights, None for equal ones
        exclude : table of cells to leave out, e.g. those that are known already
        frame : "arrow", "pandas" or "polars"
        """
        from tensorveil.release.cells.labels import to_frame
        from tensorveil.release.cells.top import top_table

        rows = {name: [label] for name, label in known.items()}
        return to_frame(top_table(self, rows, k, averaged=averaged, exclude=exclude), frame)

    def to_frame(self, kind: str = "pandas", coordinates: ArrayLike | None = None) -> Any:
        """Labels and predictions, one row per cell: of all cells (at most 10^7), or of these coordinates."""
        from tensorveil.release.predictions import completed_table

        return completed_table(self, coordinates, kind)

    def to_tensorly(self, rank: int | None = None) -> Any:
        """A TensorLy CPTensor or TuckerTensor of the completion on the scale of the values.

        It has two more attributes, which state how far it is from the predictions: `relative_error`, the norm of the
        difference over the norm of the predictions, and `rmse`, in units of the values.

        Where offsets and factors predict, the tensor is exactly what they predict before clipping: the mean and the
        offsets are folded in, as a component for the mean and one for each mode with offsets (CP), or as two columns
        per mode, its offsets and ones (Tucker). An average over posterior draws has no such form: then mean, offsets
        and factors of the same ranks are fitted to the predictions by least squares, of all cells or, of a large
        tensor, of a sample; the errors are those of other cells in that case. With `rank`, a CP model of this rank is
        fitted so. For a joint release, the tensor predicts for somebody about whom nothing is known.
        """
        from tensorveil.release.display.tensorly import tensorly_of

        return tensorly_of(self, rank)

    def evaluate(
        self, table: Any, value: str | None = None, *, own: Observations | None = None, average: Sequence[str] = ()
    ) -> Evaluation:
        """Errors of the predictions on known values, beside simple baselines. For internal use: they are not private.

        Parameters
        ----------
        table : a data frame, an Arrow table or a dict, with one column of labels per mode and one of values
        value : the column of values; by default named as in the release
        own : for a joint release, the observations of all owners, to evaluate personal predictions
        average : modes to average over, with equal weights; the table need not have columns of them
        """
        from tensorveil.release.evaluation import evaluate_table

        return evaluate_table(self, table, value, own, average)

    def plot_offsets(self, mode: int | str, *, ax: Axes | None = None) -> Axes:
        """The offset of every label of a mode, in units of the values, as bars or, of times, as a line."""
        from tensorveil.release.display.charts import plot_offsets

        return plot_offsets(self, mode, ax)

    def plot_components(self, mode: int | str, count: int = 4, *, ax: Axes | None = None) -> Axes:
        """The strongest components of a mode, one line each, by label."""
        from tensorveil.release.display.charts import plot_components

        return plot_components(self, mode, count, ax)

    def plot_slice(self, rows: int | str, columns: int | str, *, ax: Axes | None = None, **at: Any) -> Axes:
        """Predictions as a heat map of two modes; `at` gives the labels of the other modes: `day="2026-01-02"`."""
        from tensorveil.release.display.charts import plot_slice

        return plot_slice(self, rows, columns, at, ax)

    def plot_curve(self, *, ax: Axes | None = None) -> Axes:
        """Epsilon against delta: what the release guarantees at every delta."""
        from tensorveil.release.display.charts import plot_curve

        return plot_curve(self, ax)

    def _repr_html_(self) -> str:
        """The release in a notebook."""
        sizes = zip(self.shape, self.mode_names, strict=True)
        rows = [
            ("values", self.value_name),
            ("modes", ", ".join(f"{size:,} {name}" for size, name in sizes)),
            ("model", f"{self.factors.family}, {len(self.model.draws or ())} posterior draws"),
            ("guarantee", str(self.guarantee)),
            ("may be published", "yes" if self.guarantee.publishable else "no"),
        ]
        return html_table("Release", rows)

    def save(self, directory: str | Path, about: Mapping[str, str] | None = None) -> Path:
        """Write the release into a new folder and return its path. The folder is written completely or not at all.

        `about` says what the report and the certificate state for those who sign: title, data, purpose, controller,
        contact, recipients, legal_basis and run_by; what is left out is an empty line in the report. `people` names the
        mode whose indices are people: the report then shows none of their labels.

        It holds model.safetensors, labels.json, certificate.json and report.html. The ledger that paid records
        the folder, if the file of the ledger still exists.
        """
        from tensorveil.release.saving import save_release

        return save_release(self, directory, about)

    @classmethod
    def load(cls, directory: str | Path) -> Release:
        """A release from its folder; predictions are the same to the last bit.

        Hashes and the schema are checked. To recompute the guarantee as well, use `tensorveil verify`.
        """
        from tensorveil.release.saving import load_parts

        return cls(**load_parts(directory))

    def personalize(self, own_observations: Observations, mode: int | str | None = None) -> Completion:
        """The model of one person, computed from the release and that person's own observations, with intervals.

        The person may be new: an index that the release does not know. The result is for that person alone; it is not
        part of the public release. For many people at once, see `release/people/newcomers.py`.

        Parameters
        ----------
        own_observations : of one index of the mode, by the release's indices of the other modes. The size of the mode
            is that of the release for a person whom a joint release knows; otherwise it is the number of people, e.g. 1
        mode : the mode of the person; a joint release says which one it is

        Examples
        --------
        >>> import numpy as np, tensorveil as tv
        >>> data = tv.Observations(np.argwhere(np.ones((9, 8))), np.tile(np.linspace(1, 5, 8), 9), (9, 8))
        >>> plan = tv.InputPerturbation().plan(tv.CP(1), tv.Bounds(1, 5), "value", 9.0, shape=(9, 8))
        >>> mine = tv.Observations([[0, 0], [0, 7]], [1.0, 5.0], (1, 8))
        >>> tv.fit(data, plan).personalize(mine, mode=0).predict([[0, 3]]).shape
        (1,)
        """
        from tensorveil.release.people.newcomers import personal_model

        return personal_model(self, own_observations, mode)

    def with_own_rows(self, own_observations: Observations) -> Completion:
        """Under joint privacy: the model with the rows of all owners of these observations. It is not private."""
        model, mode = self.model, self.withheld_mode
        if mode is None:
            raise InputError(
                "own rows must be given only for a joint release (unit slice), got a release that is not joint, which "
                "predicts for everybody; leave them out"
            )
        if own_observations.shape != model.shape:
            raise InputError(
                f"own observations must have the shape {model.shape} of the release, got {own_observations.shape}"
            )
        data = clip(own_observations, Bounds(model.low, model.high), Unit.slice(mode), bytes(32))
        return with_owners(model, data.coordinates, data.centred, mode)
