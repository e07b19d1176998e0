"""What the numbers of a certificate mean for those who sign: how strong, for whom, against which budget, and why."""

from __future__ import annotations

import math
from typing import Any

from tensorveil.privacy.guarantee import factor_text
from tensorveil.privacy.plan import rounded_up
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.report.gains import best_guess, percent_up

# largest epsilon -> word, what it means. The bounds 1 and 10 and their source are those of SCALE_SOURCE; 3 is where a
# guess between two equally likely situations can be right in 95 % of cases
GUESS = "a guess between two equally likely situations is right in at most {} of cases"
STRENGTHS = (
    (1.0, "strong", GUESS),
    (3.0, "moderate", GUESS),
    (10.0, "weak", "in the worst case an attacker becomes nearly certain"),
    (math.inf, "very weak", "the promise itself rules out next to nothing"),
)
SCALE_SOURCE = (
    "The bounds at 1 and 10 are those of Ponomareva et al., “How to DP-fy ML”, Journal of Artificial Intelligence "
    "Research 77 (2023) (arXiv:2303.00654): strong up to 1, reasonable in practice up to 10, weak beyond. "
    "The bound at 3 is ours, as is the word weak from there on."
)
ABOUT = (
    ("Data set", "data"),
    ("Purpose", "purpose"),
    ("Controller", "controller"),
    ("Contact", "contact"),
    ("Recipients", "recipients"),
    ("Legal basis", "legal_basis"),
    ("Run by", "run_by"),
)
OR_ELSE = "Or else, as the released counts decided: "
IN_PLAIN_WORDS = {  # theorem -> why it holds, for a reader without background
    "input-values": "Each value was replaced by a random answer before anything else happened. Whatever the value was, "
    "every answer was possible, with a probability that another value would change by a limited factor only.",
    "local-channel": "Each value was replaced by a random answer where it arose, by a public table of probabilities. "
    "Nobody but its owner ever had the value.",
    "coupled-tables": "Each of the two tables got random noise of its own. One value is in one of the tables, so only "
    "the answers about that table depend on it. A person with values in both tables pays for all of them.",
    "input-dense": "Every cell, observed or not, got random noise that is larger than what one observation can change.",
    "input-cells": "Each cell, observed or not, was replaced by a random answer. Whether or not it was observed, and "
    "whatever its value was, every answer was possible, with a probability that changes by a limited factor only.",
    "gradient-joint": "In each step the part of every unit was cut to a fixed length, and random noise that covers "
    "this length was added to the sum.",
    "gradient-sampled": "Each step used a random sample of the units, cut the part of each to a fixed length and added "
    "noise that covers it. Who was in the sample stays secret, which lowers the cost.",
    "gradient-rows": "In each step the part of every observation in a row was cut to a fixed length, and each row got "
    "noise that covers this length.",
    "output-exact": "Each row was solved exactly, and got random noise that covers the most that one value can move "
    "it.",
    "statistic-values": "The model was solved from sums over the values. Each sum got random noise that covers what "
    "one value can add to it.",
    "statistic-entries": "The model was solved from sums over the observations. Each sum got random noise that covers "
    "what one observation can add to it.",
    "statistic-slices": "The model was solved from sums in which everything that belongs to one unit counts as one at "
    "most. The unit's own rows are not released.",
    "sums-rows": "For each label a sum over its values was formed. One value moves few of these sums, by a limited "
    "amount, and random noise that covers it was added to each.",
    "sums-pairs": "For each label two sums over its observations were formed, so that one observation moves both "
    "together by one at most, and random noise that covers this was added to each.",
    "sums-lengths": "For each label a sum and a count were formed, in which everything that belongs to one unit has "
    "length one at most. Random noise that covers this was added to each.",
    "histogram": "Values were counted in classes. One unit changes few counts, by one at most, and random noise that "
    "covers this was added to each.",
}


def strength(epsilon: float) -> str:
    """How strong the protection is, in a word.

    Examples
    --------
    >>> strength(0.5), strength(8.0), strength(50.0)
    ('strong', 'weak', 'very weak')
    """
    return next(word for most, word, _ in STRENGTHS if epsilon <= most)


def scale(epsilon: float, delta: float) -> list[dict[str, Any]]:
    """The levels from strong to very weak, with the level of this epsilon marked and what they mean at this delta."""
    rows, low = [], 0.0
    for most, word, meaning in STRENGTHS:
        span = f"up to {most:g}" if not low else f"above {low:g}" if math.isinf(most) else f"{low:g} to {most:g}"
        told = meaning.format(percent_up(best_guess(most, delta)))
        rows.append({"word": word, "span": span, "meaning": told, "here": word == strength(epsilon)})
        low = most
    return rows


def admission(certificate: Certificate) -> str:
    """One sentence on how strong the promise is, which hides no weakness."""
    epsilon = certificate.epsilon
    word = strength(epsilon)
    told = f"ε = {rounded_up(epsilon)} is {word} protection of one {thing(certificate)}"
    times = f"{factor_text(epsilon)} times as likely" + (", plus δ" if certificate.delta else "")
    if word == "strong":
        return f"{told}: what anybody concludes becomes by it at most {times}."
    if word == "moderate":
        return f"{told}: a conclusion about it can become {times}, so doubt remains, but not much."
    return (
        f"{told}: a conclusion about it can become {times}. The theorem alone would allow an attacker who knows "
        "everything else to become nearly certain of it."
    )


def thing(certificate: Certificate) -> str:
    """What one unit is, in a word."""
    kind, _, mode = certificate.unit.partition(":")
    return {"value": certificate.value_name, "entry": "observation"}.get(kind, mode or "unit")


def hidden_modes(certificate: Certificate) -> tuple[int, ...]:
    """Modes whose indices are people, as far as it is known: their labels are in no picture and in no table."""
    kind, _, mode = certificate.unit.partition(":")
    people = {certificate.about.people, mode if kind in ("slice", "slice_values") else ""}
    people.add("" if certificate.local is None or certificate.local.person is None else certificate.local.person)
    return tuple(place for place, name in enumerate(certificate.mode_names) if name in people)


def about_rows(certificate: Certificate) -> list[tuple[str, str]]:
    """What people said about the release; empty texts are lines to fill in by hand."""
    return [(name, getattr(certificate.about, field)) for name, field in ABOUT]


def whole_people(certificate: Certificate) -> list[dict[str, str]]:
    """For each mode: how many values one index has, and what the promise is for all of them together."""
    if certificate.contributions is None or certificate.status != "proven" or certificate.unit != "value":
        return []
    people = certificate.about.people
    return [
        {
            "mode": one.mode,
            "largest": f"{one.largest:,}",
            "median": f"{one.median:,.10g}",
            "epsilon": rounded_up(certificate.epsilon * one.largest),
            "typical": rounded_up(certificate.epsilon * one.median),
            "strength": strength(certificate.epsilon * one.largest),
        }
        for one in certificate.contributions
        if people in ("", one.mode)
    ]


def added_up(certificate: Certificate) -> str:
    """What the promise for one value becomes for all values of one index; empty if it is for more than a value."""
    parts = [
        f"to {row['epsilon']} for the {row['mode']} with the most ({row['largest']})"
        for row in whole_people(certificate)
    ]
    return f"Epsilon adds up over several values: {', '.join(parts)}." if parts else ""


def second_table(certificate: Certificate) -> list[tuple[str, str]]:
    """The facts of a second table that was released together with the first one."""
    found = certificate.coupled
    if found is None:
        return []
    sizes = " × ".join(f"{size:,} {name}" for size, name in zip(found.shape, found.mode_names, strict=True))
    both = certificate.shape[certificate.mode_names.index(found.shared)]
    both += found.shape[found.mode_names.index(found.shared)] - found.joint_size
    return [
        ("Values", f"{found.count:,} of {found.value_name}, clipped to [{found.bounds.low:g}, {found.bounds.high:g}]"),
        ("Modes", sizes),
        ("Shared with the first table", f"{found.shared}; {both:,} of its indices are in both tables"),
        ("Use", f"it tells more about each {found.shared}; the model predicts the first table only"),
        ("Cost", "each stage of the plan answers once about each table; one value is in one of them, and pays once"),
    ]


def balance_rows(certificate: Certificate) -> list[tuple[str, str]]:
    """The ledger's budget of the data set before and after this release."""
    found = certificate.balance
    if found is None:
        return []
    unit = found.unit if found.at_most is None else f"{found.unit}, at most {found.at_most:,} observations each"
    return [
        ("Budget", f"{_pair(found.budget)}, for the unit “{unit}”"),
        ("Spent before", f"{_pair(found.before)} ({_percent(found.share_before)} of the budget)"),
        ("Spent with this release", f"{_pair(found.after)} ({_percent(found.share_after)} of the budget)"),
        ("Left", f"ε {found.remaining:.4g} for one more release of pure epsilon" if found.remaining else "nothing"),
    ]


def payments(certificate: Certificate) -> list[tuple[str, str, str, str]]:
    """The earlier releases of the data set: reservation, day, what, cost."""
    earlier = () if certificate.balance is None else certificate.balance.earlier
    return [(one.reservation, one.day, one.title, _pair((one.epsilon, one.delta))) for one in earlier]


def telling_curve(certificate: Certificate) -> tuple[tuple[float, float], ...]:
    """The pairs of the curve whose delta is below one over the number of units; larger ones would promise nothing.

    With such a delta it would be allowed to publish some units as they are.
    """
    kind, _, mode = certificate.unit.partition(":")
    units = 1_000.0
    if kind in ("slice", "slice_values"):
        units = certificate.shape[certificate.mode_names.index(mode)] if mode in certificate.mode_names else units
    elif certificate.asked is not None and certificate.asked.expected_count is not None:
        units = certificate.asked.expected_count
    return tuple((delta, epsilon) for delta, epsilon in certificate.curve if delta < 1 / max(units, 1_000.0))


def plain_theorems(certificate: Certificate) -> list[dict[str, str]]:
    """The theorems with their reason in plain words, their statement, source and page."""
    instead = {stage.instead for stage in certificate.stages}
    return [
        {
            "name": one.name,
            "plain": (OR_ELSE if one.name in instead else "") + IN_PLAIN_WORDS.get(one.name, ""),
            "statement": one.statement,
            "source": one.source,
            "page": one.page,
        }
        for one in certificate.theorems
    ]


def _pair(pair: tuple[float, float]) -> str:
    return f"ε {pair[0]:.6g}" + (f", δ {pair[1]:.3g}" if pair[1] else "")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
