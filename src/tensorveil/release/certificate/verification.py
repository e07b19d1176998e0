"""`verify`: recompute what a certificate states, by another way where there is one. Any doubt is a failed check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import final

from tensorveil.data.features import PublicInput
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import checked_by_code, ideal_budget, price, trusted_features, trusted_to_the_caller
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.composition import DISAGREEMENT, second_opinion
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.guarantee import OUR_PROOFS, what_is_not_protected, what_is_released
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.plan import Request
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.release import saving
from tensorveil.release.certificate.certificate import GRID, Certificate, must_not_be_released
from tensorveil.release.certificate.curve import curve_of
from tensorveil.release.ledger.accounts import COMMITTED, account_of
from tensorveil.release.ledger.chain import Chain
from tensorveil.release.release import CHACHA, EXACT

ROUNDING = 1e-6  # relative: how far a stated epsilon may lie above the recomputed one
# which mechanisms a theorem serves, by how they are headed; those of offsets serve all
MECHANISMS_OF = {
    "input": ("input perturbation",),
    "gradient": ("gradient perturbation",),
    "output": ("output perturbation",),
    "statistic": ("statistic perturbation", "output perturbation"),  # output perturbation pays for frozen blocks so
    "sums": ("sum perturbation",),
}


@final
@dataclass(frozen=True)
class Check:
    """One question that was asked of a release."""

    name: str
    passed: bool
    found: str


def verify(directory: str | Path, ledger: str | Path | None = None) -> tuple[Check, ...]:
    """Every check of a release; a check that cannot be made has failed.

    With the file of a ledger, also whether the release was paid there, at its price and for its unit.

    Examples
    --------
    >>> [check.name for check in verify("no/such/folder")]
    ['folder']
    """
    try:
        contents = saving.read_folder(directory)
    except InputError as error:
        return (Check("folder", False, str(error)),)
    folder = Check("folder", True, f"{', '.join(saving.FILES)}, and nothing else")
    try:
        certificate = Certificate.from_json(contents[saving.CERTIFICATE])
    except InputError as error:
        return (folder, Check("schema", False, str(error)))
    found = (folder, *_checks_of(certificate, contents))
    return found if ledger is None else (*found, _asked("ledger", lambda: _paid(certificate, ledger)))


def _checks_of(certificate: Certificate, contents: Mapping[str, bytes]) -> tuple[Check, ...]:
    questions: tuple[tuple[str, Callable[[], str]], ...] = (
        ("schema", lambda: _form(certificate, contents[saving.CERTIFICATE])),
        ("digest", lambda: _digest(certificate)),
        *((f"hash of {name}", _file_question(certificate, name, contents[name])) for name in _hashed()),
        ("model", lambda: _model(certificate, contents)),
        ("labels", lambda: _labels(certificate, contents)),
        ("status", lambda: _status(certificate)),
        ("randomness", lambda: _randomness(certificate)),
        ("unit", lambda: _unit(certificate)),
        ("theorems", lambda: _theorems(certificate)),
        ("words", lambda: _words(certificate)),
        ("epsilon", lambda: _epsilon(certificate)),
        ("delta", lambda: _delta(certificate)),
        ("closed form", lambda: _closed_form(certificate)),
        ("second accountant", lambda: _second_accountant(certificate)),
        ("curve", lambda: _curve(certificate)),
    )
    return tuple(_asked(name, question) for name, question in questions)


def _asked(name: str, question: Callable[[], str]) -> Check:
    try:
        return Check(name, True, question())
    except Exception as error:  # whatever went wrong, the question has no good answer
        return Check(name, False, str(error) or type(error).__name__)


def _need(holds: bool, doubt: str) -> None:
    if not holds:
        raise InputError(doubt)


def _hashed() -> tuple[str, ...]:
    return tuple(name for name in saving.FILES if name != saving.CERTIFICATE)


def _form(certificate: Certificate, text: bytes) -> str:
    _need(text == certificate.to_json().encode(), "the text is not the canonical form of what it says; it was changed")
    return f"version {certificate.schema_version}, every field as the schema asks"


def _digest(certificate: Certificate) -> str:
    found = certificate.computed_digest()
    _need(found == certificate.digest, f"the fields have the digest {found[:16]}..., not the stated one")
    return f"{found[:16]}..."


def _file_question(certificate: Certificate, name: str, data: bytes) -> Callable[[], str]:
    def question() -> str:
        _need(set(certificate.files) == set(_hashed()), "the certificate does not list exactly the released files")
        found = saving.sha256(data)
        _need(found == certificate.files[name], f"the file has the SHA-256 {found[:16]}..., not the stated one")
        return f"{found[:16]}..."

    return question


def _model(certificate: Certificate, contents: Mapping[str, bytes]) -> str:
    saving.read_model(contents[saving.MODEL], certificate)
    sizes = " x ".join(map(str, certificate.shape))
    told = f"{certificate.model.family}, {sizes}, ranks {certificate.model.ranks}, all numbers finite"
    return told if certificate.personalize is None else f"{told}; no rows of {certificate.personalize.mode_name}"


def _labels(certificate: Certificate, contents: Mapping[str, bytes]) -> str:
    labels, _ = saving.read_labels(contents[saving.LABELS], certificate)
    named = [name for name, part in zip(certificate.mode_names, labels, strict=True) if part is not None]
    return f"labels of {', '.join(named)}" if named else "no labels: indices speak for themselves"


def _status(certificate: Certificate) -> str:
    _need(certificate.status == "proven", f"the status is {certificate.status!r}: no theorem stands behind it")
    _need(not certificate.seeded, "the noise came from a seed: whoever knows it can subtract it")
    _need(certificate.publishable, "the certificate says itself that the release is not for publication")
    return "proven, not seeded"


def _randomness(certificate: Certificate) -> str:
    found = certificate.randomness
    _need(found.seeded == certificate.seeded, "the certificate contradicts itself about a seed")
    _need(
        certificate.seeded or found.key_source == "the operating system",
        "the key did not come from the operating system",
    )
    _need(found.generator in (CHACHA, EXACT), f"the generator {found.generator!r} is not one of this software")
    gaussian = any(not isinstance(event, PureEvent) for event in certificate.events)
    _need(not gaussian or found.gaussian_coordinates >= 1, "Gaussian noise on no number: its precision is not paid for")
    _need(
        (found.gaussian_epsilon_each, found.gaussian_delta_each) == (GAUSSIAN_EPSILON, GAUSSIAN_DELTA),
        "the price of the noise's finite precision is not that of this software",
    )
    _need(gaussian or found.gaussian_coordinates == 0, "numbers with Gaussian noise, but no such stage")
    counted = f", {found.gaussian_coordinates:,} numbers with Gaussian noise" if gaussian else ""
    return f"{found.generator}, keyed by {found.key_source}{counted}"


def _request(certificate: Certificate) -> Request:
    """What was asked for, rebuilt from the certificate and checked by the rules of a plan."""
    asked, bounds, ranks = certificate.asked, certificate.bounds, certificate.model.ranks
    if asked is None or bounds is None:
        raise InputError("what was asked for is not stated, so that nothing can be recomputed")
    return Request.checked(
        CP(ranks[0]) if certificate.model.family == "cp" else Tucker(ranks),
        Bounds(bounds.low, bounds.high),
        certificate.unit,
        asked.epsilon,
        asked.delta,
        certificate.shape,
        certificate.mode_names,
        asked.expected_count,
        certificate.at_most,
    )


def _unit(certificate: Certificate) -> str:
    request = _request(certificate)
    _need(request.unit_text == certificate.unit, f"the unit reads {request.unit_text!r} in full, not as stated")
    told = request.unit.neighbours(request.unit_name)
    _need(
        told == certificate.neighbours, f"for this unit, neighbours differ so: {told}; the certificate says otherwise"
    )
    for event in certificate.events:
        if isinstance(event, SampledGaussianEvent):
            _need(event.replace == request.unit.coordinates_public, "a stage is priced for another kind of neighbours")
    return told


def _theorems(certificate: Certificate) -> str:
    request = _request(certificate)
    kind = request.unit.kind
    used = dict.fromkeys(stage.theorem for stage in certificate.stages)
    for name in used:
        _need(name in THEOREMS, f"there is no theorem {name!r}")
        _need(kind in THEOREMS[name].units, f"the theorem {name!r} does not cover the unit {kind!r}")
    told = [(one.name, one.statement, one.page, one.source) for one in certificate.theorems]
    ours = [
        (name, THEOREMS[name].statement, f"docs/proofs/{THEOREMS[name].page}", THEOREMS[name].source) for name in used
    ]
    _need(told == ours, "the theorems are not those of the stages, or not in the words of this software")
    kept = certificate.personalize
    _need(kept is not None or "statistic-slices" not in used, "a theorem of joint privacy, but no rows are withheld")
    _need(
        kept is None or (kind == "slice" and kept.mode == request.unit.mode_number),
        "rows are withheld of another mode than the unit's",
    )
    _need(kept is None or kept.mode_name == certificate.mode_names[kept.mode], "the withheld mode has another name")
    return f"{', '.join(used)}; all cover {kind}"


def _words(certificate: Certificate) -> str:
    """What a person reads must be what the facts say: every text that follows from them is made again."""
    request, told = _request(certificate), certificate.guarantee
    kept = certificate.personalize
    withheld = None if kept is None else kept.mode
    covers = what_is_released(None if kept is None else kept.mode_name)
    for name, found, made in (
        ("source", certificate.source, OUR_PROOFS),
        ("reasons", certificate.reasons, ()),
        ("covers", certificate.covers, covers),
        ("may_be_released", certificate.may_be_released, covers if told.publishable else "nothing"),
        (
            "must_not_be_released",
            certificate.must_not_be_released,
            must_not_be_released(told, withheld, certificate.mode_names),
        ),
        ("not_protected", certificate.not_protected, what_is_not_protected(request.unit)),
        ("randomness.grid", certificate.randomness.grid, GRID),
    ):
        _need(found == made, f"{name} does not say what this software says of such a release; it was changed")
    checked = checked_by_code(request)
    _need(certificate.assumptions_checked == checked, "assumptions_checked is not what the code makes sure of")
    given = [PublicInput(one.mode, one.name, one.columns, one.sha256) for one in certificate.public_inputs]
    _need({one.mode for one in given} <= set(certificate.mode_names), "public_inputs must be of the tensor's modes")
    trusted = {*trusted_to_the_caller(request), *trusted_features(request.unit, given)}
    missing = trusted - set(certificate.assumptions_trusted)
    _need(not missing, f"assumptions_trusted leaves out: {'; '.join(sorted(missing))}")
    for stage in certificate.stages:
        words = MECHANISMS_OF.get(THEOREMS[stage.theorem].mechanism)
        _need(
            words is None or certificate.mechanism.endswith(words),
            f"the theorem {stage.theorem!r} is not one of {certificate.mechanism}",
        )
    return "all texts follow from the facts"


def _epsilon(certificate: Certificate) -> str:
    found = price(certificate.events, _request(certificate), certificate.randomness.gaussian_coordinates)
    _need(found <= certificate.epsilon, f"the stages cost {found!r}, more than the stated {certificate.epsilon!r}")
    _need(
        found >= certificate.epsilon * (1 - ROUNDING),
        f"the stages cost {found!r}, which is not the stated {certificate.epsilon!r}",
    )
    return f"{found:.6g} recomputed from {len(certificate.stages)} stages"


def _delta(certificate: Certificate) -> str:
    wanted = 0.0 if _pure(certificate.events) else _request(certificate).delta
    _need(certificate.delta == wanted, f"the stages are priced at delta {wanted!r}, not at {certificate.delta!r}")
    return f"{certificate.delta:g}"


def _closed_form(certificate: Certificate) -> str:
    """Pure stages: the exact sum. Gaussian stages: Balle and Wang's formula (arXiv:1805.06530, Theorem 8)."""
    events = certificate.events
    if _pure(events):
        total = sum(
            (Fraction(event.epsilon) * event.count for event in events if isinstance(event, PureEvent)), Fraction()
        )
        _need(
            total <= Fraction(certificate.epsilon), f"the stages' epsilons add up to {float(total)!r}, more than stated"
        )
        return f"epsilons add up to {float(total):.6g}"
    if not all(isinstance(event, GaussianEvent) for event in events):
        return "none for these stages"
    epsilon, delta = _ideal(certificate)
    found = gaussian_delta(
        math.sqrt(sum(event.count / event.noise_multiplier**2 for event in _gaussian(events))), epsilon
    )
    _need(found <= delta, f"at the stated epsilon the Gaussian formula gives delta {found:.6g}, more than {delta:.6g}")
    return f"Gaussian formula: delta {found:.3g} at the stated epsilon"


def gaussian_delta(distance: float, epsilon: float) -> float:
    """Delta of a Gaussian of std 1 whose mean moves by `distance`: Phi(d/2 - e/d) - exp(e) Phi(-d/2 - e/d)."""
    from scipy.special import log_ndtr, ndtr

    first = float(ndtr(distance / 2 - epsilon / distance))
    second = math.exp(epsilon + float(log_ndtr(-distance / 2 - epsilon / distance)))
    return max(0.0, first - second)


def _second_accountant(certificate: Certificate) -> str:
    epsilon, delta = _ideal(certificate)
    found = None if _pure(certificate.events) else second_opinion(certificate.events, delta)
    if found is None:
        return "none for these stages"
    if all(isinstance(event, GaussianEvent) for event in certificate.events):
        _need(found <= epsilon, f"the exact formula gives epsilon {found!r}, more than stated")
        return f"exact epsilon {found:.6g}"
    _need(epsilon <= found * (1 + DISAGREEMENT), f"RDP, which is never too small, gives only {found!r}")
    return f"RDP, never too small, gives {found:.6g}"


def _ideal(certificate: Certificate) -> tuple[float, float]:
    """The stated epsilon, and delta, once the noise's finite precision is paid."""
    request, coordinates = _request(certificate), certificate.randomness.gaussian_coordinates
    if _pure(certificate.events):
        return certificate.epsilon, 0.0
    epsilon, delta = ideal_budget(request.epsilon, request.delta, coordinates)
    return certificate.epsilon - (request.epsilon - epsilon), delta


def _curve(certificate: Certificate) -> str:
    found = curve_of(certificate.events, _request(certificate), certificate.randomness.gaussian_coordinates)
    _need(
        len(found) == len(certificate.curve)
        and all(
            mine[0] == theirs[0] and math.isclose(mine[1], theirs[1], rel_tol=2 * ROUNDING, abs_tol=0)
            for mine, theirs in zip(found, certificate.curve, strict=True)
        ),
        "the curve is not what the stages give",
    )
    return f"{len(found)} points recomputed"


def _paid(certificate: Certificate, path: str | Path) -> str:
    """The reservation that the certificate names: its entry, its state, and that it paid for these stages."""
    record = certificate.ledger
    if record is None:
        raise InputError("the certificate names no ledger: no budget was charged for this release")
    entries = Chain(path).read()
    account = account_of(entries, record.dataset)
    number = next((entry.number for entry in entries if entry.hash == record.entry_hash), None)
    if number not in account.reserved or str(number) != record.reservation:
        raise InputError(f"the ledger has no reservation {record.reservation} with the stated hash")
    charged, state = account.reserved[number], account.states[number]
    _need(state == COMMITTED, f"in the ledger, reservation {number} is {state}, not {COMMITTED}")
    _need(charged["unit"] == certificate.unit, f"the ledger was charged for the unit {charged['unit']!r}")
    _need(
        charged["events"] == [event.to_json() for event in certificate.events]
        and (charged["epsilon"], charged["delta"]) == (certificate.epsilon, certificate.delta),
        "the ledger was charged for other stages or another price",
    )
    return f"reservation {number} of data set {record.dataset!r}, committed, for the same stages and price"


def _pure(events: tuple[Event, ...]) -> bool:
    return bool(events) and all(isinstance(event, PureEvent) for event in events)


def _gaussian(events: tuple[Event, ...]) -> list[GaussianEvent]:
    return [event for event in events if isinstance(event, GaussianEvent)]
