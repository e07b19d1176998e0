"""
Local collection: nobody is trusted
===================================

Every rating is randomized on the device of its owner. The server receives random symbols and completes the tensor
from them. No server, administrator or burglar ever sees a rating.
"""

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv
from tensorveil.demo import make_ratings

bounds = tv.Bounds(1, 5)
train, test = make_ratings().split(0.9, seed=1)

# %%
# A protocol is a public table: for each level of a rating, the probability of each symbol. No column may differ by
# more than a factor e^epsilon. Every client checks that before it answers.

protocol = tv.design_protocol(bounds, epsilon=3.0)
table = np.array(protocol.counts, dtype=float) / 2.0**62
print(f"largest ratio within a column: {(table.max(axis=0) / table.min(axis=0)).max():.2f}; e^3 = {np.e**3:.2f}")

# %%
# The clients answer, and the server completes from the answers. ``person="user"`` makes the guarantee say what all
# answers of one user cost together.


def completed(epsilon):
    """Error of the server, from answers of that epsilon."""
    protocol = tv.design_protocol(bounds, epsilon)
    answers = train.with_values(tv.randomize(train.values, protocol))
    server = tv.LocalAnswers(protocol, person="user")
    release = tv.complete(answers, "cp", bounds, "value", epsilon, mechanism=server)
    return release, tv.rmse(test.values, release.predict(test.coordinates))


epsilons = (1.0, 3.0, 6.0)
local = [completed(epsilon) for epsilon in epsilons]
central = [
    tv.rmse(test.values, tv.complete(train, "cp", bounds, "value", epsilon).predict(test.coordinates))
    for epsilon in epsilons
]
print(local[1][0].guarantee)

# %%
# Left: the protocol. Right: at moderate epsilon the untrusted server is nearly as good as a trusted one. At small
# epsilon a trusted server can add noise to sums of many ratings, which nobody can do here.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
image = left.imshow(table, cmap="cividis", vmin=0, aspect="auto")
left.set(xlabel="symbol that is sent", ylabel="rating", title="P(symbol | rating), epsilon 3")
left.set_yticks(range(len(table)), [f"{level:g}" for level in protocol.levels])
for (row, column), share in np.ndenumerate(table):
    left.text(
        column, row, f"{share:.2f}", ha="center", va="center", color="white" if share < table.max() / 2 else "black"
    )
figure.colorbar(image, ax=left)
right.plot(epsilons, [error for _, error in local], "o-", color="#D55E00", label="local: no server is trusted")
right.plot(epsilons, central, "s-", color="#0072B2", label="central: the server is trusted")
floor = tv.rmse(test.values, np.full(len(test), train.values.mean()))
right.axhline(floor, color="#555555", linestyle=":", label="predicting the mean")
right.set(
    xlabel="epsilon of each rating", ylabel="RMSE of held-out ratings", title="Price of trusting nobody", xscale="log"
)
right.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
right.minorticks_off()
right.legend(frameon=False)
plt.show()
