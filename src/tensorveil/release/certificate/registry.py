"""A certificate as a record of the OpenDP Differential Privacy Deployments Registry.

The field names are those of the registry's template (github.com/opendp/deployments-registry-data, 2026). What only the
publisher knows is left empty and listed in `to_fill_in`; docs/certificate.md says which fields match.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorveil.errors import InputError
from tensorveil.privacy.units import Unit

if TYPE_CHECKING:
    from tensorveil.release.certificate.certificate import Certificate

# Fields of the registry that no program can know.
TO_FILL_IN = (
    "url_slug",
    "deployment.basic.name",
    "deployment.basic.data_curators",
    "deployment.basic.intended_use",
    "deployment.basic.data_product_region",
    "deployment.basic.data_product_sector",
    "deployment.basic.publication_date",
    "deployment.deployment_model.data_source_type",
    "deployment.implementation.preprocessing_and_hyperparameter_tuning",
    "deployment.implementation.justification",
    "deployment.administrative.registry_authors",
)


def deployment_record(certificate: Certificate) -> dict[str, Any]:
    """The registry's record, as far as the certificate determines it. Only publishable releases have one."""
    if not certificate.publishable:
        raise InputError(
            f"a registry record must be of a publishable release, got status {certificate.status!r}"
            f"{', seeded' if certificate.seeded else ''}; release without a seed, by a proven mechanism"
        )
    unit = Unit.of(certificate.unit).kind
    pure = certificate.delta == 0
    sizes = " x ".join(f"{size:,} {name}" for size, name in zip(certificate.shape, certificate.mode_names, strict=True))
    bounds = certificate.bounds
    stages = "\n".join(
        f"- {stage.name}: {stage.noise}; sensitivity {stage.sensitivity} (theorem {stage.proven_by})"
        for stage in certificate.paid_stages
    )
    versions = ", ".join(f"{name} {version}" for name, version in certificate.software.items())
    whole = unit in ("slice", "slice_values")
    mode = certificate.unit.partition(":")[2]
    privacy_loss: dict[str, Any] = {
        "privacy_unit": f"all {'observations' if unit == 'slice' else 'values'} of one {mode}"
        if whole
        else {"value": "one value", "entry": "one observation"}[unit],
        "privacy_unit_details": f"Two data sets are adjacent if {certificate.neighbours}.",
        "privacy_parameters": {"epsilon": certificate.epsilon, **({} if pure else {"delta": certificate.delta})},
        "privacy_parameters_details": "The run is (epsilon, delta)-private also for these pairs: "
        + "; ".join(f"({epsilon:g}, {delta:g})" for delta, epsilon in certificate.curve)
        + ".",
    }
    if whole:
        privacy_loss["number_of_privacy_units"] = certificate.shape[certificate.mode_names.index(mode)]
    return {
        "url_slug": "",
        "deployment": {
            "basic": {
                "name": "",
                "data_curators": [],
                "description": (
                    f"A {certificate.model.kind} model of "
                    f"ranks {', '.join(map(str, certificate.model.ranks))} that predicts {certificate.value_name} in a "
                    f"tensor of {sizes} ({math.prod(certificate.shape):,} cells), made by {certificate.mechanism}."
                ),
                "intended_use": "",
                "data_product_type": "Machine learning model",
                "data_product_region": "",
                "publication_date": "",
            },
            "dp_variant": {
                "variant_name": "Pure DP" if pure else "Approximate DP",
                "data_domain": f"Sets of observed cells of a tensor of {sizes}"
                + ("" if bounds is None else f", values clipped to [{bounds.low:g}, {bounds.high:g}]")
                + ("" if certificate.second is None else f"; and of a second table: {certificate.second}")
                + ".",
                "unprotected_quantities": certificate.not_protected,
            },
            "privacy_loss": privacy_loss,
            "deployment_model": {
                "model_name": "Central" if certificate.local is None else "Local",
                "model_name_details": "Joint differential privacy: " + certificate.may_be_released
                if certificate.personalize is not None
                else "",
                "trust_assumptions": "\n".join(f"- {text}" for text in certificate.assumptions_trusted),
                "release_type": "One release",
                "release_type_details": ""
                if certificate.ledger is None
                else f"Paid from the budget of the data set {certificate.ledger.dataset!r} in a ledger.",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "",
                "mechanisms": f"{stages}\n- randomness: {certificate.randomness.generator}, keyed by "
                f"{certificate.randomness.key_source}; {certificate.randomness.grid}\n- software: {versions}",
                "composition": "Epsilons of pure stages are added."
                if pure
                else "Stages are composed as privacy loss distributions (dp-accounting), the finite precision of the "
                "noise included.",
                "post_processing": "Offsets and factors are computed from noisy statistics; predictions are clipped to "
                "the bounds.",
                "justification": "",
                "additional_information": f"tensorveil certificate {certificate.digest}.",
            },
            "administrative": {"status": "Draft", "registry_authors": [], "tier": 3},
        },
    }
