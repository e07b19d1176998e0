"""The report: one page that a privacy officer can sign and a statistician can forward.

Everything on it comes from the release and its certificate, so it is post-processing: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tensorveil.errors import InputError
from tensorveil.privacy.guarantee import factor_text
from tensorveil.privacy.plan import rounded_up
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.report import meaning
from tensorveil.release.report.gains import chance_up, gains, max_power, percent_up
from tensorveil.release.report.pictures import mode_groups, slice_group
from tensorveil.release.report.plots import clean, curve_plot, short
from tensorveil.release.report.variation import level_and_unit, sentence

if TYPE_CHECKING:
    from tensorveil.release.release import Release

SYMBOLS = "symbols of all cells"  # what sum perturbation may buy instead of sums
MECHANISMS = {
    "input perturbation": "Random noise was added to the values before any other step; every later step saw "
    "the noisy values only.",
    "local perturbation": "Every value was randomized at its source, before anybody else saw it; the server got "
    "random answers only.",
    "gradient perturbation": "The model was improved in small steps. The contribution of one unit to a step was "
    "limited to a fixed size, and random noise was added to the sum before it was used.",
    "output perturbation": "The model was solved part by part, and each part got random noise that covers the most "
    "that one value can move it.",
    "sum perturbation": "For every label, sums over its data were computed, and random noise was put on each of them; "
    "the model was estimated from the noisy sums alone.",
    SYMBOLS: "Every cell, observed or not, was replaced by a random symbol; the model was estimated from these symbols "
    "alone, which were expected to tell more than noisy sums, given the released number of observations.",
    "statistic perturbation": "Sums over the data were computed, random noise was put on each of them, and the model "
    "was solved from the noisy sums alone.",
}


def report_html(release: Release, certificate: Certificate) -> str:
    """The whole report as one HTML page: no script, no fetched part, the same bytes for the same release.

    Parameters
    ----------
    release : the release that the certificate is of
    certificate : from `Certificate.of(release)`

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> from tensorveil.release.certificate.certificate import Certificate
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5))), np.linspace(1, 5, 30), (6, 5))
    >>> plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), tv.Bounds(1, 5), "value", 1.0, shape=(6, 5))
    >>> release = tv.fit(data, plan)
    >>> page = report_html(release, Certificate.of(release))
    >>> "May be published" in page, "<script" in page
    (True, False)
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    _check_pair(release, certificate)

    def one_line(text: object) -> object:
        return text if isinstance(text, Markup) or text == "" else clean(text)

    pages = Environment(
        loader=PackageLoader("tensorveil", "release/report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=one_line,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["svg"] = lambda drawing: Markup(drawing.svg)  # escaped where it was made, by an XML writer
    pages.filters["capital"] = lambda text: text[:1].upper() + text[1:]
    hidden, curve = meaning.hidden_modes(certificate), meaning.telling_curve(certificate)
    return pages.get_template("report.html.j2").render(
        certificate=certificate,
        facts=_facts(release, certificate, hidden),
        promise=_promise(certificate),
        meaning=meaning,
        pairs=curve,
        stages=[(stage, _cost(stage.event.to_json())) for stage in certificate.paid_stages],
        curve=curve_plot(curve, (certificate.delta, certificate.epsilon)),
        conclusions=conclusions(certificate),
        groups=mode_groups(release, hidden),
        slices=slice_group(release, hidden),
    )


def _check_pair(release: Release, certificate: Certificate) -> None:
    told = release.guarantee
    mine = (told.status, told.epsilon, told.delta, told.unit, told.seeded, release.shape, release.mode_names)
    theirs = (certificate.status, certificate.epsilon, certificate.delta, certificate.unit, certificate.seeded)
    if mine != (*theirs, certificate.shape, certificate.mode_names):
        raise InputError("certificate must be that of the release, got one that states something else; make it anew")


def _facts(release: Release, certificate: Certificate, hidden: Collection[int]) -> dict[str, Any]:
    """What was released, in words."""
    ranks = certificate.model.ranks
    rank = str(ranks[0]) if len(set(ranks)) == 1 else " × ".join(map(str, ranks))
    names = certificate.mode_names
    level = None
    if release.model.clipped:
        level = short(level_and_unit(release.model)[0])
    withheld = None if certificate.personalize is None else certificate.personalize.mode_name
    instead = any(stage.instead for stage in certificate.stages) and _has_sweeps(release)
    plain = [words for title, words in MECHANISMS.items() if title in (SYMBOLS if instead else certificate.mechanism)]
    return {
        "title": certificate.about.title or _title(certificate),
        "constant": _constant(certificate),
        "shape": " × ".join(f"{size:,}" for size in certificate.shape),
        "cells": f"{math.prod(certificate.shape):,}",
        "model": f"{certificate.model.kind} model of rank {rank}",
        "mechanism_words": plain[0] if plain and certificate.status == "proven" else "",
        "level": level,
        "withheld": withheld,
        "modes": [
            (name, f"{size:,}", _labels(release, mode, name == withheld, mode in hidden))
            for mode, (name, size) in enumerate(zip(names, certificate.shape, strict=True))
        ],
        "gaussian": any(stage.event.kind != "pure" for stage in certificate.stages),
        "numbers": f"{_released_numbers(release):,}",
    }


def _has_sweeps(release: Release) -> bool:
    """Whether a posterior was sampled, as from symbols: from sums, draws are made without sweeps."""
    return release.model.draws is None or release.model.draws.mixing[0] > 0


def _released_numbers(release: Release) -> int:
    """How many numbers of factors and core are released; rows of a withheld mode are not."""
    hidden = 0 if release.withheld_mode is None else release.factors.factors[release.withheld_mode].size
    return release.factors.parameters.size - hidden


def _title(certificate: Certificate) -> str:
    """What the table holds, where nobody gave a title."""
    names, value = certificate.mode_names, certificate.value_name
    return f"{value[:1].upper()}{value[1:]} by {', '.join(names[:-1])} and {names[-1]}"


def _constant(certificate: Certificate) -> str:
    """What to say of predictions that are nearly constant; empty if they are not."""
    found = certificate.variation
    return sentence(found.model_dump()) if found is not None and found.nearly_constant else ""


def _labels(release: Release, mode: int, withheld: bool, hidden: bool) -> str:
    """A mode's labels in a few words."""
    if withheld:
        return "not part of the release: no row and no offset"
    if hidden and release.labels[mode] is not None:
        return "people; their labels are in the release and not shown here"
    labels = release.labels[mode]
    if labels is None:
        return f"numbered 0 to {release.shape[mode] - 1:,}"
    if len(labels) < 3:
        return ", ".join(clean(label, 40) for label in labels)
    return f"{clean(labels[0], 30)}, {clean(labels[1], 30)}, …, {clean(labels[-1], 30)}"


def _promise(certificate: Certificate) -> dict[str, Any]:
    """The guarantee in words and numbers; every number is rounded towards less privacy."""
    epsilon, delta = certificate.epsilon, certificate.delta
    stated = f"ε = {rounded_up(epsilon)}, δ = {chance_up(delta)}"
    return {
        "stated": stated,
        "change": _change(certificate),
        "factor": factor_text(epsilon),
        "chance": "" if not delta else f"1 in {math.floor(1 / Fraction(Decimal(repr(delta)))):,}",
        "power": percent_up(max_power(epsilon, delta)),
        "gains": gains(epsilon, delta),
        "reason": _reason(certificate),
    }


def _change(certificate: Certificate) -> str:
    """The difference between neighbouring data sets, for a reader without background."""
    kind, _, mode = certificate.unit.partition(":")
    table = certificate.coupled
    second = "" if table is None else f", or any single {table.value_name} of the second table,"
    return {
        "value": f"any single {certificate.value_name}{second} had been a different number",
        "slice_values": f"every {certificate.value_name} of any one {mode} had been a different number",
        "entry": "any single observation had been left out, or one more were there",
        "slice": f"any one {mode}, with everything observed of that {mode}, had been left out, or one more were there",
    }.get(kind, certificate.neighbours)


def _reason(certificate: Certificate) -> str:
    """Why a release must not be published; empty if it may be."""
    if certificate.publishable:
        return ""
    if certificate.status == "none":
        return "It was made without privacy and may reveal everything about the data."
    if certificate.status == "claimed":
        return "Its privacy is claimed by a publication and not proven."
    return "Its noise came from a seed or from a source made for audits; anybody who knows it can remove the noise."


def _cost(event: dict[str, Any]) -> str:
    """What a stage costs, in a few words; noise is rounded down."""
    times = f", {event['count']:,} times" if event["count"] > 1 else ""
    if event["kind"] == "pure":
        return f"ε {rounded_up(event['epsilon'])}{times}"
    noise = Decimal(repr(event["noise_multiplier"]))
    least = noise.quantize(Decimal(1).scaleb(noise.adjusted() - 3), ROUND_FLOOR)
    sample = f", {percent_up(event['sampling_probability'])} sampled" if event["kind"] == "sampled gaussian" else ""
    return f"noise {float(least):g} × sensitivity{sample}{times}"


def conclusions(certificate: Certificate) -> tuple[list[str], list[str]]:
    """What a reader of the release may conclude, and what not."""
    kind, _, mode = certificate.unit.partition(":")
    value = certificate.value_name
    may = [
        "What labels have in common and how they differ on the whole, as far as it stands out from the noise.",
        "Anything that can be computed from the release, as often as one likes: it costs no further privacy.",
    ]
    may_not = [
        f"That a predicted {value} is one that was observed, or that it is right for one case: predictions are "
        "estimates from noisy numbers.",
        "That a small difference between two labels is real. Among many labels, the highest and the lowest are partly "
        "noise.",
        "How accurate the predictions are: an error measured on private data would itself tell about them, so none is "
        "given.",
        "That nothing can be learned about a single case: what holds for the whole, and fits that case, is not hidden.",
        "That several releases of the same data are as private as this one: their budgets add up, in a ledger.",
    ]
    if not certificate.publishable:
        seed = ", as long as anybody may know the seed" if certificate.status == "proven" else ""
        return ["How the method behaves, in internal experiments."], [
            f"That the data are protected{seed}.",
            *may_not,
        ]
    may.append("That the promise holds whatever else an attacker knows, now or later, and however much they compute.")
    if kind in ("value", "slice_values"):
        may_not.append("That it is hidden which cells were observed: under this unit that is taken to be public.")
    one = {"value": value, "entry": "observation"}.get(kind, mode)
    may_not.append(
        f"That more than one {one} is protected at this price: for k of them together, of one person or of several, "
        + ("epsilon is k times as large, and delta grows too." if certificate.delta else "epsilon is k times as large.")
    )
    if certificate.personalize is not None:
        may_not.append(
            f"Anything about a single {mode}: its row is not in the release; each {mode} computes it from its own data."
        )
    return may, may_not
