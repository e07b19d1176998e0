"""The certificate of a release: one JSON object with a published schema, for people and for `verify`.

It holds public facts only. Nothing in it is computed from the data except through the release itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from tensorveil.errors import InputError, TensorveilError
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.events import Event, event_from_json
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import Earlier, Guarantee, LocalFacts, software_versions, theorems_used
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.plan import CoupledTable, Request
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.release.certificate import records
from tensorveil.release.certificate.curve import all_pure, curve_of
from tensorveil.release.report.variation import variation_of

if TYPE_CHECKING:
    from tensorveil.release.release import Release

SCHEMA_VERSION = 1
NOT_TO_BE_RELEASED = (
    "the observations, and anything computed from them without noise",
    "errors of predictions against the observations or other private data (tensorveil evaluate)",
    "logs, timings and memory use of the run",
)

NO_NOISE = "none: no noise was drawn"
GRID = "statistics are whole multiples of a power of two, and noise is drawn and added on that grid"


class Certificate(records.Part):
    """What was released, under which guarantee, and on what ground. See docs/certificate.md for every field.

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5))), np.linspace(1, 5, 30), (6, 5))
    >>> plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), tv.Bounds(1, 5), "value", 1.0, shape=(6, 5))
    >>> certificate = Certificate.of(tv.fit(data, plan))
    >>> round(certificate.epsilon, 9), certificate.status, certificate.publishable
    (1.0, 'proven', True)
    >>> Certificate.from_json(certificate.to_json()) == certificate
    True
    """

    schema_version: Literal[1]
    status: Literal["proven", "claimed", "none"]
    epsilon: records.Epsilon
    delta: records.Chance
    unit: str
    at_most: records.Count | None
    neighbours: str
    publishable: bool
    seeded: bool
    mechanism: str
    model: records.ModelRecord
    shape: tuple[records.Count, ...]
    mode_names: tuple[str, ...]
    value_name: str
    bounds: records.BoundsRecord | None
    curve: tuple[tuple[records.Chance, Annotated[float, Field(ge=0)]], ...]
    asked: records.AskedRecord | None
    stages: tuple[records.StageRecord, ...]
    theorems: tuple[records.TheoremRecord, ...]
    source: str
    reasons: tuple[str, ...]
    assumptions_checked: tuple[str, ...]
    assumptions_trusted: tuple[str, ...]
    public_inputs: tuple[records.PublicInputRecord, ...]
    coupled: records.CoupledRecord | None
    covers: str
    may_be_released: str
    must_not_be_released: tuple[str, ...]
    not_protected: str
    randomness: records.RandomnessRecord
    ledger: records.LedgerRecord | None
    balance: records.BalanceRecord | None
    about: records.AboutRecord
    contributions: tuple[records.ContributionRecord, ...] | None
    variation: records.VariationRecord | None
    personalize: records.PersonalRecord | None
    local: records.LocalRecord | None
    earlier: records.EarlierRecord | None
    together: tuple[records.Positive, records.Chance] | None
    software: dict[str, str]
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    time: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    files: dict[str, records.Hash]
    digest: records.Hash

    @model_validator(mode="after")
    def _consistent(self) -> Certificate:
        if not 2 <= len(self.shape) <= 6 or not len(self.shape) == len(self.mode_names) == len(self.model.ranks):
            raise ValueError("shape, mode_names and ranks must have one entry per mode, for 2 to 6 modes")
        if len(set(self.mode_names)) != len(self.mode_names):
            raise ValueError("mode_names must be different")
        if self.status == "proven" and (self.bounds is None or self.asked is None or not self.stages):
            raise ValueError("a proven release must have bounds, what was asked for, and stages")
        if math.isinf(self.epsilon) and self.status != "none":
            raise ValueError("epsilon must be a number, except for a model without privacy")
        if self.publishable != (self.status == "proven" and not self.seeded):
            raise ValueError("publishable must be true for proven releases that are not seeded, and for no others")
        if self.personalize is not None and self.personalize.mode >= len(self.shape):
            raise ValueError("personalize must name a mode of the tensor")
        if self.about.people and self.about.people not in self.mode_names:
            raise ValueError("about.people must name a mode of the tensor")
        date.fromisoformat(self.created)
        _ = self.events  # they have rules of their own
        return self

    @classmethod
    def of(cls, release: Release, about: Mapping[str, str] | None = None) -> Certificate:
        """The certificate of a release; of a loaded one, the certificate that it came with.

        `about` holds what people say of it: title, data, purpose, controller, contact, recipients, legal_basis, run_by,
        and people, the mode whose indices are people.
        """
        if release.certificate is not None:
            if about:
                raise InputError("about must be given when a release is first saved, got it for a loaded one")
            return release.certificate
        told, plan = release.guarantee, release.plan
        now, factors = datetime.now(UTC), release.factors
        withheld = release.withheld_mode
        coupled = None if plan is None else plan.request.coupled
        curve: tuple[tuple[float, float], ...] = ()
        if plan is not None:
            curve = curve_of(plan.events, plan.request, plan.gaussian_coordinates)
        facts: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "status": told.status,
            "epsilon": told.epsilon,
            "delta": told.delta,
            "unit": told.unit,
            "at_most": None if plan is None else plan.request.unit.at_most,
            "neighbours": told.neighbours or "not stated by the publication",
            "publishable": told.publishable,
            "seeded": told.seeded,
            "mechanism": told.source if plan is None else plan.mechanism.title,
            "model": {
                "family": factors.family.name,
                "ranks": factors.ranks,
                "draws": len(release.model.draws or ()),
                "nonnegative": factors.family.nonnegative,
            },
            "shape": factors.shape,
            "mode_names": release.mode_names,
            "value_name": release.value_name,
            "bounds": {"low": release.model.low, "high": release.model.high} if release.model.clipped else None,
            "curve": curve,
            "asked": None
            if plan is None
            else {
                "epsilon": plan.request.epsilon,
                "delta": plan.request.delta,
                "expected_count": plan.request.expected_count,
            },
            "stages": tuple(stage.to_json() for stage in told.stages),
            "theorems": theorem_records(theorems_used(told.stages, coupled is not None)),
            "source": told.source,
            "reasons": told.reasons,
            "assumptions_checked": told.assumptions_checked,
            "assumptions_trusted": told.assumptions_trusted,
            "public_inputs": () if plan is None else tuple(asdict(given) for given in plan.public_inputs),
            "coupled": None if coupled is None else asdict(coupled),
            "covers": told.released or "the model, as the publication claims",
            "may_be_released": told.released if told.publishable else "nothing",
            "must_not_be_released": must_not_be_released(told, withheld, release.mode_names),
            "not_protected": told.not_protected or "anything: nothing is proven",
            "randomness": _randomness(release),
            "ledger": None if release.ledger is None else dict(release.ledger),
            "balance": _balance(release),
            "about": records.checked_about(about),
            "contributions": release.contributions,
            "variation": variation_of(release.model),
            "personalize": None if withheld is None else {"mode": withheld, "mode_name": release.mode_names[withheld]},
            "local": None if told.local is None else asdict(told.local),
            "earlier": None if told.earlier is None else asdict(told.earlier),
            "together": None if told.earlier is None else told.with_earlier,
            "software": dict(told.software or software_versions()),
            "created": now.date().isoformat(),
            "time": now.strftime("%H:%M"),
            "files": {},
        }
        return cls._sealed(facts)

    def with_files(self, files: Mapping[str, str]) -> Certificate:
        """The same certificate over these released files: name -> SHA-256."""
        facts = self.model_dump(exclude={"digest"})
        return self._sealed({**facts, "files": dict(sorted(files.items()))})

    @classmethod
    def _sealed(cls, facts: dict[str, Any]) -> Certificate:
        try:
            unsealed = cls(**facts, digest="0" * 64)
            return cls(**facts, digest=unsealed.computed_digest())
        except ValidationError as error:
            raise InputError(f"a certificate must follow its schema, got {_first(error)}") from error

    def computed_digest(self) -> str:
        """SHA-256 of the canonical JSON (sorted keys, no spaces, UTF-8) of every field but the digest."""
        plain = self.model_dump(mode="json", exclude={"digest"})
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """The certificate as JSON, by the schema docs/certificate.schema.json."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """A certificate from its JSON; its form is checked here, its digest and its truth by `verify`."""
        try:
            json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InputError(f"a certificate must follow its schema, got {_first(error)}; it was changed") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"a certificate must be valid JSON, got an error: {error}; it was changed") from error

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The published JSON schema."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}

    @property
    def paid_stages(self) -> tuple[Stage, ...]:
        """The stages, with texts made from their numbers."""
        return tuple(Stage.from_json(stage.model_dump()) for stage in self.stages)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the stages cost."""
        return tuple(event_from_json(stage.event.model_dump()) for stage in self.stages)

    @property
    def pure(self) -> bool:
        """Whether all stages are of pure epsilon."""
        return bool(self.stages) and all_pure(self.events)

    @property
    def family(self) -> ModelFamily:
        """The family of the released model, with its ranks."""
        ranks = self.model.ranks
        return CP(ranks[0], self.model.nonnegative) if self.model.family == "cp" else Tucker(ranks)

    @property
    def request(self) -> Request:
        """What was asked for, checked by the rules of a plan; an error if the certificate does not state it."""
        asked, bounds = self.asked, self.bounds
        if asked is None or bounds is None:
            raise InputError("the certificate does not state what was requested, so nothing can be recomputed")
        facts = (self.family, Bounds(bounds.low, bounds.high), self.unit, asked.epsilon, asked.delta)
        return Request.checked(*facts, self.shape, self.mode_names, asked.expected_count, self.at_most, self.second)

    @property
    def second(self) -> CoupledTable | None:
        """The facts of the second table, if there is one."""
        if self.coupled is None:
            return None
        return CoupledTable(**{**dict(self.coupled), "bounds": Bounds(**dict(self.coupled.bounds))})

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that this certificate states."""
        return Guarantee(
            self.epsilon,
            self.delta,
            self.unit,
            self.status,
            self.source,
            reasons=self.reasons,
            seeded=self.seeded,
            neighbours=self.neighbours,
            released=self.covers,
            not_protected=self.not_protected,
            stages=self.paid_stages,
            theorems=tuple(f"{theorem.name} ({theorem.source})" for theorem in self.theorems),
            assumptions_checked=self.assumptions_checked,
            assumptions_trusted=self.assumptions_trusted,
            software=tuple(self.software.items()),
            local=None if self.local is None else LocalFacts(**self.local.model_dump()),
            earlier=None if self.earlier is None else Earlier(**self.earlier.model_dump()),
        )

    def to_deployment_record(self) -> dict[str, Any]:
        """What this certificate can say in a record of the OpenDP Differential Privacy Deployments Registry."""
        from tensorveil.release.certificate.registry import deployment_record

        return deployment_record(self)


def theorem_records(names: Iterable[str]) -> tuple[records.TheoremRecord, ...]:
    """The theorems of these names, each once."""
    return tuple(
        records.TheoremRecord(
            name=name,
            statement=THEOREMS[name].statement,
            page=f"docs/proofs/{THEOREMS[name].page}",
            source=THEOREMS[name].source,
        )
        for name in dict.fromkeys(names)
    )


def must_not_be_released(told: Guarantee, withheld: int | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """What must not be published, in words."""
    texts = list(NOT_TO_BE_RELEASED)
    if withheld is not None:
        texts.append(
            f"personal rows and predictions of a {names[withheld]}, which are for that {names[withheld]} alone"
        )
    if told.seeded:
        texts.insert(0, "the model itself: whoever knows the seed can subtract its noise")
    if told.status != "proven":
        texts.insert(0, "the model itself: its privacy is not proven")
    return tuple(texts)


def _balance(release: Release) -> dict[str, Any] | None:
    """What the ledger that paid says of the data set; None without one, or if it cannot be read any more."""
    if release.ledger is None or release.paid_by is None:
        return None
    try:
        return release.paid_by.balance(release.ledger["dataset"], int(release.ledger["reservation"]))
    except (TensorveilError, OSError):  # the release is paid for and must not be lost
        return None


def _randomness(release: Release) -> dict[str, Any]:
    told, plan = release.guarantee, release.plan
    if plan is None:
        return {
            "generator": NO_NOISE if told.status == "none" else "numpy PCG64, not cryptographic",
            "key_source": "a seed" if told.seeded else "the operating system",
            "seeded": told.seeded,
            "grid": "none: floating point",
            "gaussian_coordinates": 0,
            "gaussian_epsilon_each": 0.0,
            "gaussian_delta_each": 0.0,
        }
    return {
        "generator": release.generator,
        "key_source": "a seed or a source made for audits" if told.seeded else "the operating system",
        "seeded": told.seeded,
        "grid": GRID,
        "gaussian_coordinates": 0 if all_pure(plan.events) else plan.gaussian_coordinates,
        "gaussian_epsilon_each": GAUSSIAN_EPSILON,
        "gaussian_delta_each": GAUSSIAN_DELTA,
    }


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} in place of a number")


def _first(error: ValidationError) -> str:
    """The first broken rule, in words, without the input."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, found["loc"])) or "the whole"
    return f"{where}: {found['msg']}"
