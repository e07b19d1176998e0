"""
Film ratings
============

Users rate films, and most cells of the table are empty. We complete it so that no single rating can be recognised:
unit ``value``, epsilon 5. A prediction comes with an interval, which includes the uncertainty from the privacy noise.

With FilmTrust in ``TENSORVEIL_DATA`` this example reads it; otherwise it uses the ratings of
``tensorveil demo --data ratings.csv``.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv
from tensorveil.demo import make_ratings

folder = Path(os.environ.get("TENSORVEIL_DATA", "")) / "filmtrust"
if folder.is_dir():
    half_stars, bounds = np.arange(0.5, 4.5, 0.5), tv.Bounds(0.5, 4)
    ratings = tv.read(folder / "train.csv", modes=["user", "film"], value="rating")
else:
    half_stars, bounds = np.arange(1.0, 6.0), tv.Bounds(1, 5)
    ratings = make_ratings()
train, test = ratings.split(0.9, seed=1)
print(train)

# %%
# ``tv.complete`` plans, computes the privacy cost and fits. The guarantee is part of the release.

release = tv.complete(train, "cp", bounds, unit="value", epsilon=5.0)
print(release.guarantee)

# %%
# How good is it? Left: predictions grouped by the rating that was really given. Right: the ten films that the model
# recommends to one user, with intervals that contain a rating with probability 90 %.

predicted = release.predict(test.coordinates)
floor = np.full(len(test), train.values.mean())
print(f"RMSE {tv.rmse(test.values, predicted):.3f}; predicting the mean: {tv.rmse(test.values, floor):.3f}")

user = int(np.bincount(train.coordinates[:, 0]).argmax())
films = np.arange(release.shape[1])
unseen = np.setdiff1d(films, train.coordinates[train.coordinates[:, 0] == user, 1])
cells = np.column_stack([np.full(len(unseen), user), unseen])
found = release.predict(cells, interval=0.9)
best = np.argsort(found.prediction)[-10:]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
given = [stars for stars in half_stars if np.sum(test.values == stars) > 1]
groups = [predicted[test.values == stars] for stars in given]
parts = left.violinplot(groups, given, widths=0.4, showmedians=True)
for body in parts["bodies"]:
    body.set_facecolor("#0072B2")
left.plot(half_stars, half_stars, ":", color="#555555", label="a perfect prediction")
left.set(xlabel="rating that was given", ylabel="prediction", title="Held-out ratings")
left.legend(frameon=False)
names = [str(release.labels[1][film]) for film in unseen[best]]
right.hlines(range(len(best)), found.low[best], found.high[best], color="#0072B2", linewidth=2)
right.plot(found.prediction[best], range(len(best)), "o", color="#0072B2")
right.set_yticks(range(len(best)), names)
right.set(xlabel="predicted rating and 90 % interval", title=f"Recommended to user {release.labels[0][user]}")
plt.show()
