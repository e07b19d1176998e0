"""A release of later data, which starts from an earlier release: its own budget, or the same ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.data.features import Features
from tensorveil.data.observations import Observations
from tensorveil.data.readers.columns import Modes
from tensorveil.data.readers.files import read
from tensorveil.data.readers.time_bins import CYCLES
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import EARLIER_MODEL, Mechanism, Progress, no_progress
from tensorveil.privacy.accounting.parts import in_common, label_text, never_in_both
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import Earlier
from tensorveil.privacy.units import Unit
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.fitting import fit, plan
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.release import Release


def time_mode(release: Release, time: int | str | None = None) -> int:
    """The mode that splits earlier from later data: the named one, or the only one that holds binned times."""
    if time is not None:
        return release.mode_number(time)
    binned = [mode for mode, kind in enumerate(release.bins) if kind is not None and kind not in CYCLES]
    if len(binned) != 1:
        raise InputError(
            f"time must name the mode that splits earlier from later data, of {list(release.mode_names)}, got none; "
            f"{len(binned)} modes hold binned times"
        )
    return binned[0]


def read_later(
    release: Release,
    path: str | PathLike[str],
    time: int,
    *,
    modes: Modes | None = None,
    labels: Mapping[str, Any] | None = None,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    duplicates: str = "error",
) -> Observations:
    """Later observations by the labels of a release: its own ones and, where coordinates are public, new ones.

    Under `entry` and `slice` other modes have the labels of the release, and those of the time mode must be given.
    `modes` are columns of the file, {mode: column} where their names are not those of the release's modes.
    """
    unit = Unit.of(Certificate.of(release).unit)
    names, value = list(release.mode_names), release.value_name
    modes = names if modes is None else modes
    if list(modes) != names:
        raise InputError(f"modes must be {names}, as in the release, got {list(modes)}; name columns MODE=COLUMN")
    bins = {name: kind for name, kind in zip(names, release.bins, strict=True) if kind is not None}
    shared = {name: _labels(release, mode) for mode, name in enumerate(names) if mode != time and name not in bins}
    options: dict[str, Any] = {"format": format, "columns": columns, "bins": bins, "duplicates": duplicates}
    if unit.coordinates_public:
        found = read(path, modes, value, labels=labels, **options)
        for name, old in shared.items():
            new = found.labels[names.index(name)]
            seen = set(old)
            shared[name] = [*old, *(label for label in (() if new is None else new.tolist()) if label not in seen)]
    return read(path, modes, value, labels={**shared, **(labels or {})}, **options)


def update(
    release: Release,
    later: Observations,
    epsilon: float,
    delta: float = 0.0,
    *,
    time: int | str | None = None,
    mechanism: Mechanism | str = "auto",
    seed: int | None = None,
    progress: Progress = no_progress,
    ledger: Ledger | None = None,
    dataset: str | None = None,
) -> Release:
    """A release of later observations, whose rows have those of an earlier release as their prior.

    If no unit can be in both data sets, because the labels of the time mode split them, each has a budget of its own,
    and both releases together cost the larger of the two (docs/proofs/update.md). Otherwise their costs add up, and the
    ledger that paid for the earlier one must pay for this one, from the same data set.

    Parameters
    ----------
    release : the earlier release: proven, and loaded from its folder, or saved
    later : observations with the modes and the unit of the release
    time : the mode that splits the data; default: the one that holds binned times
    ledger, dataset : the budget that pays; for a budget of its own, a data set of its own
    """
    certificate = Certificate.of(release)
    if certificate.status != "proven" or certificate.bounds is None or certificate.seeded != (seed is not None):
        raise InputError(
            "the earlier release must be proven, and seeded only if this one is, got another; make it without a seed"
        )
    if later.mode_names != release.mode_names:
        raise InputError(f"modes must be {list(release.mode_names)}, as in the release, got {list(later.mode_names)}")
    number = time_mode(release, time)
    unit = Unit.of(certificate.unit, certificate.at_most).resolved(release.mode_names)
    named, chained, name = later.labels[number], certificate.earlier, release.mode_names[number]
    if later.bins[number] != release.bins[number] or (named is None) != (release.labels[number] is None):
        raise InputError(f"{name!r} must have labels of the kind of the release, or none as there, got others")
    if chained is not None and chained.time != name:
        raise InputError(f"time must be {chained.time!r}, which split the earlier releases, got {name!r}")
    spans = [] if chained is None else list(map(label_text, chained.spans))
    known = release.labels[number]
    before = [*map(label_text, range(release.shape[number]) if known is None else known), *spans]
    after = list(map(label_text, range(later.shape[number]) if named is None else named))
    apart = never_in_both(unit, number, before, after)
    if not apart:
        _need_the_same_budget(certificate, ledger, dataset)
    if in_common(spans, after) and not (unit.whole_slices and unit.mode_number != number):
        raise InputError(
            "later data must not have labels of the releases before the earlier one, got some; costs add up in the "
            "budget that paid for those: update the release that has them"
        )
    if ledger is not None and certificate.ledger is not None and certificate.ledger.dataset in ledger.datasets():
        protected = ledger.budget(certificate.ledger.dataset)[0].resolved(release.mode_names)
        if not never_in_both(protected, number, before, after):  # it may protect more than the release does
            _need_the_same_budget(certificate, ledger, dataset)
    planned = plan(
        later,
        release.factors.family,
        Bounds(certificate.bounds.low, certificate.bounds.high),
        replace(unit, mode=certificate.unit.partition(":")[2] or None),
        epsilon,
        delta,
        mechanism=mechanism,
        features=earlier_rows(release, later, number, certificate.digest),
    )
    found = fit(later, planned, seed=seed, progress=progress, ledger=ledger, dataset=dataset)
    cost = (certificate.epsilon, certificate.delta)
    if certificate.earlier is not None:
        cost = certificate.guarantee.with_earlier
    earlier = Earlier(certificate.digest, *cost, apart, name, tuple(dict.fromkeys(before)))
    return replace(found, guarantee=replace(found.guarantee, earlier=earlier))


def earlier_rows(release: Release, later: Observations, time: int, digest: str) -> dict[str, Features]:
    """What the release knows of the indices of the other modes, as features: offsets and rows of one of its draws.

    The prior mean of a row is a linear map of them, as good as the later data show it to be. Indices that the release
    does not know, and rows that a joint release withholds, have the mean of the others.
    """
    found = {}
    model = release.model
    factors = model.factors
    if model.draws is not None:  # the mean of draws is for display: one draw has rows that fit each other
        factors = factors.replace_parameters(model.draws.parameters[-1].astype(np.float64))
    for mode, name in enumerate(release.mode_names):
        if mode in (time, model.withheld_mode):
            continue
        own = model.offsets.modes[mode]
        rows = np.column_stack([np.zeros(release.shape[mode]) if own is None else own, factors.factors[mode]])
        matrix = _matched(rows, _labels(release, mode), later.labels[mode], later.shape[mode])
        if np.ptp(matrix, axis=0).any():
            columns = ("offset", *(f"factor {place}" for place in range(rows.shape[1] - 1)))
            found[name] = Features(matrix, columns, f"{EARLIER_MODEL} {digest[:16]}", digest)
    return found


def _matched(rows: Floats, known: list[Any], labels: Any, size: int) -> Floats:
    """Rows by label; the mean of all where the label is not known."""
    places = {label: place for place, label in enumerate(known)}
    wanted = range(size) if labels is None else labels.tolist()
    found = np.tile(rows.mean(axis=0), (size, 1))
    for place, label in enumerate(wanted):
        if label in places:
            found[place] = rows[places[label]]
    return found


def _labels(release: Release, mode: int) -> list[Any]:
    labels = release.labels[mode]
    return list(range(release.shape[mode])) if labels is None else list(labels.tolist())


def _need_the_same_budget(certificate: Certificate, ledger: Ledger | None, dataset: str | None) -> None:
    """Costs add up, so one budget must see both releases."""
    if ledger is not None and certificate.ledger is not None:
        ledger.check_paid(certificate)  # this file holds the reservation, not another of the same name
    if ledger is None or certificate.ledger is None or certificate.ledger.dataset != dataset:
        told = "no ledger" if certificate.ledger is None else f"data set {certificate.ledger.dataset!r}"
        raise InputError(
            "ledger and dataset must be those that paid for the earlier release, because a unit may be in both "
            f"data sets and the costs add up, got others; it was paid from {told}"
        )
