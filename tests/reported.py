"""Releases with random numbers, and what a reader finds on the page of a report."""

from html.parser import HTMLParser

import numpy as np

import tensorveil as tv
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.guarantee import Guarantee

NAMES = ("user", "film", "day")
VOID = {"meta", "br", "img", "link", "input"}


def release_of(
    shape=(4, 3, 2), family=None, unit="value", epsilon=1.0, delta=1e-6, *, seeded=False, joint=False, **names
):
    """A release with random numbers: what a report shows does not depend on how they came about."""
    order = len(shape)
    family = family or tv.CP(rank=1)
    rng = np.random.default_rng(1)
    mode_names = names.pop("mode_names", NAMES if order == 3 else tuple(f"mode_{mode}" for mode in range(order)))
    plan = tv.StatisticPerturbation(sweeps=1).plan(
        family, tv.Bounds(1, 5), unit, epsilon, delta, shape=shape, mode_names=mode_names
    )
    blocks = [rng.normal(size=block) for block in family.block_shapes(shape)]
    offsets = [rng.normal(size=size) * 0.2 for size in shape]
    withheld = 0 if joint else None
    if joint:
        blocks[0] = np.zeros_like(blocks[0])
        offsets[0] = None
    model = Completion(Offsets(0.1, offsets), family.model(blocks), 1.0, 5.0, withheld_mode=withheld)
    guarantee = Guarantee.of_run(plan, (), seeded=seeded, joint=joint)
    return tv.Release(model, guarantee, plan, mode_names=mode_names, **names)


class Page(HTMLParser):
    """Tags with their attributes, visible text, and whether every element is closed in its turn."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.words.append(data)

    def all(self, tag):
        return [attributes for found, attributes, _ in self.tags if found == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())
