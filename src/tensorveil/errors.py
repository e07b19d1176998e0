"""The errors of the package: one base class, one class a kind of trouble.

Every message follows one template: the parameter, the rule, what came, what to do.
"""


class TensorveilError(Exception):
    """Base class of every error that tensorveil raises on purpose."""


class InputError(TensorveilError, ValueError):
    """An argument or a data set breaks a rule; nothing has been computed, drawn or written."""


class SizeError(InputError):
    """The request would need an absurd amount of memory."""


class UnprovenError(InputError):
    """No theorem covers the combination that was asked for; no flag turns this off."""


class BudgetError(TensorveilError):
    """The ledger refuses: the budget does not cover the release, or the ledger cannot be trusted; nothing was spent."""


class SpentError(TensorveilError):
    """Something failed after the budget of a release was reserved: that budget counts as spent.

    What failed is the cause (`__cause__`), whatever its class; the message ends with its words.
    """


class DivergenceError(TensorveilError, ArithmeticError):
    """A solver left the finite numbers.

    Attributes
    ----------
    iteration : int
        The iteration, counted from 1, in which the first non-finite residual appeared.
    """

    def __init__(self, message: str, iteration: int) -> None:
        super().__init__(message)
        self.iteration = iteration

    def __reduce__(self) -> tuple[type["DivergenceError"], tuple[str, int]]:
        # the default would hand only the message to __init__ when a worker process sends the error home
        return type(self), (str(self), self.iteration)


class DownloadError(TensorveilError, OSError):
    """A data set could not be fetched, or what came is not what its checksum promises."""


class MissingDependencyError(TensorveilError, ImportError):
    """An optional library is needed and not installed."""
