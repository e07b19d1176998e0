"""`verify`: recompute what a certificate states, with a second method where one exists. Any doubt is a failed check."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from tensorveil import __version__
from tensorveil.errors import InputError
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.parts import never_in_both
from tensorveil.privacy.guarantee import software_versions
from tensorveil.release import saving
from tensorveil.release.certificate import prices, statements
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.certificate.questions import DOUBT, OK, Check, NotRunError, asked, need
from tensorveil.release.certificate.records import BalanceRecord
from tensorveil.release.ledger.accounts import paid_reservation
from tensorveil.release.ledger.balance import balance_of
from tensorveil.release.ledger.chain import Chain
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.release import Release
from tensorveil.release.report.variation import variation, variation_of

DRAWING = re.compile(r"<svg .*?</svg>", re.DOTALL)
DESCRIPTION = re.compile(r"<title>.*?</title>", re.DOTALL)


def verify(directory: str | Path, ledger: str | Path | None = None) -> tuple[Check, ...]:
    """Run every check of a release; a check that fails for any reason is a doubt.

    With a ledger file, also check that this ledger paid for the release, with the same cost and unit.

    Examples
    --------
    >>> [(check.name, check.state) for check in verify("no/such/folder")]
    [('folder', 'doubt')]
    """
    try:
        contents = saving.read_folder(directory)
    except InputError as error:
        return (Check("folder", DOUBT, str(error)),)
    folder = Check("folder", OK, f"{', '.join(saving.FILES)}, and nothing else")
    try:
        certificate = Certificate.from_json(contents[saving.CERTIFICATE])
    except InputError as error:
        return (folder, Check("schema", DOUBT, str(error)))
    found = (folder, *_checks_of(certificate, contents))
    return found if ledger is None else (*found, asked("ledger", lambda: _paid(certificate, ledger)))


FACTS = (  # questions about the certificate alone, in the order of the table; a name is that of the check
    statements.status,
    statements.randomness,
    statements.unit,
    statements.theorems,
    statements.words,
    statements.stages,
    prices.epsilon,
    prices.delta,
    prices.closed_form,
    prices.second_accountant,
    prices.curve,
)


def _checks_of(certificate: Certificate, contents: Mapping[str, bytes]) -> Iterator[Check]:
    yield asked("schema", lambda: _form(certificate, contents[saving.CERTIFICATE]))
    yield asked("digest", lambda: _digest(certificate))
    for name in saving.HASHED:
        yield asked(f"hash of {name}", partial(_hash, certificate, name, contents[name]))
    yield asked("model", lambda: _model(certificate, contents))
    yield asked("labels", lambda: _labels(certificate, contents))
    yield asked("earlier release", lambda: _earlier(certificate, contents))
    for question in FACTS:
        yield asked(question.__name__.replace("_", " "), partial(question, certificate))
    pages = cache(lambda: _pages(certificate, contents))
    yield asked("report", lambda: _report(certificate, pages))
    yield asked("drawings", lambda: _drawings(certificate, pages))


def _form(certificate: Certificate, text: bytes) -> str:
    need(text == certificate.to_json().encode(), "the text is not in canonical form; it was changed")
    return f"version {certificate.schema_version}, every field follows the schema"


def _digest(certificate: Certificate) -> str:
    found = certificate.computed_digest()
    need(found == certificate.digest, f"the fields have the digest {found[:16]}..., not the stated one")
    return f"{found[:16]}..."


def _hash(certificate: Certificate, name: str, data: bytes) -> str:
    need(set(certificate.files) == set(saving.HASHED), "the certificate does not list exactly the released files")
    found = saving.sha256(data)
    need(found == certificate.files[name], f"the file has the SHA-256 {found[:16]}..., not the stated one")
    return f"{found[:16]}..."


def _model(certificate: Certificate, contents: Mapping[str, bytes]) -> str:
    varied = _variation(certificate, saving.read_model(contents[saving.MODEL], certificate))
    sizes = " x ".join(map(str, certificate.shape))
    told = f"{certificate.model.kind}, {sizes}, ranks {certificate.model.ranks}, all numbers finite; {varied}"
    return told if certificate.personalize is None else f"{told}; no rows of {certificate.personalize.mode_name}"


def _variation(certificate: Certificate, model: Completion) -> str:
    """How far predictions differ, computed again from the model; the last digits may depend on the machine."""
    stated = certificate.variation
    made = variation_of(model)
    need(
        (stated is None) == (made is None),
        "the variation of predictions is stated for a model that has none, or left out for one that has it",
    )
    if stated is None or made is None or certificate.bounds is None:
        return "the model predicts nothing on its own"
    least = 1e-9 * (certificate.bounds.high - certificate.bounds.low)  # below that, predictions are the same
    for name in ("predictions", "values"):
        told, found = getattr(stated, name), made[name]
        known = told is not None and found is not None
        close = math.isclose(told, found, rel_tol=1e-4, abs_tol=least) if known else told is found
        need(close, f"the standard deviation of {name} is {found!r}, not {told!r} as stated")
    follows = variation(stated.predictions, stated.values, certificate.bounds.low, certificate.bounds.high)
    need(stated.nearly_constant == follows["nearly_constant"], "the stated numbers say otherwise of nearly_constant")
    return "the predictions are nearly constant" if stated.nearly_constant else "the predictions differ between cells"


def _labels(certificate: Certificate, contents: Mapping[str, bytes]) -> str:
    labels, _ = saving.read_labels(contents[saving.LABELS], certificate)
    named = [name for name, part in zip(certificate.mode_names, labels, strict=True) if part is not None]
    return f"labels of {', '.join(named)}" if named else "no labels; the indices are only numbered"


def _earlier(certificate: Certificate, contents: Mapping[str, bytes]) -> str:
    """What this release and those that it follows cost together, and whether the labels split the data as stated."""
    told, found = certificate.guarantee, certificate.earlier
    if found is None or told.earlier is None:
        need(certificate.together is None, "a cost of several releases is stated, but it follows no other one")
        return "it follows no other release"
    need(told.with_earlier == certificate.together, f"both releases cost {told.with_earlier!r}, not what is stated")
    need(found.time in certificate.mode_names, "the mode that splits the data is not one of the tensor's")
    number = certificate.mode_names.index(found.time)
    labels = saving.read_labels(contents[saving.LABELS], certificate)[0][number]
    after = range(certificate.shape[number]) if labels is None else labels
    split = never_in_both(certificate.request.unit, number, found.spans, after)
    need(split or not found.apart, "a unit may be in both data sets, but their costs are not added up")
    return told.earlier.sentence(told.with_earlier)


def _report(certificate: Certificate, pages: Callable[[], tuple[str, str]]) -> str:
    """The page must be the one that this software makes from the certificate and the model, drawings aside."""
    theirs, mine = (_words_of(page) for page in pages())
    made_by, here = certificate.software["tensorveil"], __version__
    other = (
        ""
        if made_by == here
        else f" (it was made by tensorveil {made_by}, but this is {here}; verify with that version)"
    )
    place = next((place for place, (one, two) in enumerate(zip(theirs, mine, strict=False)) if one != two), None)
    if place is not None:
        raise InputError(f"it reads {theirs[place]!r:.160} where the certificate gives {mine[place]!r:.160}{other}")
    need(
        len(theirs) == len(mine),
        f"its length differs from that of a page made from the certificate and the model{other}",
    )
    return "every word and figure follows from the certificate and the model"


def _drawings(certificate: Certificate, pages: Callable[[], tuple[str, str]]) -> str:
    theirs, mine = (DRAWING.findall(page) for page in pages())
    if theirs != mine:
        drawn_by, here = certificate.software.get("matplotlib"), dict(software_versions())["matplotlib"]
        if drawn_by != here:
            raise NotRunError(f"drawn by matplotlib {drawn_by or 'of unknown version'}, this is {here}")
        raise InputError("they differ from the drawings made from the certificate and the model")
    return f"{len(mine)} drawings, equal to those made from the certificate and the model"


def _pages(certificate: Certificate, contents: Mapping[str, bytes]) -> tuple[str, str]:
    """The report in the folder, and a newly made one."""
    from tensorveil.release.report.report import report_html

    release = Release(**saving.parts_of(contents, certificate))
    files = {name: digest for name, digest in certificate.files.items() if name != saving.REPORT}
    return contents[saving.REPORT].decode(), report_html(release, certificate.with_files(files))


def _words_of(page: str) -> list[str]:
    """A page line by line, with the descriptions of drawings in place of the drawings."""
    return DRAWING.sub(lambda drawing: "".join(["<svg>", *DESCRIPTION.findall(drawing[0])]), page).split("\n")


def _paid(certificate: Certificate, path: str | Path) -> str:
    """Whether the ledger was charged for these stages and has recorded this folder."""
    entries = Chain(path).read()
    account, number = paid_reservation(entries, certificate)
    folders = account.folders.get(number, [])
    need(
        not folders or certificate.digest in folders, f"the ledger has recorded other folders for reservation {number}"
    )
    need(
        certificate.balance is None
        or certificate.balance == BalanceRecord(**balance_of(entries, account.name, number)),
        "the ledger has another balance of the data set than the certificate states",
    )
    known = "saved" if folders else "drawn; the ledger has no folder on record (use tensorveil ledger record)"
    return f"reservation {number} of data set {account.name!r}, with the same stages and cost, {known}"


def record_folder(ledger: str | Path, directory: str | Path) -> Certificate:
    """Verify the folder of a release and record it in the ledger that paid; returns its certificate."""
    doubts = [f"{check.name}: {check.found}" for check in verify(directory, ledger) if check.state == DOUBT]
    if doubts:
        raise InputError(f"the folder of a release must pass every check, got {'; '.join(doubts)}")
    certificate = Certificate.from_json(saving.read_folder(directory)[saving.CERTIFICATE])
    Ledger(ledger).saved(certificate)
    return certificate
