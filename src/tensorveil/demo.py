"""The demonstration behind `tensorveil demo`: made-up taxi trips with holes to fill, and made-up ratings of films."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from tensorveil.arrays import Floats, Integers
from tensorveil.data.observations import Observations
from tensorveil.metrics import rmse
from tensorveil.models.cp import CP
from tensorveil.published import PublishedGradient
from tensorveil.release.release import Release
from tensorveil.release.saving import written_aside
from tensorveil.solvers.als import ALS
from tensorveil.solvers.sgd import SGD

ZONES = (
    (
        "Airport Old Town Harbour Station University Hospital Stadium Market Museum Park Castle Bridge "
        "Northgate Southgate Eastend Westend Hillside Riverside Meadows Orchard Mill Foundry Docks Beach"
    )
    .replace("Old Town", "Old-Town")
    .split()
)
HOURS = tuple(f"{hour:02d}:00" for hour in range(24))
MODES = ("origin", "destination", "hour")
VALUE = "minutes"
LOW, HIGH = 0.0, 60.0
RANK = 3
EPSILON = 5.0
OBSERVED = 0.5
SEED = 20
NOISE = 3.0  # minutes: what one trip differs from the average one

FIRST_WORDS = ("Amber", "Blue", "Cold", "Golden", "Quiet")
SECOND_WORDS = ("Bridge", "Garden", "Harbour", "Lantern", "Letter", "Moon", "Orchard", "River", "Road", "Winter")
FILMS = tuple(f"{first} {second}" for first in FIRST_WORDS for second in SECOND_WORDS)
USERS = tuple(f"u{number:03d}" for number in range(1, 301))
RATINGS_PER_FILM = 0.3  # of the users


@final
@dataclass(frozen=True)
class DemoData:
    """The made-up tensor: what is observed, and the truth at the holes."""

    train: Observations
    holes: Integers
    truth: Floats


@final
@dataclass(frozen=True)
class DemoRow:
    """One line of the table: who predicts, under what privacy, and its error at the holes."""

    approach: str
    privacy: str
    error: float


def make_data() -> DemoData:
    """Mean trip times: a base time between zones, rush hours into and out of the centre, a quiet night."""
    generator = np.random.default_rng(SEED)
    hours = np.arange(24)
    day = [
        np.ones(24),
        np.exp(-((hours - 8) ** 2) / 6) + 0.8 * np.exp(-((hours - 17.5) ** 2) / 8),
        0.5 + 0.5 * np.cos((hours - 15) / 24 * 2 * np.pi),
    ]
    remote = generator.uniform(1, 5, size=(2, len(ZONES)))
    busy = generator.gamma(2.0, 1.2, size=(2, len(ZONES)))
    leisure = generator.uniform(0, 3, size=(2, len(ZONES)))
    terms = zip((remote, busy, leisure), day, strict=True)
    times = sum(np.einsum("i,j,k->ijk", origin, destination, when) for (origin, destination), when in terms)
    truth = np.clip(4 + np.asarray(times), LOW, HIGH)
    cells = np.argwhere(np.ones(truth.shape, dtype=bool))
    seen = generator.random(len(cells)) < OBSERVED
    values = truth[tuple(cells[seen].T)] + NOISE * generator.standard_normal(int(seen.sum()))
    labels = (ZONES, ZONES, HOURS)
    train = Observations(
        cells[seen], np.round(np.clip(values, LOW, HIGH), 1), truth.shape, mode_names=MODES, labels=labels
    )
    return DemoData(train, cells[~seen], truth[tuple(cells[~seen].T)])


def write_data(data: DemoData, path: Path) -> None:
    """The observed trips as a CSV file, one line a cell."""
    with written_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow([*MODES, VALUE])
        for (origin, destination, hour), minutes in zip(data.train.coordinates, data.train.values, strict=True):
            lines.writerow([ZONES[origin], ZONES[destination], HOURS[hour], minutes])


def make_ratings() -> Observations:
    """Made-up stars from 1 to 5: films are liked or not, users are kind or strict, and tastes have two directions."""
    generator = np.random.default_rng(SEED)
    liked, kind = generator.normal(0, 0.7, len(FILMS)), generator.normal(0, 0.5, len(USERS))
    tastes, styles = generator.normal(0, 1, (len(USERS), 2)), generator.normal(0, 0.6, (len(FILMS), 2))
    seen = np.argwhere(generator.random((len(USERS), len(FILMS))) < RATINGS_PER_FILM)
    user, film = seen.T
    mean = 3.4 + kind[user] + liked[film] + np.sum(tastes[user] * styles[film], axis=1)
    stars = np.clip(np.round(mean + generator.normal(0, 0.6, len(seen))), 1, 5)
    return Observations(seen, stars, (len(USERS), len(FILMS)), mode_names=("user", "film"), labels=(USERS, FILMS))


def write_ratings(path: Path) -> Observations:
    """The made-up ratings as a CSV file: user, film, rating."""
    ratings = make_ratings()
    with written_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["user", "film", "rating"])
        for (user, film), stars in zip(ratings.coordinates, ratings.values, strict=True):
            lines.writerow([USERS[user], FILMS[film], int(stars)])
    return ratings


def compare(data: DemoData, release: Release) -> list[DemoRow]:
    """The release's error at the holes beside the trivial floor, the same job without privacy, and the paper's."""
    stated = release.guarantee
    where = _known_to(release, data.holes)
    mean = np.full(len(data.truth), data.train.values.mean())
    plain = ALS().solve(data.train, CP(RANK)).predict(data.holes)
    scaled = data.train.with_values((data.train.values - LOW) / (HIGH - LOW))
    claimed = PublishedGradient().run(scaled, CP(RANK), stated.epsilon, SGD.preset("cp-synthetic"), seed=SEED)
    found = LOW + (HIGH - LOW) * claimed.model.predict(data.holes)
    return [
        DemoRow("the mean of all trips (floor)", "none", rmse(data.truth, mean)),
        DemoRow("alternating least squares", "none", rmse(data.truth, np.clip(plain, LOW, HIGH))),
        DemoRow(
            "this release", f"{stated.status}, epsilon {stated.epsilon:g}", rmse(data.truth, release.predict(where))
        ),
        DemoRow(
            "the paper's gradient perturbation",
            f"claimed epsilon {stated.epsilon:g}, not true",
            rmse(data.truth, np.clip(found, LOW, HIGH)),
        ),
    ]


def _known_to(release: Release, holes: Integers) -> Integers:
    """Coordinates in the order of the release's own labels, which were read from the file and sorted."""
    columns = []
    for mode, (ours, theirs) in enumerate(zip((ZONES, ZONES, HOURS), release.labels or (), strict=True)):
        place = {str(label): index for index, label in enumerate(ours if theirs is None else theirs)}
        columns.append(np.array([place[label] for label in ours])[holes[:, mode]])
    return np.column_stack(columns)
