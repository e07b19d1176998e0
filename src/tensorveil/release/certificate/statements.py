"""Checks of what a certificate says in words: they must follow from its facts, by the rules of this software."""

from tensorveil.data.features import PublicInput
from tensorveil.data.shards import WHOLE
from tensorveil.mechanisms.base import checked_by_code, trusted_features, trusted_to_the_caller
from tensorveil.mechanisms.local.answers import checked_locally, trusted_locally
from tensorveil.mechanisms.sums import PARTS
from tensorveil.privacy.accounting.events import PureEvent, SampledGaussianEvent
from tensorveil.privacy.guarantee import OUR_PROOFS, theorems_used, what_is_not_protected, what_is_released
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import GAUSSIAN_DELTA, GAUSSIAN_EPSILON
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.release.certificate.certificate import GRID, Certificate, must_not_be_released, theorem_records
from tensorveil.release.certificate.curve import all_pure
from tensorveil.release.certificate.questions import need
from tensorveil.release.release import CHACHA, CLIENTS, EXACT


def _of(mechanism: str) -> tuple[str, ...]:
    return tuple(theorem.name for theorem in THEOREMS.values() if theorem.mechanism == mechanism)


OFFSETS_FIRST = "offsets, then "  # how a mechanism that runs on residuals is headed, before its own heading
MARGINAL = ("histogram",)
OFFSETS = (*MARGINAL, "sums-rows", "sums-pairs")  # a marginal, then offsets
# what the stages of a mechanism rest on, by how it is headed
THEOREMS_OF = {
    "input perturbation": (*_of("input"), *MARGINAL),
    "gradient perturbation": _of("gradient"),
    "output perturbation": (*_of("output"), *_of("statistic"), *OFFSETS),  # frozen blocks by statistic perturbation
    "statistic perturbation": (*_of("statistic"), *OFFSETS),
    "sum perturbation": (*_of("sums"), *MARGINAL),
    "local perturbation": _of("local"),
}
# what a stage adds noise to, by the first words -> the theorems about that; the first that fits counts
THEOREMS_ABOUT = {
    "counts of values": MARGINAL,
    "right-hand sides": _of("statistic"),
    "matrices": ("statistic-entries", "statistic-slices"),  # under other units they are public
    "rows with data": _of("output"),
    "linear terms": _of("output"),
    "every value": ("input-values",),
    "every cell": ("input-dense",),
    "channel of the protocol": _of("local"),
    "channel, a random symbol for each value": ("input-values",),
    "channel, a random symbol for every cell": ("input-cells",),
    "paired sums": ("sums-pairs",),
    "sums and counts": ("sums-pairs", "sums-lengths"),
    "sums": ("sums-rows",),
    PARTS: ("sums-rows", "sums-pairs"),
    "": _of("gradient"),  # which has no other stages
}
GAUSSIAN_ONLY = ("gradient-joint", "gradient-sampled", "sums-lengths")
OF_CHANNELS = ("input-values", "input-cells", "local-channel")
SUMS_OR_CELLS = ("sums-pairs", "input-cells")  # the one stage that may buy something else instead
COUPLING = "input perturbation"  # how mechanisms are headed that can use a second table
JOINT = ("statistic-slices", "sums-lengths")  # their promise is for releases without the rows of the slices
JOINT_HEADINGS = ("sum perturbation",)  # these leave out such rows whatever the theorem


def stages(certificate: Certificate) -> str:
    """The noise that a stage describes must be the noise that its event pays for."""
    for stage, made in zip(certificate.stages, certificate.paid_stages, strict=True):
        need(
            stage.noise == made.noise,
            f"the stage {stage.name!r} pays for {made.noise!r}, but its noise reads {stage.noise!r}",
        )
        pure, channel = isinstance(made.event, PureEvent), made.law is Law.CHANNEL
        need(
            pure != (made.law is Law.GAUSSIAN), f"the stage {stage.name!r} pays {made.event}, which buys no {made.law}"
        )
        about = next(names for start, names in THEOREMS_ABOUT.items() if made.what.startswith(start))
        need(made.theorem in about, f"the stage {stage.name!r} is of {made.what}, and {made.theorem!r} is not about it")
        sampled = isinstance(made.event, SampledGaussianEvent)
        need(
            sampled == (made.theorem == "gradient-sampled") and not (pure and made.theorem in GAUSSIAN_ONLY),
            f"the stage {stage.name!r} pays {made.event}, which is no price of {made.theorem!r}",
        )
        need(pure or made.theorem != "gradient-rows", f"the stage {stage.name!r} must be pure for {made.theorem!r}")
        need(not channel or made.theorem in OF_CHANNELS, f"the theorem of the stage {stage.name!r} is not of a channel")
        need(
            made.instead is None or (made.theorems == SUMS_OR_CELLS and pure and not channel),
            f"the stage {stage.name!r} may not buy {made.instead!r} instead",
        )
    return f"the noise of {len(certificate.stages)} stages reads as it is paid for"


def status(certificate: Certificate) -> str:
    need(certificate.status == "proven", f"the status is {certificate.status!r}, so no theorem supports it")
    need(not certificate.seeded, "the noise came from a seed, and anybody who knows the seed can subtract it")
    need(certificate.publishable, "the certificate itself says that the release is not for publication")
    return "proven and not seeded"


def randomness(certificate: Certificate) -> str:
    found = certificate.randomness
    need(found.seeded == certificate.seeded, "the certificate contradicts itself about a seed")
    need(
        certificate.seeded or found.key_source == "the operating system",
        "the key did not come from the operating system",
    )
    ours = (CHACHA, EXACT) if certificate.local is None else (CLIENTS,)
    need(found.generator in ours, f"the generator {found.generator!r} is not one of this software")
    gaussian = not all_pure(certificate.events)
    need(
        not gaussian or found.gaussian_coordinates >= 1,
        "there is Gaussian noise, but its finite precision is not paid for",
    )
    need(
        (found.gaussian_epsilon_each, found.gaussian_delta_each) == (GAUSSIAN_EPSILON, GAUSSIAN_DELTA),
        "the cost of the noise's finite precision is not the one that this software computes",
    )
    need(gaussian or found.gaussian_coordinates == 0, "some numbers have Gaussian noise, but no stage does")
    counted = f", {found.gaussian_coordinates:,} numbers with Gaussian noise" if gaussian else ""
    return f"{found.generator}, keyed by {found.key_source}{counted}"


def unit(certificate: Certificate) -> str:
    request = certificate.request
    need(request.unit_text == certificate.unit, f"the unit reads {request.unit_text!r} in full, not as stated")
    told = request.neighbours
    need(
        told == certificate.neighbours,
        f"for this unit, neighbouring data differ as follows: {told}; the certificate says otherwise",
    )
    for event in certificate.events:
        if isinstance(event, SampledGaussianEvent):
            need(
                event.replace == request.unit.coordinates_public,
                "the cost of a stage is for another kind of neighbouring data",
            )
    need(
        certificate.contributions is None or request.unit.coordinates_public,
        "the numbers of observations per index are stated, but they are not public under this unit",
    )
    need(
        certificate.contributions is None
        or tuple(one.mode for one in certificate.contributions) == certificate.mode_names,
        "the numbers of observations per index are not those of all modes, in their order",
    )
    return told


def theorems(certificate: Certificate) -> str:
    request = certificate.request
    kind = request.unit.kind
    used = dict.fromkeys(name for stage in certificate.paid_stages for name in stage.theorems)
    for name in used:
        need(name in THEOREMS, f"there is no theorem {name!r}")
        need(kind in THEOREMS[name].units, f"the theorem {name!r} does not cover the unit {kind!r}")
    ours = theorem_records(theorems_used(certificate.paid_stages, certificate.coupled is not None))
    need(certificate.theorems == ours, "the theorems are not those of the stages, or their text was changed")
    kept = certificate.personalize
    joint = used.keys() & set(JOINT) or (kind == "slice" and certificate.mechanism in JOINT_HEADINGS)
    need(kept is not None or not joint, "a release of joint privacy, but no rows are withheld")
    need(
        kept is None or (kind == "slice" and kept.mode == request.unit.mode_number),
        "rows are withheld of a mode that is not the mode of the unit",
    )
    need(kept is None or kept.mode_name == certificate.mode_names[kept.mode], "the withheld mode has another name")
    local, person = certificate.local, None if certificate.local is None else certificate.local.person
    need(
        (local is not None) == any(THEOREMS[name].mechanism == "local" for name in used),
        "only answers from the source have facts of a protocol, and all of these have them",
    )
    need(person is None or person in certificate.mode_names, "the mode of the people is not one of the tensor's")
    return f"{', '.join(one.name for one in ours)}; all cover {kind}"


def words(certificate: Certificate) -> str:
    """Every text must follow from the facts: all texts are made again and compared."""
    request, told = certificate.request, certificate.guarantee
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
        need(found == made, f"{name} is not the text that this software writes for such a release; it was changed")
    local = certificate.local is not None
    checked = checked_locally(request) if local else checked_by_code(request)
    listed = certificate.assumptions_checked
    need(listed in (checked, (*checked, WHOLE)), "assumptions_checked does not list what the code checks")
    given = [PublicInput(one.mode, one.name, one.columns, one.sha256) for one in certificate.public_inputs]
    need({one.mode for one in given} <= set(certificate.mode_names), "public_inputs must be of the tensor's modes")
    stated = trusted_locally(request) if local else trusted_to_the_caller(request)
    trusted = {*stated, *trusted_features(request.unit, given)}
    missing = trusted - set(certificate.assumptions_trusted)
    need(not missing, f"assumptions_trusted leaves out: {'; '.join(sorted(missing))}")
    served = theorems_of(certificate.mechanism)
    need(
        certificate.coupled is None or (certificate.mechanism == COUPLING and certificate.pure),
        "a second table is stated for a mechanism that cannot use one",
    )
    for stage in certificate.stages:
        need(stage.theorem in served, f"the theorem {stage.theorem!r} is not one of {certificate.mechanism}")
    return "all texts follow from the facts"


def theorems_of(heading: str) -> tuple[str, ...]:
    """The theorems that the stages of a mechanism of this heading can rest on; none for a heading that is not ours."""
    if heading.startswith(OFFSETS_FIRST):
        inner = theorems_of(heading.removeprefix(OFFSETS_FIRST))
        return (*OFFSETS, *inner) if inner else ()
    return THEOREMS_OF.get(heading, ())
