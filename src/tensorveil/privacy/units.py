"""The unit of privacy: what one change between neighbouring data sets is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import final

from tensorveil import checks
from tensorveil.errors import InputError

KINDS = ("value", "slice_values", "entry", "slice")
FORMS = "value, entry, slice:MODE or slice_values:MODE"


@final
@dataclass(frozen=True)
class Unit:
    """What is protected: two data sets are neighbours if they differ in one unit.

    - ``value``: one value replaced by any other. All coordinates are public.
    - ``slice_values(mode)``: all values of one index of a mode (a user) replaced. All coordinates are public.
    - ``entry``: one observation added or removed. Nothing is public besides the shape.
    - ``slice(mode)``: all observations of one index of a mode added or removed. Nothing is public besides the shape.

    Attributes
    ----------
    mode : for the two slice units, the mode by number or by name
    at_most : for the two slice units: the number of observations kept per slice, chosen by a keyed hash of their
        coordinates

    Examples
    --------
    >>> Unit.of("slice:user", at_most=50)
    Unit(kind='slice', mode='user', at_most=50)
    >>> str(Unit.slice_values(0))
    'slice_values:0'
    """

    kind: str
    mode: int | str | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        checks.choice("unit", self.kind, KINDS)
        if isinstance(self.mode, Integral) and not isinstance(self.mode, bool):
            object.__setattr__(self, "mode", int(self.mode))
        elif self.whole_slices and not (isinstance(self.mode, str) and self.mode):
            told = "none" if self.mode in (None, "") else repr(self.mode)
            raise InputError(f"unit {self.kind!r} must name a mode, got {told}; write for example {self.kind}:user")
        if not self.whole_slices and self.mode is not None:
            raise InputError(f"unit {self.kind!r} must not name a mode, got {self.mode!r}; leave it out")
        if not self.whole_slices and self.at_most is not None:
            raise InputError(f"at_most must be used with a slice unit, got it with {self.kind!r}; leave it out")
        if self.at_most is not None:
            checks.positive_integer("at_most", self.at_most)

    @classmethod
    def of(cls, unit: str | Unit | None, at_most: int | None = None) -> Unit:
        """A unit from its text, e.g. "value" or "slice:user", or from itself."""
        if isinstance(unit, str) and unit.partition(":")[0] in KINDS:
            kind, colon, mode = unit.partition(":")
            number = int(mode) if re.fullmatch(r"-?[0-9]+", mode) else mode
            unit = cls(kind, number if colon else None)
        if not isinstance(unit, Unit):
            raise InputError(f"unit must be {FORMS}, got {unit!r}; choose what is to be protected")
        return unit if at_most is None else replace(unit, at_most=at_most)

    @classmethod
    def value(cls) -> Unit:
        """One value replaced by any other."""
        return cls("value")

    @classmethod
    def entry(cls) -> Unit:
        """One observation added or removed."""
        return cls("entry")

    @classmethod
    def slice_values(cls, mode: int | str, at_most: int | None = None) -> Unit:
        """All values of one index of a mode replaced."""
        return cls("slice_values", mode, at_most)

    @classmethod
    def slice(cls, mode: int | str, at_most: int | None = None) -> Unit:
        """All observations of one index of a mode added or removed."""
        return cls("slice", mode, at_most)

    @property
    def whole_slices(self) -> bool:
        """Whether the unit is all data of one index, not a single observation."""
        return self.kind in ("slice", "slice_values")

    @property
    def coordinates_public(self) -> bool:
        """Whether coordinates, and so all counts, are public; then a change replaces values and nothing else."""
        return self.kind in ("value", "slice_values")

    def resolved(self, mode_names: Sequence[str]) -> Unit:
        """The same unit with its mode as a number."""
        names, mode = list(mode_names), self.mode
        if mode is None:
            return self
        if isinstance(mode, int):
            number = checks.mode(mode, len(names))
            if str(mode) in names and names.index(str(mode)) != number:
                raise InputError(f"unit must name a mode, got {mode}, both a number and a name; rename the modes")
            return replace(self, mode=number)
        if mode not in names:
            raise InputError(f"unit must name one of the modes {names}, got {mode!r}; correct it, or name the modes")
        return replace(self, mode=names.index(mode))

    @property
    def mode_number(self) -> int:
        """The mode of a resolved slice unit."""
        if not isinstance(self.mode, int):
            raise InputError(f"unit must be resolved to a mode number, got {self!r}; call resolved(mode_names)")
        return self.mode

    def __str__(self) -> str:
        return self.kind if self.mode is None else f"{self.kind}:{self.mode}"
