"""`tensorveil inspect`."""

from pathlib import Path
from typing import Annotated

import typer


def inspect_release(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a release.")],
    registry: Annotated[
        bool,
        typer.Option(
            "--registry", help="Print a draft record for the OpenDP Deployments Registry (JSON, which is also YAML)."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Show the guarantee of a release, its stages, its shape and its files.

    Examples:

    tensorveil inspect DIR

    tensorveil inspect DIR --registry > deployment.yaml
    """
    import json

    from tensorveil.cli.console import print_json, print_table, say
    from tensorveil.release.certificate.certificate import Certificate
    from tensorveil.release.release import Release

    release = Release.load(directory)
    certificate = Certificate.of(release)
    if registry:
        from tensorveil.release.certificate.registry import TO_FILL_IN

        print_json(certificate.to_deployment_record())
        say("please fill in: " + ", ".join(TO_FILL_IN), aside=True)
        return
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "statement": str(certificate.guarantee),
                "certificate": json.loads(certificate.to_json()),
            }
        )
        return
    say(str(certificate.guarantee))
    sizes = zip(certificate.shape, certificate.mode_names, release.labels, release.bins, strict=True)
    modes = [
        f"{size:,} {name}" + (f" (by {bins})" if bins else "") + (" (no labels)" if labels is None else "")
        for size, name, labels, bins in sizes
    ]
    ranks = certificate.model.ranks
    rank = str(ranks[0]) if certificate.model.family == "cp" else ", ".join(map(str, ranks))
    bounds = "none" if certificate.bounds is None else f"{certificate.bounds.low:g} to {certificate.bounds.high:g}"
    ledger = certificate.ledger
    facts = (
        ("status", certificate.status + ("" if certificate.publishable else ": not for publication")),
        ("made", f"{certificate.created} by {certificate.mechanism}, tensorveil {certificate.software['tensorveil']}"),
        ("model", f"{certificate.model.kind} of rank {rank}"),
        ("modes", "; ".join(modes)),
        ("values", f"{certificate.value_name}, bounds {bounds}"),
        ("may be released", certificate.may_be_released),
        ("must not be released", "; ".join(certificate.must_not_be_released)),
        ("paid from", "no ledger" if ledger is None else f"{ledger.dataset}, reservation {ledger.reservation}"),
        ("files", "\n".join(f"{file} {digest[:16]}..." for file, digest in certificate.files.items())),
        ("digest", certificate.digest),
    )
    print_table(facts)
    if certificate.stages:
        stages = [(one.name, one.noise, str(one.sensitivity), one.proven_by) for one in certificate.paid_stages]
        headings = ("stage", "noise", "sensitivity", "theorem")
        print_table(stages, headings, title="stages: every query on the data and its cost")
    say(f"To check the release, run: tensorveil verify {directory}")
