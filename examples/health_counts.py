"""
Health counts and the three units
=================================

How often did a patient with a diagnosis get a procedure? The values are small counts, and what must be protected is a
question of its own: one count (``value``), one record and its existence (``entry``), or a whole patient
(``slice:patient``). The more is protected, the less can be learned at the same epsilon.

With the MIMIC demo counts in ``TENSORVEIL_DATA`` this example reads them; otherwise it makes some up.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv
from tensorveil.release.predictions import everybody

MODES = ("patient", "diagnosis", "procedure")
folder = Path(os.environ.get("TENSORVEIL_DATA", "")) / "mimic-demo"
if folder.is_dir():
    counts = tv.read(folder / "train.csv", MODES, "count", public_labels=MODES)
else:
    draw = np.random.default_rng(5)
    shape = (120, 30, 20)
    often = draw.gamma(0.5, 1, (3, 120)), draw.gamma(0.5, 1, (3, 30)), draw.gamma(0.5, 1, (3, 20))
    rates = 0.2 + 2 * np.einsum("ra,rb,rc->abc", *often)
    where = np.argwhere(draw.random(shape) < 0.1)
    values = np.minimum(draw.poisson(rates[tuple(where.T)]), 20)
    counts = tv.Observations(where, values, shape, mode_names=MODES)
train, test = counts.split(0.9, seed=1)  # by each record's own cell, so that guarantees of train hold for all records
print(train)

# %%
# One release per unit. Under ``slice`` the rows of patients stay with the patients: each of them predicts from the
# release and their own records. ``everybody`` does that for all of them at once, for this comparison only.

bounds = tv.Bounds(0, 20)
plain = np.full(len(test), train.values.mean())
errors = {"the mean,\nno privacy": tv.rmse(test.values, plain)}
releases = {}
for unit, delta in (("value", 0.0), ("entry", 0.0), ("slice:patient", 1e-5)):
    releases[unit] = tv.complete(train, "cp", bounds, unit, epsilon=5.0, delta=delta)
    model = everybody(releases[unit], train) if releases[unit].withheld_mode is not None else releases[unit]
    errors[unit] = tv.rmse(test.values, model.predict(test.coordinates))
    print(f"{unit:14} {errors[unit]:.3f}   {releases[unit].guarantee.neighbours}")

# %%
# Left: the error on held-out records. Right: mean predicted count by diagnosis and procedure for the most frequent
# codes, from the release under ``value``: an aggregate that may be published, because the release may be.

release = releases["value"]
top = [np.argsort(np.bincount(train.coordinates[:, mode]))[::-1][:12] for mode in (1, 2)]
patients = np.arange(0, release.shape[0], max(1, release.shape[0] // 60))
cells = np.array([(patient, row, column) for row in top[0] for column in top[1] for patient in patients])
table = release.predict(cells).reshape(len(top[0]), len(top[1]), -1).mean(axis=2)
labels = [
    [str(index if known is None else known[index]) for index in chosen]
    for known, chosen in zip(release.labels[1:], top, strict=True)
]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
left.bar(list(errors), list(errors.values()), color=["#999999", "#0072B2", "#D55E00", "#009E73"])
left.set(ylabel="RMSE of held-out counts", title="epsilon 5, three units")
image = right.imshow(table, cmap="cividis")
right.set_xticks(range(len(top[1])), labels[1], rotation=90, fontsize=8)
right.set_yticks(range(len(top[0])), labels[0], fontsize=8)
right.set(xlabel="procedure", ylabel="diagnosis", title="mean predicted count (unit value)")
figure.colorbar(image, ax=right, shrink=0.85)
plt.show()
