"""The replay fuzz finds nothing in the library, comes close to every bound, and finds bugs that are planted."""

from dataclasses import replace

import numpy as np
import pytest

from privacy.replay_fuzz import fuzz
from tensorveil.privacy.queries.contributions import slice_weights
from tensorveil.privacy.queries.gradients import JointGradients
from tensorveil.privacy.queries.rows import normal_equations
from tensorveil.privacy.queries.sums.row_sums import RowSums
from tensorveil.privacy.vault import Vault


@pytest.mark.slow
def test_no_random_neighbour_is_told_apart():
    table = fuzz(400, seed=7)
    assert not table.violations, "\n".join(table.violations)
    assert {order for _, order in table.orders} == {2, 3, 4, 5, 6}
    for key in table.pairs:
        assert table.answers[key] > 0.9, key  # the neighbours do hurt


def halved(query):
    """The same query with half the sensitivity, of the stage that pays as well."""
    sound = query.sensitivity
    return lambda self, unit: tuple(replace(change, bound=change.bound / 2) for change in sound(self, unit))


def equal_weights(shard, rows, pure):
    """Weights that forget how active a slice is."""
    return np.ones(len(shard))


def popular_weights(shard, rows, pure):
    """Sound weights, made a little smaller in rows where many are: the others' weights change with a unit."""
    return slice_weights(shard, rows, pure) / (1 + 1e-6 * np.bincount(rows)[rows])


def unnoised(sound):
    """Answers without noise under units that hide coordinates."""

    def noised(self, total, event, change):
        answer = sound(self, total, event, change)
        return answer if self.unit.coordinates_public else replace(answer, values=total * change.grid)

    return noised


def scaled_by_count(sound):
    """A clip norm that depends on how many observations there are."""

    def answers(self, stages, query, **given):
        if isinstance(query, JointGradients):
            query = replace(query, clip_norm=query.clip_norm * (1 + len(self._shards[0]) / 2**20))
        return sound(self, stages, query, **given)

    return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism, where, name, bug, message",
    [
        ("sums", RowSums, "sensitivity", halved(RowSums), "must lose"),
        ("gradient", JointGradients, "sensitivity", halved(JointGradients), "must lose"),
        ("statistic", normal_equations, "slice_weights", equal_weights, "must lose"),
        ("statistic", normal_equations, "slice_weights", popular_weights, "sum over units"),
        ("statistic", Vault, "_noised", unnoised(Vault._noised), "must lose|bit for bit"),
        ("gradient", Vault, "answers", scaled_by_count(Vault.answers), "one shape and scale"),
    ],
    ids=["halved sums", "halved gradients", "equal weights", "popularity", "no noise", "private clip norm"],
)
def test_a_planted_bug_is_found(mechanism, where, name, bug, message, monkeypatch):
    monkeypatch.setattr(where, name, bug)
    violations = fuzz(96, only=mechanism).violations
    assert any(part in violation for violation in violations for part in message.split("|"))
