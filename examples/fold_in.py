"""
A new person: fold-in
=====================

Ann is not in the data, and she joins later. From the release and her own ratings her device computes her predictions.
Nothing is spent and nobody learns her ratings, because the computation runs where they are.
"""

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv
from tensorveil.demo import make_ratings
from tensorveil.release.people.newcomers import newcomers

bounds, newest = tv.Bounds(1, 5), 60
ratings = make_ratings()
users, films = ratings.shape
old = ratings.coordinates[:, 0] < users - newest
train = tv.Observations(
    ratings.coordinates[old],
    ratings.values[old],
    (users - newest, films),
    mode_names=("user", "film"),
    labels=(None, ratings.labels[1]),
)
release = tv.complete(train, "cp", bounds, unit="value", epsilon=5.0)
print(release)

# %%
# The last 60 people were left out of the release. Each brings a few ratings; the others are to be predicted.

own, values = ratings.coordinates[~old] - [users - newest, 0], ratings.values[~old]
place = np.array([np.sum(own[:row, 0] == own[row, 0]) for row in range(len(own))])  # first, second, ... of a person
held_out = place >= 10
errors = {0: tv.rmse(values[held_out], np.full(held_out.sum(), train.values.mean()))}
for brought in (1, 2, 4, 6, 8, 10):
    mine = tv.Observations(own[place < brought], values[place < brought], (newest, films), mode_names=("user", "film"))
    model = newcomers(release, mine, mode="user")
    low, high = model.interval(own[held_out], 0.9)
    errors[brought] = tv.rmse(values[held_out], model.predict(own[held_out]))
    inside = np.mean((low <= values[held_out]) & (values[held_out] <= high))
    print(f"{brought:2} own ratings: RMSE {errors[brought]:.3f}, {inside:.0%} of the ratings inside their intervals")

# %%
# One of them, "Ann", with ten ratings: what she gave, and what her device predicts for the films she has not seen.

ann = 0
mine = tv.Observations(
    np.column_stack([np.zeros(10, dtype=int), own[(own[:, 0] == ann) & (place < 10), 1]]),
    values[(own[:, 0] == ann) & (place < 10)],
    (1, films),
    mode_names=("user", "film"),
)
model = release.personalize(mine, mode="user")
unseen = np.setdiff1d(np.arange(films), mine.coordinates[:, 1])
cells = np.column_stack([np.zeros(len(unseen), dtype=int), unseen])
predicted, (low, high) = model.predict(cells), model.interval(cells, 0.9)
order = np.argsort(predicted)[-12:]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.plot(list(errors), list(errors.values()), "o-", color="#0072B2")
left.axhline(errors[0], color="#555555", linestyle=":")
left.annotate("predicting the mean", (10, errors[0]), xytext=(0, -12), textcoords="offset points", ha="right")
left.set(xlabel="ratings that a new person brings", ylabel="RMSE of their other ratings", title="60 new people")
right.hlines(range(len(order)), low[order], high[order], color="#D55E00", linewidth=2)
right.plot(predicted[order], range(len(order)), "o", color="#D55E00")
right.set_yticks(range(len(order)), [str(release.labels[1][film]) for film in unseen[order]])
right.set(xlabel="prediction and 90 % interval, for Ann alone", title="Ann's best films")
plt.show()
