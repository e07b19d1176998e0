"""
Taxi trips
==========

A tensor with three modes: origin, destination and hour of the day. Half of the cells have no trip. The private model
fills them, and the rush hours come out as a component of their own.

The trips are those of ``make demo``, so the truth is known everywhere.
"""

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv
from tensorveil.demo import HOURS, make_data

data = make_data()
release = tv.complete(data.train, tv.CP(rank=3), tv.Bounds(0, 60), unit="value", epsilon=5.0)
error = tv.rmse(data.truth, release.predict(data.holes))
floor = tv.rmse(data.truth, np.full(len(data.truth), data.train.values.mean()))
print(f"error at the holes: {error:.2f} minutes; predicting the mean: {floor:.2f}")

# %%
# Eight in the morning: what was observed, and the whole table as the release has it.

hour = HOURS.index("08:00")
zones = release.shape[0]
observed = data.train.to_dense()[:, :, hour]
pairs = np.argwhere(np.ones((zones, zones), dtype=bool))
completed = release.predict(np.column_stack([pairs, np.full(len(pairs), hour)])).reshape(zones, zones)

figure, axes = plt.subplots(1, 3, figsize=(12.5, 4), layout="constrained", width_ratios=[1, 1, 1.1])
look = {"cmap": "cividis", "vmin": 0, "vmax": np.nanmax(observed)}
for place, table, title in ((axes[0], observed, "observed at 08:00"), (axes[1], completed, "private completion")):
    image = place.imshow(table, **look)
    place.set(title=title, xlabel="destination", ylabel="origin")
figure.colorbar(image, ax=axes[1], label="minutes", shrink=0.85)
every = np.argwhere(np.ones((zones, zones, len(HOURS)), dtype=bool))
by_hour = release.predict(every).reshape(zones * zones, -1)
middle = by_hour.mean(axis=0)
axes[2].fill_between(
    range(24), *np.quantile(by_hour, [0.1, 0.9], axis=0), alpha=0.25, color="#0072B2", label="80 % of the pairs"
)
axes[2].plot(range(24), middle, color="#0072B2", label="mean over all pairs")
axes[2].set(title="the day, as the release tells it", xlabel="hour", ylabel="minutes", xticks=range(0, 24, 4))
axes[2].legend(frameon=False)
plt.show()
