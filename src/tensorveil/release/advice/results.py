"""What an advice holds, and how it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.release.advice.made_up import SIGNALS

LEARNED = 0.05  # of what a signal explains: a smaller part counts as nothing beyond the mean
NOTHING = "nothing beyond the mean can be learned"


@final
@dataclass(frozen=True)
class Row:
    """The expected error of one model at one epsilon, as shares of the spread of the values.

    Attributes
    ----------
    model : the model of the plan, e.g. CP(12)
    mechanism : the name of the mechanism that the plan takes at this epsilon
    errors : signal -> error
    mean : the error of the mean alone, released with the same budget
    tried : shape and count of the made-up tensors; smaller than the real ones where those are large
    """

    model: str
    epsilon: float
    mechanism: str
    errors: Mapping[str, float]
    mean: float
    tried: tuple[tuple[int, ...], int]

    @property
    def learned(self) -> tuple[str, ...]:
        """The signals of which something can be learned."""
        return tuple(
            name for name, error in self.errors.items() if (1 - error**2) / SIGNALS[name] >= LEARNED and error < 1
        )


@final
@dataclass(frozen=True)
class Advice:
    """What to expect of a release: `print` it, or read its rows.

    Attributes
    ----------
    rows : one per model and epsilon
    shape, count : the public shape, and the number of observations, which is a guess where it is not public
    unit : what is protected
    wanted : the wanted error, as a share of the spread, or None
    """

    rows: tuple[Row, ...]
    shape: tuple[int, ...]
    count: int
    unit: str
    wanted: float | None = None

    def smallest_epsilon(self, model: str, signal: str, wanted: float) -> float | None:
        """The smallest epsilon with at most this error, between the tried ones by interpolation; None if there is none.

        The error is taken to fall with epsilon. Below the smallest tried epsilon nothing is known.
        """
        checks.choice("signal", signal, tuple(SIGNALS))
        checks.positive_number("wanted", wanted)
        rows = sorted((row for row in self.rows if row.model == model), key=lambda row: row.epsilon)
        if not rows:
            raise InputError(f"model must be one of {[row.model for row in self.rows]}, got {model!r}")
        places = np.log([row.epsilon for row in rows])
        errors = np.minimum.accumulate([row.errors[signal] for row in rows])
        if errors[-1] > wanted:
            return None
        first = int(np.argmax(errors <= wanted))
        if first == 0:
            return float(rows[0].epsilon)
        share = (errors[first - 1] - wanted) / (errors[first - 1] - errors[first])
        return float(math.exp(places[first - 1] + share * (places[first] - places[first - 1])))

    def to_json(self) -> dict[str, Any]:
        """The advice as plain values."""
        return {
            "shape": list(self.shape),
            "count": self.count,
            "unit": self.unit,
            "rows": [
                {"model": row.model, "epsilon": row.epsilon, "mechanism": row.mechanism, "mean": row.mean}
                | {"errors": dict(row.errors), "learned": list(row.learned)}
                | {"tried": {"shape": list(row.tried[0]), "count": row.tried[1]}}
                for row in self.rows
            ],
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The advice in words."""
        return [*self._about_nothing(), *self._about_wanted(), self._about_tensors()]

    def _about_nothing(self) -> list[str]:
        found = []
        for model in dict.fromkeys(row.model for row in self.rows):
            rows = [row for row in self.rows if row.model == model]
            hopeless = [row.epsilon for row in rows if not row.learned]
            if hopeless:
                found.append(f"{model}: at epsilon {max(hopeless):g}, {NOTHING}, even from a strong signal.")
            weak = [row.epsilon for row in rows if row.learned and "weak" not in row.learned]
            if weak:
                found.append(f"{model}: at epsilon {max(weak):g}, {NOTHING} from a weak signal.")
        return found

    def _about_wanted(self) -> list[str]:
        if self.wanted is None:
            return []
        found = []
        for model in dict.fromkeys(row.model for row in self.rows):
            parts = []
            smallest = min(row.epsilon for row in self.rows)
            for signal, explained in SIGNALS.items():
                epsilon = self.smallest_epsilon(model, signal, self.wanted)
                if epsilon is not None:
                    parts.append(f"{signal} {'at most ' if epsilon == smallest else ''}{epsilon:.2g}")
                elif math.sqrt(1 - explained) > self.wanted:
                    parts.append(f"{signal} none (without privacy it leaves {math.sqrt(1 - explained):.2g})")
                else:
                    parts.append(f"{signal} above {max(row.epsilon for row in self.rows):g}")
            found.append(f"{model}: smallest epsilon for an error of {self.wanted:g}, by signal: {', '.join(parts)}.")
        return found

    def _about_tensors(self) -> str:
        text = "Errors were measured on made-up tensors, and no private value was read. "
        smaller = sorted({row.tried for row in self.rows if row.tried != (self.shape, self.count)})
        if not smaller:
            return text + "They have the same shape and count."
        told = " or ".join(f"{' x '.join(map(str, shape))} with {count:,} observations" for shape, count in smaller)
        return text + (
            f"To save time, some are smaller than the data: {told}. Modes that were scaled down have as many "
            "observations per index as before."
        )

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        lines = [
            f"advice for {sizes} with {self.count:,} observations, unit {self.unit}",
            "expected error as a share of the values' spread, by strength of the signal:",
            f"{'model':<22} {'epsilon':>8} {'weak':>6} {'middling':>9} {'strong':>7} {'mean':>6}  mechanism",
        ]
        for row in self.rows:
            weak, middling, strong = (row.errors[name] for name in SIGNALS)
            lines.append(
                f"{row.model:<22} {row.epsilon:>8g} {weak:>6.2f} {middling:>9.2f} {strong:>7.2f} {row.mean:>6.2f}  "
                f"{row.mechanism}"
            )
        return "\n".join([*lines, *self.sentences()])
