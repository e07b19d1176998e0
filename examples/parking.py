"""
Car parks
=========

How full are the car parks of a city? Nine of ten measurements are missing. The tensor is park x day x half hour, and
the values are counts up to 5,000. The same call completes it: nothing has to be set for another kind of value.

With the Birmingham data in ``TENSORVEIL_DATA`` this example reads them; otherwise it makes some up.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv

SHAPE, MODES = (30, 77, 18), ("park", "day", "time")
folder = Path(os.environ.get("TENSORVEIL_DATA", "")) / "birmingham-parking"
if folder.is_dir():
    train, test = (tv.read(folder / name, MODES, "value", shape=SHAPE) for name in ("train10.csv", "test90.csv"))
else:
    draw = np.random.default_rng(3)
    size, noon = draw.gamma(2, 400, 30), draw.normal(9, 1.5, 30)
    week = 1 - 0.35 * (np.arange(77) % 7 >= 5) + 0.05 * draw.normal(size=77)
    curve = np.exp(-((np.arange(18) - noon[:, None]) ** 2) / 40)
    cars = np.clip(size[:, None, None] * week[:, None] * curve[:, None, :] + draw.normal(0, 20, SHAPE), 0, 5000)
    whole = tv.Observations(np.argwhere(np.ones(SHAPE)), cars.round().ravel(), SHAPE, mode_names=MODES)
    train, test = whole.split(0.1, seed=1)
print(train)

# %%
# One release with epsilon 5. The public bounds, 0 to 5,000 cars, do not have to be tight.

release = tv.complete(train, "cp", tv.Bounds(0, 5000), unit="value", epsilon=5.0)
error = tv.rmse(test.values, release.predict(test.coordinates))
print(
    f"RMSE {error:.0f} cars; predicting the mean: {tv.rmse(test.values, np.full(len(test), train.values.mean())):.0f}"
)

# %%
# One car park for two weeks: the line and its band are computed from the release alone. Filled dots are the few
# values that were known, open ones were held out.

park = int(np.bincount(train.coordinates[:, 0]).argmax())
days = np.arange(14)
cells = np.array([(park, day, time) for day in days for time in range(SHAPE[2])])
found = release.predict(cells, interval=0.9)

figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
place = np.arange(len(cells)) / SHAPE[2]
axes.fill_between(place, found.low, found.high, color="#0072B2", alpha=0.2, linewidth=0, label="90 % interval")
axes.plot(place, found.prediction, color="#0072B2", label="private prediction")
for data, face, name in ((test, "none", "held out"), (train, "#D55E00", "known")):
    mine = (data.coordinates[:, 0] == park) & (data.coordinates[:, 1] < len(days))
    where = data.coordinates[mine]
    axes.scatter(
        where[:, 1] + where[:, 2] / SHAPE[2], data.values[mine], s=16, facecolor=face, edgecolor="#D55E00", label=name
    )
axes.set(xlabel="day", ylabel="cars", title=f"Car park {park}: 10 % of the values known, epsilon 5", xticks=days)
axes.legend(frameon=False, ncols=4, loc="upper center")
axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
plt.show()
