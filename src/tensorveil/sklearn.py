"""An estimator of scikit-learn: every `fit` is a release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats
from tensorveil.data.features import Smooth
from tensorveil.data.observations import Observations
from tensorveil.data.readers.columns import split_bins
from tensorveil.data.tables import plain_column
from tensorveil.errors import InputError, MissingDependencyError
from tensorveil.release.fitting import complete
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.predictions import predicted_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from tensorveil.mechanisms.base import Mechanism
    from tensorveil.models.factor_model import ModelFamily
    from tensorveil.privacy.bounds import Bounds
    from tensorveil.privacy.guarantee import Guarantee
    from tensorveil.privacy.units import Unit

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingDependencyError(
        "tensorveil.sklearn needs scikit-learn 1.6 or later, which is not installed; "
        'install it with pip install "tensorveil[sklearn]"'
    ) from error

WHOLE = 2**53  # up to here a float is one whole number


class TensorCompleter(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Completion of a partly observed tensor under differential privacy, as a regressor on labels.

    A row of X names a cell of the tensor, by one label per mode; y holds the values. **Every fit is a release**, and
    the costs of several add up: of a grid search, of cross-validation, and of trying again. So `fit` needs a ledger,
    which pays and refuses once the budget is spent, or your word that you count the releases yourself.

    Parameters
    ----------
    bounds : (low, high), the public range of the values; it must be given
    unit : what is protected: "value", "entry", "slice:user", "slice_values:user"; it must be given
    epsilon : what each fit costs; it must be given
    delta : 0 for pure privacy, or e.g. 1e-6
    model : "cp", "nonnegative", "tucker", "auto", or CP(rank, nonnegative=...) or Tucker(ranks)
    mechanism : "auto", the name of a mechanism, or a mechanism
    levels, at_most, expected_count, features, smooth : as for `tensorveil.complete`
    bins, labels, shape, first_index, public_labels, duplicates : as for `Observations.from_table`, by the columns of X
    unknown : for labels that were not in X at `fit`: "offsets" predicts from the labels that were, "error" refuses
    ledger, dataset : the budget that pays for each fit: a Ledger or its path, and the name of the data set
    each_fit_is_a_release : True if there is no ledger, as your word that you know it and count the fits yourself
    random_state : a seed for experiments. **A seeded release must not be published**, and no ledger pays for it

    Attributes
    ----------
    release_ : the `Release`: to save it, to predict with intervals, to read its certificate
    guarantee_ : its guarantee
    n_features_in_, feature_names_in_ : the number of modes, and their names if X is a data frame

    Examples
    --------
    >>> import numpy as np
    >>> from tensorveil.sklearn import TensorCompleter
    >>> X, y = np.argwhere(np.ones((6, 5))), np.tile([1.0, 2, 3, 4, 5], 6)
    >>> how = {"mechanism": "statistic", "each_fit_is_a_release": True}
    >>> completer = TensorCompleter(bounds=(1, 5), unit="value", epsilon=5.0, **how)
    >>> completer.fit(X, y).predict([[0, 4], [3, 1]]).shape
    (2,)
    >>> completer.guarantee_.status
    'proven'
    """

    release_: Any
    guarantee_: Guarantee

    def __init__(
        self,
        *,
        bounds: Bounds | tuple[float, float] | None = None,
        unit: str | Unit | None = None,
        epsilon: float | None = None,
        delta: float = 0.0,
        model: ModelFamily | str = "cp",
        mechanism: Mechanism | str = "auto",
        levels: Sequence[float] | None = None,
        at_most: int | None = None,
        expected_count: int | None = None,
        features: Mapping[str, Any] | None = None,
        smooth: Smooth | None = None,
        bins: Mapping[str, str] | None = None,
        labels: Mapping[str, Any] | None = None,
        shape: Sequence[int | None] | None = None,
        first_index: int = 0,
        public_labels: Sequence[str] = (),
        duplicates: str = "keep",
        unknown: str = "offsets",
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        each_fit_is_a_release: bool = False,
        random_state: Any = None,
    ) -> None:
        self.bounds = bounds
        self.unit = unit
        self.epsilon = epsilon
        self.delta = delta
        self.model = model
        self.mechanism = mechanism
        self.levels = levels
        self.at_most = at_most
        self.expected_count = expected_count
        self.features = features
        self.smooth = smooth
        self.bins = bins
        self.labels = labels
        self.shape = shape
        self.first_index = first_index
        self.public_labels = public_labels
        self.duplicates = duplicates
        self.unknown = unknown
        self.ledger = ledger
        self.dataset = dataset
        self.each_fit_is_a_release = each_fit_is_a_release
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Release a model of the values y in the cells X; the budget is spent from here on."""
        if self.ledger is None and self.each_fit_is_a_release is not True:
            raise InputError(
                "ledger and dataset must be given, because every fit is a release and costs add up, got none; create "
                "a Ledger, or state each_fit_is_a_release=True and count the fits yourself"
            )
        cells, values = validate_data(
            self, X, y, dtype=None, y_numeric=True, ensure_min_features=2, ensure_min_samples=2
        )
        table, bins = self._modes_of(X, cells)
        whole = {name for name, column in table.items() if _is_whole(column)}
        data = Observations.from_table(
            {**_labels_of(table, whole), _value_name(table): np.asarray(values, dtype=np.float64)},
            list(table),
            _value_name(table),
            bins=bins,
            labels=self.labels,
            shape=self.shape,
            first_index=self.first_index,
            public_labels=self.public_labels,
            duplicates=self.duplicates,
        )
        self.release_ = complete(
            data,
            self.model,
            self.bounds,
            self.unit,
            self.epsilon,
            self.delta,
            mechanism=self.mechanism,
            levels=self.levels,
            expected_count=self.expected_count,
            at_most=self.at_most,
            features=self.features,
            smooth=self.smooth,
            seed=_seed(self.random_state),
            ledger=Ledger(self.ledger) if isinstance(self.ledger, str | Path) else self.ledger,
            dataset=self.dataset,
        )
        self.guarantee_ = self.release_.guarantee
        return self

    def predict(self, X: Any) -> Floats:
        """Predicted values of cells, by labels; post-processing, which costs nothing."""
        return self._predicted(X, None)[0]

    def predict_interval(self, X: Any, share: float = 0.9) -> tuple[Floats, Floats]:
        """Ends between which a value lies with this posterior probability."""
        low, high = self._predicted(X, share)[1:]
        return low, high

    def _predicted(self, X: Any, share: float | None) -> tuple[Floats, ...]:
        check_is_fitted(self)
        cells = validate_data(self, X, dtype=None, reset=False)
        table, _ = self._modes_of(X, cells)
        kinds = zip(self.release_.mode_names, self.release_.labels, strict=True)
        whole = {name for name, labels in kinds if labels is None or labels.dtype.kind in "iu"}  # not by X at `fit`
        found, _ = predicted_arrow(self.release_, _labels_of(table, whole), self.unknown, interval=share)
        names = ("prediction",) if share is None else ("prediction", "low", "high")
        return tuple(np.array(found.column(name).to_pylist(), dtype=np.float64) for name in names)

    def _modes_of(self, X: Any, cells: NDArray[Any]) -> tuple[dict[str, pa.Array], dict[str, str]]:
        """The column of each mode, and bins by mode: two modes share a column of times that is binned by day+hour."""
        given = _columns(X, cells, self.feature_names_in_ if hasattr(self, "feature_names_in_") else None)
        columns, bins = split_bins(dict(zip(given, given, strict=True)), self.bins)
        return {mode: given[column] for mode, column in (columns or {}).items()}, bins

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.regressor_tags.poor_score = True  # labels that are all different, as in checks, tell nothing
        tags.non_deterministic = self.random_state is None
        return tags


def _columns(X: Any, cells: NDArray[Any], names: Any) -> dict[str, pa.Array]:
    """The columns of a data frame as they are, or those of an array, which are called mode_0, mode_1, ..."""
    import pyarrow as pa

    if names is not None and hasattr(X, "__arrow_c_stream__"):
        table = pa.table(X)
        return {str(name): plain_column(table.column(str(name))) for name in names}
    named = [f"mode_{number}" for number in range(cells.shape[1])] if names is None else [str(name) for name in names]
    return {name: _array(cells[:, number]) for number, name in enumerate(named)}


def _array(cells: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(cells.tolist())
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # labels of several kinds
        return pa.array([_text(cell) for cell in cells.tolist()])


def _labels_of(table: Mapping[str, pa.Array], whole: set[str]) -> dict[str, pa.Array]:
    """Columns of labels: whole numbers where these are named, otherwise texts, or dates as they are."""
    return {name: _as_whole(column) if name in whole else _as_text(column) for name, column in table.items()}


def _is_whole(column: pa.Array) -> bool:
    """Whether all labels of a column are whole numbers, also ones that are written as floats."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        return True
    if not pa.types.is_floating(column.type):
        return False
    numbers = np.array(column.to_pylist(), dtype=np.float64)
    return bool((np.abs(numbers) <= WHOLE).all() and (numbers == np.floor(numbers)).all())


def _as_whole(column: pa.Array) -> pa.Array:
    """Whole numbers; empty, which is an unknown label, where a cell holds none."""
    import pyarrow as pa

    def whole(cell: Any) -> int | None:
        try:
            number = float(cell)
        except (TypeError, ValueError):
            return None
        return int(number) if number == np.floor(number) and abs(number) <= WHOLE else None

    if pa.types.is_integer(column.type):
        return column
    return pa.array([whole(cell) for cell in column.to_pylist()], pa.int64())


def _as_text(column: pa.Array) -> pa.Array:
    """Texts; dates and timestamps as they are."""
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_temporal(column.type):
        return column
    return pa.array([_text(cell) for cell in column.to_pylist()], pa.string())


def _text(cell: Any) -> str:
    """A label as text: a float that is whole as a whole number, whatever the other cells are."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _value_name(table: Mapping[str, Any]) -> str:
    name = "value"
    while name in table:
        name += "_"
    return name


def _seed(random_state: Any) -> int | None:
    if random_state is None or isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))
