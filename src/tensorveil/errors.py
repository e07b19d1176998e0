"""The errors of the package: one base class, and one class per kind of problem.

Every message states the parameter, the rule, what was given, and what to do.
"""


class TensorveilError(Exception):
    """Base class of every error that tensorveil raises on purpose."""


class InputError(TensorveilError, ValueError):
    """An argument or a data set breaks a rule; nothing has been computed, drawn or written."""


class SizeError(InputError):
    """The request would need far too much memory."""


class UnprovenError(InputError):
    """No theorem covers the requested combination; this check cannot be turned off."""


class BudgetError(TensorveilError):
    """The ledger refuses: the budget does not cover the release, or the ledger cannot be trusted; nothing was spent."""


class SpentError(TensorveilError):
    """A run failed after the budget of its release was reserved, so the budget counts as spent.

    The original error is the cause (`__cause__`), unless memory ran out; the message ends with its text.
    """


class DivergenceError(TensorveilError, ArithmeticError):
    """A solver diverged: a number became infinite or NaN.

    Attributes
    ----------
    iteration : the iteration, counted from 1, in which the first non-finite residual appeared
    """

    def __init__(self, message: str, iteration: int) -> None:
        super().__init__(message)
        self.iteration = iteration

    def __reduce__(self) -> tuple[type["DivergenceError"], tuple[str, int]]:
        # the default would hand only the message to __init__ when a worker process sends the error home
        return type(self), (str(self), self.iteration)


class DownloadError(TensorveilError, OSError):
    """A data set could not be downloaded, or its checksum is wrong."""


class MissingDependencyError(TensorveilError, ImportError):
    """An optional library is needed and not installed."""


class VaultError(TensorveilError):
    """A mechanism asked for something that its plan has not priced; nothing was drawn."""
