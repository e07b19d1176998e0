"""
Choosing epsilon before anything is spent
=========================================

How good will a release be? The private data cannot answer that without paying. Made-up data of the same public shape
and count can: run the real mechanism on a weak and on a strong signal, and read off the smallest epsilon that is worth
its price.
"""

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv

SHAPE, COUNT = (80, 25, 7), 4_000  # public: users, products, days of the week, and the number of ratings
EPSILONS = (1.0, 3.0, 10.0)


def made_up(signal, seed=0):
    """Observations of which a share `signal` of the variance can be explained by a rank-2 model, and the truth."""
    draw = np.random.default_rng(seed)
    truth = sum(np.einsum("i,j,k->ijk", *(draw.normal(size=size) for size in SHAPE)) for _ in range(2))
    truth *= np.sqrt(signal) / truth.std()
    cells = np.argwhere(np.ones(SHAPE))[draw.permutation(truth.size)[:COUNT]]
    noise = np.sqrt(1 - signal) * draw.normal(size=COUNT)
    values = np.clip(truth[tuple(cells.T)] + noise, -3, 3)
    return tv.Observations(cells, values, SHAPE, mode_names=("user", "product", "weekday")), truth


# %%
# The error against the truth behind the values, as a share of its spread: 1 is as bad as predicting the mean.

curves = {}
for name, signal in (("weak signal", 0.1), ("strong signal", 0.6)):
    data, truth = made_up(signal)
    cells = np.argwhere(np.ones(SHAPE))
    curves[name] = [
        tv.rmse(truth.ravel(), tv.complete(data, tv.CP(3), tv.Bounds(-3, 3), "value", epsilon).predict(cells))
        / truth.std()
        for epsilon in EPSILONS
    ]
    print(
        f"{name:13}", "  ".join(f"epsilon {e:g}: {error:.2f}" for e, error in zip(EPSILONS, curves[name], strict=True))
    )

# %%
# Where a curve is still at 1, the release would be a constant: nothing beyond the mean can be learned at that budget.

figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
for (name, errors), colour in zip(curves.items(), ("#CC79A7", "#0072B2"), strict=True):
    axes.plot(EPSILONS, errors, "o-", color=colour, label=name)
axes.axhline(1, color="#555555", linestyle=":", label="predicting the mean")
axes.set(xscale="log", xlabel="epsilon", ylabel="error / spread of the truth", ylim=(0, 1.25))
axes.set_title(f"{' x '.join(map(str, SHAPE))}, {COUNT:,} values, unit value")
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.minorticks_off()
axes.legend(frameon=False)
plt.show()
