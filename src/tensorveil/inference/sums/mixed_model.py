"""Effects from noisy sums: the exact Gaussian posterior of a linear mixed model that is observed only through sums.

The sums are S = sum_c B_c theta_c + A e + noise: B_c is what a coefficient of effect c adds to each sum, theta_c ~ N(0,
v_c), e ~ N(0, sigma^2) is the residual of each value, and the variance of the noise on each sum is known. So

    C = sum_c v_c B_c B_c^T + sigma^2 A A^T + D,    E[theta_c | S] = v_c B_c^T C^-1 S,

solved by conjugate gradients: no matrix of sums by sums is formed. The variances v_c and sigma^2 are fitted to the same
released sums (marginal likelihood; the MM algorithm of Zhou, Hu, Zhou, Lange 2019, arXiv:1509.07426), held near generic
values by a weak prior. Effects of a mode that are not significant (a score test at v_c = 0) are left
out: generic variances may be far too large for the data, and noise would then be mistaken for offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PROBES = 8  # random signs that estimate traces
ROUNDS = 6  # of fitting variances
PRIOR_COUNT = 4.0  # coefficients' worth of belief in the generic variances
SMALLEST_CHANGE, LARGEST_CHANGE = 1e-4, 1e2  # of a variance against its generic value
ROUGH, FINE = 1e-2, 1e-8  # relative error of conjugate gradients, while variances are fitted and at the end
MOST_STEPS = 1000
SIGNIFICANT = 3.0  # standard deviations of the score, from which on the effects of a mode are believed


@final
@dataclass(frozen=True)
class Effect:
    """Coefficients that share one prior variance.

    Attributes
    ----------
    design : matrix, dense or scipy.sparse, one row per sum and one column per coefficient
        What each coefficient adds to each sum.
    variance : float
        The generic prior variance of a coefficient.
    fitted : bool
        Whether the variance is fitted to the sums.
    group : int or None
        Effects of one group are left out together if they are not significant. Effects with group None are always kept.
    """

    design: Any
    variance: float
    fitted: bool = True
    group: int | None = None


@final
class SumsPosterior:
    """The posterior of effects given noisy sums.

    Parameters
    ----------
    sums : the released sums
    noise_variances : of the noise on each of them
    overlap : A A^T, a sparse matrix: the overlap of each pair of sums
    residual_variance : the generic variance of a value around the model
    effects : by name
    rounds : number of updates of the variances; 0 keeps the generic ones
    fit_residual : whether the residual variance is fitted as well

    Attributes
    ----------
    coefficients : dict
        Posterior means by effect.
    variances : dict
        The variances in use, by effect, and "residual".
    """

    def __init__(
        self,
        sums: Floats,
        noise_variances: Floats,
        overlap: Any,
        residual_variance: float,
        effects: Mapping[str, Effect],
        rounds: int = ROUNDS,
        fit_residual: bool = True,
    ) -> None:
        self._noise = np.maximum(np.asarray(noise_variances, dtype=np.float64), 1e-300)
        self._overlap = overlap
        self._designs = {name: effect.design for name, effect in effects.items()}
        self._transposes = {name: _transposed(design) for name, design in self._designs.items()}
        self._diagonals = {name: _row_squares(design) for name, design in self._designs.items()}
        self._diagonals["residual"] = np.asarray(overlap.diagonal(), dtype=np.float64)
        self._generic = {name: effect.variance for name, effect in effects.items()}
        self._generic["residual"] = residual_variance
        fitted = [name for name, effect in effects.items() if effect.fitted]
        fitted += ["residual"] if fit_residual else []
        self.variances = dict(self._generic)
        if rounds:
            self._fit(np.asarray(sums, dtype=np.float64), fitted, rounds)
        for group in dict.fromkeys(effect.group for effect in effects.values() if effect.group is not None):
            names = [name for name, effect in effects.items() if effect.group == group]
            self._gate(np.asarray(sums, dtype=np.float64), names)
        weights = self._solve(np.asarray(sums, dtype=np.float64)[:, None], FINE)
        self.coefficients: dict[str, Floats] = {
            name: np.asarray(self.variances[name] * (transpose @ weights)).ravel()
            for name, transpose in self._transposes.items()
        }

    def _fit(self, sums: Floats, fitted: list[str], rounds: int) -> None:
        """v <- v sqrt((S^T C^-1 G C^-1 S) / tr(C^-1 G)), G = B B^T, with PRIOR_COUNT coefficients more."""
        probes = np.random.default_rng(0).choice([-1.0, 1.0], (len(sums), PROBES))
        for _ in range(rounds):
            solved = self._solve(np.column_stack([sums, probes]), ROUGH)
            found, traced = solved[:, :1], solved[:, 1:]
            for name in fitted:
                if name == "residual":
                    explained = float((found * (self._overlap @ found)).sum())
                    expected = float((probes * (self._overlap @ traced)).sum()) / PROBES
                else:
                    transpose = self._transposes[name]
                    explained = float(np.square(transpose @ found).sum())
                    expected = float(((transpose @ probes) * (transpose @ traced)).sum()) / PROBES
                now, generic = self.variances[name], self._generic[name]
                ratio = (explained * now + PRIOR_COUNT * generic / now) / (max(expected, 0.0) * now + PRIOR_COUNT)
                self.variances[name] = float(
                    np.clip(now * np.sqrt(ratio), generic * SMALLEST_CHANGE, generic * LARGEST_CHANGE)
                )

    def _gate(self, sums: Floats, names: list[str]) -> None:
        """Leave these effects out unless their score is above what noise and the rest of the model explain.

        With K = sum_c v_c B_c^T C0^-1 B_c and C0 without them, the score |v^1/2 B^T C0^-1 S|^2 has mean tr K if there
        are none, and variance 2 tr K^2 for Gaussian, at most 5 tr K^2 for Laplace noise.
        """
        scales = [np.sqrt(self.variances[name]) for name in names]
        fitted = {name: self.variances[name] for name in names}
        self.variances.update(dict.fromkeys(names, 0.0))
        draw = np.random.default_rng(1).choice
        signs = [draw([-1.0, 1.0], (self._designs[name].shape[1], PROBES)) for name in names]
        probes = sum(
            scale * (self._designs[name] @ sign) for name, scale, sign in zip(names, scales, signs, strict=True)
        )
        solved = self._solve(np.column_stack([sums, np.asarray(probes)]), ROUGH)
        back = [scale * np.asarray(self._transposes[name] @ solved) for name, scale in zip(names, scales, strict=True)]
        score = sum(float(np.square(part[:, 0]).sum()) for part in back)
        mean = sum(float((sign * part[:, 1:]).sum()) for sign, part in zip(signs, back, strict=True)) / PROBES
        variance = 5 * sum(float(np.square(part[:, 1:]).sum()) for part in back) / PROBES
        if score > mean + SIGNIFICANT * np.sqrt(variance):
            self.variances.update(fitted)

    def _apply(self, vectors: Floats) -> Floats:
        """C times vectors."""
        product = self.variances["residual"] * (self._overlap @ vectors) + self._noise[:, None] * vectors
        for name, design in self._designs.items():
            product += self.variances[name] * (design @ (self._transposes[name] @ vectors))
        return np.asarray(product)

    def _solve(self, right: Floats, tolerance: float) -> Floats:
        """C^-1 times the columns of `right`, by conjugate gradients; dense effects and the diagonal precondition."""
        precondition = self._preconditioner()
        solved = np.zeros_like(right)
        left = right.copy()
        scaled = precondition(left)
        direction = scaled.copy()
        size = (left * scaled).sum(axis=0)
        enough = tolerance**2 * size
        for _ in range(MOST_STEPS):
            if (size <= enough).all():
                break
            product = self._apply(direction)
            step = size / np.maximum((direction * product).sum(axis=0), 1e-300)
            solved += step * direction
            left -= step * product
            scaled = precondition(left)
            before, size = size, (left * scaled).sum(axis=0)
            direction = scaled + size / np.maximum(before, 1e-300) * direction
        return solved

    def _preconditioner(self) -> Callable[[Floats], Floats]:
        """Divides by Delta + W W^T: W are the dense effects, Delta is the diagonal of all the rest (Woodbury)."""
        dense = [name for name, design in self._designs.items() if isinstance(design, np.ndarray)]
        diagonal = self._noise + sum(
            self.variances[name] * part for name, part in self._diagonals.items() if name not in dense
        )
        scale = 1 / np.asarray(diagonal)[:, None]
        if not dense:
            return lambda vectors: scale * vectors
        wide = np.column_stack([np.sqrt(self.variances[name]) * self._designs[name] for name in dense])
        thin = scale * wide
        inner = np.linalg.inv(np.eye(wide.shape[1]) + wide.T @ thin)
        return lambda vectors: scale * vectors - thin @ (inner @ (thin.T @ vectors))


def _transposed(design: Any) -> Any:
    return np.ascontiguousarray(design.T) if isinstance(design, np.ndarray) else design.T.tocsr()


def _row_squares(design: Any) -> Floats:
    if isinstance(design, np.ndarray):
        return np.asarray(np.square(design).sum(axis=1))
    return np.asarray(design.multiply(design).sum(axis=1), dtype=np.float64).ravel()
