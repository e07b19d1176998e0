"""
Refuting a published claim
==========================

"Applying Differential Privacy to Tensor Completion" (Wei, Li, Mao, Wang) adds noise to one factor in each step of
gradient descent and claims epsilon-differential privacy. The other factors get no noise, and they are released, too.
We run the algorithm many times on two data sets that differ in a single value and try to tell which one was used.
"""

import matplotlib.pyplot as plt
import numpy as np

import tensorveil as tv

STATED = 0.1
claimed = tv.audit.audit_mechanism("published-gradient", epsilon=STATED, runs=300)
proven = tv.audit.audit_mechanism("gradient", epsilon=STATED, runs=200)
for name, audit in (("the paper's gradient perturbation", claimed), ("our gradient perturbation", proven)):
    print(f"{name}: states {STATED:g}, the attack shows at least {audit.bound.epsilon:.2f}: {audit.verdict}")

# %%
# Each histogram shows what an attacker computes from a release. If the claim were true, the two histograms of a panel
# would be nearly the same: no bar could differ by more than a factor e^0.1 = 1.11, up to chance.

figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
titles = (f"claimed: epsilon {STATED:g}", f"proven: epsilon {STATED:g}")
for place, audit, title in zip(axes, (claimed, proven), titles, strict=True):
    scores = audit.bound.scores
    finite = np.concatenate([one[np.isfinite(one)] for one in scores])
    edges = np.linspace(*np.quantile(finite, [0.01, 0.99]), 30)
    for world, colour in ((0, "#0072B2"), (1, "#D55E00")):
        place.hist(
            np.clip(scores[world], edges[0], edges[-1]), edges, alpha=0.55, color=colour, label=f"data set {world}"
        )
    place.set(
        title=f"{title}; shown: at least {audit.bound.epsilon:.2f}", xlabel="what the attacker computes", ylabel="runs"
    )
    place.legend(frameon=False)
plt.show()

# %%
# The bound holds at a confidence of 95 %. More runs show more: see the page on audits. Our mechanism is not refuted,
# which is no proof; its proof is on a page of its own.
