"""Releases from answers that clients drew at the source: no vault, no noise, and no server that must be trusted."""

from __future__ import annotations

import numpy as np

from tensorveil.data.cells import stable_order
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.kernels.cores import one_blas_thread
from tensorveil.mechanisms.auto import foreign_parts
from tensorveil.mechanisms.base import Progress
from tensorveil.mechanisms.local.answers import LocalAnswers
from tensorveil.privacy.guarantee import Guarantee, LocalFacts
from tensorveil.privacy.local.client import SUFFIX
from tensorveil.privacy.plan import Plan
from tensorveil.release.release import CLIENTS, Release


def fit_answers(observations: Observations, plan: Plan, mechanism: LocalAnswers, progress: Progress) -> Release:
    """The release of a plan for local answers; the observations hold symbols in the place of values."""
    count = len(mechanism.protocol.counts[0])
    numbers = observations.values
    symbols = numbers.astype(np.int64)
    if not ((symbols == numbers) & (symbols >= 0) & (symbols < count)).all():
        raise InputError(
            f"answers must be whole numbers from 0 to {count - 1}, the symbols of the protocol, got others; read the "
            "file that tensorveil randomize wrote, with the same protocol"
        )
    if observations.duplicates == "mean":
        raise InputError("answers must not be merged, got duplicates='mean'; read them with duplicates='keep'")
    order = stable_order((*observations.coordinates.T, symbols), (*observations.shape, count))
    where = np.ascontiguousarray(observations.coordinates[order])
    with one_blas_thread():
        completion = mechanism.completed(where, symbols[order], plan, progress)
    person, most = mechanism.person, None
    if person is not None:
        most = int(np.bincount(where[:, plan.request.mode_names.index(person)]).max())
    guarantee = Guarantee.of_run(
        plan,
        (),
        seeded=False,
        joint=False,
        foreign=foreign_parts(mechanism, plan.request.family, mechanism.protocol),
        stated_modes=observations.stated_modes,
        local=LocalFacts(mechanism.protocol.sha256, person, most),
    )
    return Release(
        completion,
        guarantee,
        plan,
        mode_names=observations.mode_names,
        labels=observations.labels,
        bins=observations.bins,
        value_name=observations.value_name.removesuffix(SUFFIX),
        generator=CLIENTS,
    )
