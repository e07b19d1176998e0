"""Writes the pages that are made from the code, and the schemas (`make docs`)."""

import importlib
import json
import sys
from itertools import product
from pathlib import Path

import tensorveil as tv
from tensorveil.privacy.guarantee import SCHEMA_VERSION, STATUSES, Guarantee
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.plan import neighbours_of, public_facts
from tensorveil.privacy.theorems import THEOREMS
from tensorveil.release.certificate.certificate import Certificate

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
layers = importlib.import_module("layers")  # beside this file
reference_pages = importlib.import_module("reference_pages")
sys.path.remove(str(FOLDER))

DATA_FLOW = """# The way data takes, and the order to read the code in

<!-- made by `make docs` from docs/layers.py, which the layer test enforces: change that file, not this page -->

```
public side    Bounds + unit + CP | Tucker + mechanism + (epsilon, delta)
                    | plan()                     reads nothing private
                    v
               Plan: the questions it will ask, their price, their theorems
                    |
               +-------------- Vault ---------------+
Observations --clip--> shards, in canonical order   |   the only object that holds private values
               |  answer, values, symbols           |   every way out adds noise and uses up a paid stage
               +------------------------------------+
                    |  answers: numbers with a known noise law
                    v
               mechanism: decides the next question from earlier answers; never sees a shard
                    |
               inference: answers + noise law --> a model; knows nothing about privacy
                    v
               Release(model, guarantee) --> predict, save, plot, report: post-processing
```

To trust a mechanism, read its queries (`privacy/queries/`), the vault and the noise: `make trust` lists the modules and
their lines. The algorithms of the paper as published are in `published.py`; they go around the vault, and their
guarantee says *claimed*.

A module imports from its own room and from rooms above it in this table; `tests/test_layers.py` keeps it so, and keeps
observations, shards and noise out of `mechanisms/`, and everything but the law of the noise out of `inference/`.

"""
UNITS = ("value", "slice_values", "entry", "slice")
SHAPE = (600, 50, 4)
INTRODUCTION = """# Choose a mechanism

<!-- made by `make docs` from the code: change docs/generate.py, not this page -->

First choose the unit, which says what is protected.

| unit | neighbouring data sets differ in | public besides the shape |
|---|---|---|
"""
ADVICE = """
Then choose the mechanism. Each cell names the theorem ([proofs/](proofs)) and says whether pure privacy (delta = 0) is
possible. An empty cell means that there is no theorem: planning raises `UnprovenError`.

"""
RULES = """
- If nobody but the owner of a value may see it, randomize it at the source ([local_privacy.md](local_privacy.md)).
- For the unit `value` with ratings or other values on a small grid, use `InputPerturbation` (the optimal channel) from
  about epsilon 2.
- For small epsilon (below about 2 under `value`), use `SumPerturbation`. It falls back to the private mean if nothing
  else can be estimated. Under `entry` it is better up to epsilon 3 to 5 where a tenth of the cells is observed, and up
  to more where fewer are; beyond, `InputPerturbation` gives every cell, observed or not, a random symbol.
  `mechanism="auto"` plans for both and decides after the number of observations is released
  (`SumPerturbation(cells=True)`).
- For many observations (10^5 or more) and delta above 0, use `GradientPerturbation`, under `value` and `entry`.
- If indices have levels of their own (strict and lenient users), `WithOffsets(mechanism)` releases a mean and offsets
  first and then runs the mechanism on the residuals, for the same units.
- Objective perturbation, the fourth approach in the literature, is noise on the right-hand sides of least squares under
  `value` ([proof](proofs/objective.md)): `StatisticPerturbation` is of that form, and
  `OutputPerturbation(perturbed="objective")` for the rows of one block. It was nowhere the most accurate, so
  `mechanism="auto"` never takes it.
- Non-negative models (`CP(rank, nonnegative=True)`) are made by `InputPerturbation`, `GradientPerturbation` and local
  answers alone, and `mechanism="auto"` takes one of these ([epsilon_and_rank.md](epsilon_and_rank.md)).
- `InputPerturbation` under `slice` needs `at_most` and adds noise to every cell, so it suits only small tensors. Under
  `entry` and `slice` a tensor may have at most 2 * 10^7 cells.
- For the unit `slice` (all data of one user), use `SumPerturbation`. Users keep their own rows (joint privacy) and call
  `release.personalize(own_observations)`.
- The algorithms of `tensorveil.published` are *claimed*, not proven. Use them only for comparison.

Measured accuracy: [experiments/README.md](../experiments/README.md).
"""


def mechanisms() -> dict[str, tv.StatisticPerturbation]:
    """The proven mechanisms by the name of their class."""
    return {
        "InputPerturbation": tv.InputPerturbation(),
        "GradientPerturbation": tv.GradientPerturbation(),
        "OutputPerturbation": tv.OutputPerturbation(),
        "StatisticPerturbation": tv.StatisticPerturbation(),
        "SumPerturbation": tv.SumPerturbation(),
    }


def unit_for(kind: str) -> tv.Unit:
    """A unit of this kind on the first mode."""
    return tv.Unit(kind, 0, at_most=3) if kind.startswith("slice") else tv.Unit(kind)


def cell(mechanism: tv.StatisticPerturbation, kind: str) -> str:
    """What one mechanism offers for one unit, found out by planning, for CP and Tucker, whole bounds and others."""
    offers: dict[float, set[str]] = {}
    for delta in (0.0, 1e-4):
        for family, bounds in product((tv.CP(2), tv.Tucker(2)), (tv.Bounds(1, 5), tv.Bounds(0.5, 5))):
            try:
                plan = mechanism.plan(family, bounds, unit_for(kind), 1.0, delta, shape=SHAPE)
            except tv.InputError:  # UnprovenError is one, too
                continue
            offers.setdefault(delta, set()).update(stage.theorem for stage in plan.stages)
    if not offers:
        return ""
    names = sorted({name for found in offers.values() for name in found if THEOREMS[name].mechanism != "offsets"})
    kinds = {(True, True): "pure or delta > 0", (True, False): "pure", (False, True): "delta > 0"}
    return f"{', '.join(names)}; {kinds[0.0 in offers, 1e-4 in offers]}"


def choose_page() -> str:
    """The page docs/choose_a_mechanism.md."""
    lines = [INTRODUCTION]
    for kind in UNITS:
        unit = tv.Unit(kind, 0 if kind.startswith("slice") else None)
        lines.append(f"| `{kind}` | {neighbours_of(unit, 'index')} | {public_facts(unit)} |\n")
    lines.append(ADVICE)
    lines.append("| unit | " + " | ".join(mechanisms()) + " |\n|---|" + "---|" * len(mechanisms()) + "\n")
    for kind in UNITS:
        cells = " | ".join(cell(mechanism, kind) for mechanism in mechanisms().values())
        lines.append(f"| `{kind}` | {cells} |\n")
    lines.append(RULES)
    return "".join(lines)


def guarantee_schema() -> dict:
    """The JSON schema of Guarantee.to_json."""
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    stage = {
        "type": "object",
        "required": ["name", "theorem", "event", "sensitivity", "law", "what", "instead", "noise"],
        "properties": {
            "name": text,
            "theorem": {"enum": [name for name, one in THEOREMS.items() if one.mechanism != "ledger"]},
            "event": {"type": "object", "required": ["kind"]},
            "sensitivity": {"type": "object", "required": ["bound", "norm", "words"]},
            "law": {"enum": [str(law) for law in Law]},
            "what": text,
            "instead": {"type": ["string", "null"]},
            "noise": text,
        },
        "additionalProperties": False,
    }
    pair = {"type": "array", "prefixItems": [text, text], "minItems": 2, "maxItems": 2}
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "epsilon": {"type": ["number", "null"], "exclusiveMinimum": 0},  # null: no privacy, status "none"
        "delta": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "unit": text,
        "status": {"enum": list(STATUSES)},
        "source": text,
        "reasons": texts,
        "seeded": {"type": "boolean"},
        "neighbours": text,
        "released": text,
        "not_protected": text,
        "stages": {"type": "array", "items": stage},
        "theorems": texts,
        "assumptions_checked": texts,
        "assumptions_trusted": texts,
        "software": {"type": "array", "items": pair},
        "earlier": {"type": ["object", "null"], "required": ["digest", "epsilon", "delta", "apart", "time", "spans"]},
        "local": {"type": ["object", "null"], "required": ["protocol", "person", "most_answers"]},
        "publishable": {"type": "boolean"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": Guarantee.__name__,
        "description": (Guarantee.__doc__ or "").split("\n")[0],
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def pages() -> dict[str, str]:
    """File name -> content of every generated page."""
    return {
        "choose_a_mechanism.md": choose_page(),
        "data_flow.md": DATA_FLOW + layers.reading_order(),
        "command_line.md": reference_pages.command_line_page(),
        "theorems.md": reference_pages.theorems_page(),
        "api.md": reference_pages.api_page(),
        "guarantee.schema.json": json.dumps(guarantee_schema(), indent=1) + "\n",
        "certificate.schema.json": json.dumps(Certificate.json_schema(), indent=1) + "\n",
    }


def main() -> None:
    for name, content in pages().items():
        aside = FOLDER / f"{name}.part"
        aside.write_text(content)
        aside.replace(FOLDER / name)
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
