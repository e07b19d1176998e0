"""The promise that comes with a model."""

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.metadata import version
from typing import Self, final

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.notebook import html_table
from tensorveil.privacy.accounting.parts import cost_of_both
from tensorveil.privacy.local.randomizing import spent
from tensorveil.privacy.plan import Plan, public_facts, rounded_up
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Receipt

STATUSES = ("proven", "claimed", "none")
SCHEMA_VERSION = 1
LARGE = 1e6  # a factor beyond this is told as a power of e
SECRET_NOISE = "noise comes from a cryptographic generator keyed by the operating system"
OUR_PROOFS = "tensorveil's proofs (docs/proofs)"
SOFTWARE = ("tensorveil", "numpy", "numba", "randomgen", "dp-accounting", "matplotlib")


@lru_cache
def software_versions() -> tuple[tuple[str, str], ...]:
    """Names and versions of what a run rests on."""
    return (("python", platform.python_version()), *((name, version(name)) for name in SOFTWARE))


def factor_text(epsilon: float) -> str:
    """e^epsilon, rounded up; beyond a million as a power."""
    if epsilon > math.log(LARGE):
        return f"e to the power {rounded_up(epsilon)}"
    text = rounded_up(math.exp(epsilon), 3)
    return f"{float(text):,.0f}" if float(text) >= 1000 else text


def what_is_released(withheld: str | None) -> str:
    """What a guarantee covers, in words; `withheld` is the name of the mode that joint privacy keeps back."""
    if withheld is None:
        return "the whole model: offsets, factors, core, and everything computed from them"
    return (
        f"the model without the rows and offsets of {withheld}; each {withheld}'s own row, predictions and errors "
        f"go to that {withheld} alone (joint differential privacy)"
    )


def theorems_used(stages: Sequence[Stage], coupled: bool) -> tuple[str, ...]:
    """Names of the theorems that a guarantee rests on: those of its stages, and that of two tables."""
    of_stages = (name for stage in stages for name in stage.theorems)
    return tuple(dict.fromkeys([*of_stages, *(["coupled-tables"] if coupled else [])]))


def what_is_not_protected(unit: Unit) -> str:
    """What a guarantee does not cover, in words."""
    return (
        f"shape, labels and bounds; public under this unit: {public_facts(unit)}; "
        "what follows from the population as a whole; running time and memory"
    )


@final
@dataclass(frozen=True)
class LocalFacts:
    """What a guarantee adds if values were randomized at their source.

    Attributes
    ----------
    protocol : SHA-256 of the protocol
    person : the name of the mode whose indices are people, or None
    most_answers : the largest number of answers of one person
    """

    protocol: str
    person: str | None = None
    most_answers: int | None = None

    def sentences(self, epsilon: float) -> str:
        """In plain words, with the epsilon of one value."""
        told = (
            "Local: every value was randomized at its source, so the server that collected the answers needs no trust."
        )
        if self.person is None or self.most_answers is None:
            return told
        return (
            f"{told} One {self.person} gave at most {self.most_answers:,} answers, so for all values of one "
            f"{self.person} together epsilon = {rounded_up(spent(epsilon, self.most_answers))}."
        )


@final
@dataclass(frozen=True)
class Earlier:
    """The release that this one follows, and what both cost together (docs/proofs/update.md).

    Attributes
    ----------
    digest : of the certificate of the earlier release
    epsilon, delta : of the earlier release, together with those before it
    apart : whether no unit can be in both data sets, because the labels of the mode `time` split them
    spans : the labels of that mode in all earlier data
    """

    digest: str
    epsilon: float
    delta: float
    apart: bool
    time: str
    spans: tuple[str, ...]

    def sentence(self, both: tuple[float, float]) -> str:
        """In plain words, with the cost of both."""
        stated = f"epsilon = {rounded_up(both[0])}" + (f" and delta = {rounded_up(both[1])}" if both[1] else "")
        why = (
            f"no unit is in both data sets, which the labels of {self.time} split"
            if self.apart
            else "a unit may be in both data sets, so costs add up"
        )
        return f"Together with the earlier release {self.digest[:16]}..., {stated}: {why}."


@final
@dataclass(frozen=True)
class Guarantee:
    """What is stated about the privacy of a model, and why.

    Attributes
    ----------
    epsilon, delta : the stated parameters of differential privacy
    unit : what one change between neighbouring data sets is, e.g. "value" or "slice:user".
    status : "proven": theorems of this project cover the run. "claimed": a publication, or a mechanism from outside
        this library, states it without a proof. "none": no privacy.
    source : where the statement comes from
    reasons : for a claim: why it is not proven
    seeded : whether the noise came from a seed. Anybody who knows the seed can subtract the noise.
    neighbours, released, not_protected : in plain words: how neighbouring data sets differ, what may be shown to
        anybody, what is not covered
    theorems : ids of docs/proofs with their sources
    assumptions_checked, assumptions_trusted : what the code checked, and what it has to trust the caller for
    software : tuple of (name, version)
    earlier : the release that this one follows, if it is an update
    local : facts of the protocol, if values were randomized at their source; None if a trusted server drew the noise
    """

    epsilon: float
    delta: float
    unit: str
    status: str
    source: str
    reasons: tuple[str, ...] = ()
    seeded: bool = False
    neighbours: str = ""
    released: str = ""
    not_protected: str = ""
    stages: tuple[Stage, ...] = ()
    theorems: tuple[str, ...] = ()
    assumptions_checked: tuple[str, ...] = ()
    assumptions_trusted: tuple[str, ...] = ()
    software: tuple[tuple[str, str], ...] = ()
    local: LocalFacts | None = None
    earlier: Earlier | None = None

    def __post_init__(self) -> None:
        checks.choice("status", self.status, STATUSES)

    @classmethod
    def of_run(
        cls,
        plan: Plan,
        receipts: Sequence[Receipt],
        *,
        seeded: bool,
        joint: bool,
        foreign: Sequence[str] = (),
        stated_modes: tuple[str, ...] = (),
        local: LocalFacts | None = None,
    ) -> Self:
        """The guarantee of a run of this plan, whose answers left these receipts.

        Parameters
        ----------
        plan, receipts : what was paid, and what was answered for it
        seeded, joint : whether the noise came from a seed; whether rows of a mode are withheld
        foreign : names of mechanisms and models that are not this library's: they might reach data around the vault
        stated_modes : modes whose labels the caller declared to be public
        local : facts of the protocol, if clients drew the noise
        """
        request = plan.request
        if not {receipt.stage for receipt in receipts} <= set(plan.stages):
            raise InputError(
                "receipts must be for the stages of the plan, got receipts for other stages; run the plan unchanged"
            )
        reasons = [
            f"{name} is not part of this library, so nobody has proved that it keeps to the vault" for name in foreign
        ]
        names = theorems_used(plan.stages, request.coupled is not None)
        return cls(
            plan.epsilon,
            plan.delta,
            request.unit_text,
            "claimed" if reasons else "proven",
            OUR_PROOFS,
            reasons=tuple(reasons),
            seeded=seeded,
            neighbours=request.neighbours,
            released=what_is_released(request.unit_name if joint else None),
            not_protected=what_is_not_protected(request.unit),
            stages=plan.stages,
            theorems=tuple(f"{name} ({THEOREMS[name].source})" for name in names),
            assumptions_checked=tuple(
                text for text in plan.assumptions_checked if not (seeded and text == SECRET_NOISE)
            ),
            assumptions_trusted=(
                *plan.assumptions_trusted,
                *(f"the labels of mode {mode!r} are public: stated by the caller" for mode in stated_modes),
            ),
            software=software_versions(),
            local=local,
        )

    @property
    def with_earlier(self) -> tuple[float, float]:
        """Epsilon and delta of this release together with those that it follows."""
        own = (self.epsilon, self.delta)
        if self.earlier is None:
            return own
        return cost_of_both((self.earlier.epsilon, self.earlier.delta), own, apart=self.earlier.apart)

    @property
    def publishable(self) -> bool:
        """Whether this guarantee allows publishing the model."""
        return self.status == "proven" and not self.seeded

    def __str__(self) -> str:
        if self.status == "none":
            return "No privacy: the model may reveal everything about the data. Not for publication."
        stated = f"epsilon = {rounded_up(self.epsilon)}"
        if self.delta:
            stated += f" and delta = {rounded_up(self.delta)}"
        if self.status == "proven":
            change, _, public = self.neighbours.partition("; ")
            added = f", plus at most {rounded_up(self.delta)}" if self.delta else ""
            sentences = [
                f"Proven with {stated} (unit {self.unit!r}): if {change}, the probability of any conclusion drawn from "
                f"the release changes by a factor of at most {factor_text(self.epsilon)}{added}.",
                f"{public[0].upper()}{public[1:]}." if public else "",
                "" if self.local is None else self.local.sentences(self.epsilon),
                "" if self.earlier is None else self.earlier.sentence(self.with_earlier),
                f"The release is {self.released}.",
                "Seeded: not for release." if self.seeded else "",
            ]
            return " ".join(filter(None, sentences))
        claim = f"{stated} for the unit {self.unit!r}, according to {self.source}"
        lines = [f"Claimed, not proven: {claim}. Not for publication."]
        return "\n".join([*lines, *(f"- {reason}" for reason in self.reasons)])

    def _repr_html_(self) -> str:
        """The guarantee in a notebook."""
        rows = [
            ("status", self.status + ("" if self.publishable else ": not for publication")),
            ("unit", self.unit),
            ("epsilon", "infinite" if math.isinf(self.epsilon) else rounded_up(self.epsilon)),
            ("delta", rounded_up(self.delta) if self.delta else "0"),
            ("in words", str(self)),
            ("trusted to the caller", "; ".join(self.assumptions_trusted) or "nothing"),
        ]
        return html_table("Guarantee", rows)

    def to_json(self) -> str:
        """The guarantee as JSON, by the schema docs/guarantee.schema.json."""
        facts = {"schema_version": SCHEMA_VERSION, **asdict(self), "publishable": self.publishable}
        facts["stages"] = [stage.to_json() for stage in self.stages]
        return json.dumps({**facts, "epsilon": None if math.isinf(self.epsilon) else self.epsilon}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A guarantee from its JSON."""
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"a guarantee must be valid JSON, got an error: {error}; write it with Guarantee.to_json"
            ) from error
        if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"a guarantee must have schema_version {SCHEMA_VERSION}, got another version; update tensorveil"
            )
        known = {one.name: found[one.name] for one in fields(cls)}
        known["epsilon"] = math.inf if known["epsilon"] is None else known["epsilon"]
        for name, value in known.items():
            if name == "local":
                known[name] = None if value is None else LocalFacts(**value)
            elif name == "earlier":
                known[name] = None if value is None else Earlier(**{**value, "spans": tuple(value["spans"])})
            elif name == "stages":
                known[name] = tuple(Stage.from_json(stage) for stage in value)
            elif isinstance(value, list):
                known[name] = tuple(tuple(part) if isinstance(part, list) else part for part in value)
        return cls(**known)
