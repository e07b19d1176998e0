"""The parts of a certificate: what each one holds, and the rules that its numbers keep to."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from tensorveil.errors import InputError

SHA256 = r"^[0-9a-f]{64}$"

Positive = Annotated[float, Field(gt=0)]
Epsilon = Annotated[  # null in JSON: infinite, no privacy
    float,
    Field(gt=0, allow_inf_nan=True),
    BeforeValidator(lambda found: math.inf if found is None else found),
    PlainSerializer(lambda epsilon: None if math.isinf(epsilon) else epsilon, when_used="json"),
    WithJsonSchema({"anyOf": [{"exclusiveMinimum": 0, "type": "number"}, {"type": "null"}]}),
]
Chance = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Hash = Annotated[str, Field(pattern=SHA256)]
Pair = tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]
Share = Annotated[float, Field(ge=0)]
Words = Annotated[str, Field(max_length=1000)]


class Part(BaseModel):
    """A part of the certificate: frozen, no field more than the schema names, no NaN and no infinity."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class PureCost(Part):
    """Stages of pure epsilon; their epsilons add up."""

    kind: Literal["pure"]
    epsilon: Positive
    count: Count


class GaussianCost(Part):
    """Stages of Gaussian noise: noise std over the true L2 sensitivity."""

    kind: Literal["gaussian"]
    noise_multiplier: Positive
    count: Count


class SampledGaussianCost(Part):
    """Steps of Gaussian noise on a Poisson sample of the units: noise std over the clip norm."""

    kind: Literal["sampled gaussian"]
    noise_multiplier: Positive
    sampling_probability: Annotated[float, Field(gt=0, le=1)]
    count: Count
    replace: bool


class SensitivityRecord(Part):
    """How far one privacy unit moves a statistic: a number in a norm, or the rule by which the run finds it."""

    bound: Positive | None
    norm: Literal["L1", "L2", "sum of row norms"] | None
    words: str


class StageRecord(Part):
    """One paid reading of the data; `noise` is made from the other fields, for readers."""

    name: str
    theorem: str
    event: Annotated[PureCost | GaussianCost | SampledGaussianCost, Field(discriminator="kind")]
    sensitivity: SensitivityRecord
    law: Literal[
        "discrete Laplace noise",
        "discrete Gaussian noise",
        "norm-exponential noise",
        "channel",
    ]
    what: str
    instead: str | None
    noise: str


class TheoremRecord(Part):
    """A theorem that the guarantee rests on; the proof is in docs/proofs."""

    name: str
    statement: str
    page: str
    source: str


class ModelRecord(Part):
    """What kind of model was released; with draws from a posterior, their average predicts."""

    family: Literal["cp", "tucker"]
    ranks: tuple[Count, ...]
    draws: Annotated[int, Field(ge=0)]
    nonnegative: bool = False

    @property
    def kind(self) -> str:
        """The kind in words, e.g. "non-negative CP"."""
        name = "CP" if self.family == "cp" else "Tucker"
        return f"non-negative {name}" if self.nonnegative else name


class BoundsRecord(Part):
    """The public range that values were clipped to."""

    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"bounds must have low below high, got {self.low:g} and {self.high:g}")
        return self


class AskedRecord(Part):
    """The budget that was asked for; the price at its delta is what the certificate states."""

    epsilon: Positive
    delta: Chance
    expected_count: Count | None


class RandomnessRecord(Part):
    """Where the noise came from, and what its finite precision costs."""

    generator: str
    key_source: str
    seeded: bool
    grid: str
    gaussian_coordinates: Annotated[int, Field(ge=0)]
    gaussian_epsilon_each: Annotated[float, Field(ge=0)]
    gaussian_delta_each: Chance


class LedgerRecord(Part):
    """Which budget paid."""

    dataset: str
    reservation: str
    entry_hash: Hash


class EarlierPaymentRecord(Part):
    """A release of the same data set that was paid for before."""

    reservation: str
    day: str
    title: str
    epsilon: Annotated[float, Field(ge=0)]
    delta: Chance


class BalanceRecord(Part):
    """The ledger's budget of the data set, and what was spent of it before and after this release (epsilon, delta)."""

    unit: str
    at_most: Count | None
    budget: Pair
    before: Pair
    after: Pair
    share_before: Share
    share_after: Share
    remaining: Annotated[float, Field(ge=0)]
    earlier: tuple[EarlierPaymentRecord, ...]


class AboutRecord(Part):
    """What people say about the release: who is responsible, for what and for whom; empty texts where nobody said.

    `people` names the mode whose indices are people.
    """

    title: Words = ""
    data: Words = ""
    purpose: Words = ""
    controller: Words = ""
    contact: Words = ""
    recipients: Words = ""
    legal_basis: Words = ""
    run_by: Words = ""
    people: Words = ""


def checked_about(about: Mapping[str, str] | None) -> AboutRecord:
    """What people say about a release, or one clear error; called before anything is spent."""
    names = tuple(AboutRecord.model_fields)
    try:
        return AboutRecord(**dict(about or {}))
    except (ValidationError, TypeError, ValueError):
        raise InputError(
            f"about must hold texts of at most 1,000 characters for some of {', '.join(names)}, got {about!r:.80}; "
            "correct it"
        ) from None


class ContributionRecord(Part):
    """How many observations an index of a mode has, where the coordinates are public: the largest and the median."""

    mode: str
    largest: Count
    median: Annotated[float, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.median > self.largest:
            raise ValueError(f"the median must be at most the largest number, got {self.median:g} and {self.largest}")
        return self


class VariationRecord(Part):
    """Standard deviations of the predictions over the cells and of the values, by their released marginal."""

    predictions: Annotated[float, Field(ge=0)]
    values: Annotated[float, Field(ge=0)] | None
    nearly_constant: bool


class PublicInputRecord(Part):
    """Features of a mode that were given beside the data: taken as public, not derived from the values."""

    mode: str
    name: str
    columns: tuple[str, ...]
    sha256: Hash


class CoupledRecord(Part):
    """The second table of a release: its modes, the one that it shares, its values and how many there are.

    `joint_size` is the number of indices of the shared mode in either table.
    """

    mode_names: tuple[str, ...]
    shape: tuple[Count, ...]
    shared: str
    joint_size: Count
    bounds: BoundsRecord
    value_name: str
    count: Count
    levels: tuple[float, ...] | None


class EarlierRecord(Part):
    """The release that this one follows: its cost with all before it, and whether the time mode splits the data."""

    digest: Hash
    epsilon: Positive
    delta: Chance
    apart: bool
    time: str
    spans: tuple[str, ...]


class LocalRecord(Part):
    """The protocol by which clients randomized values at their source, and how many answers one person gave."""

    protocol: Hash
    person: str | None
    most_answers: Count | None


class PersonalRecord(Part):
    """What an owner needs beside the release to compute a row of its own, under joint privacy."""

    mode: Annotated[int, Field(ge=0)]
    mode_name: str
