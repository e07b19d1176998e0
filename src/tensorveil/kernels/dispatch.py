"""The one rule that decides whether a computation takes its vectorised kernel or the reference."""

FEWEST_FAST = 2**14  # entries from which on kernels that are made for one rank are worth compiling


def worth_compiling(size: int, family: str) -> bool:
    """Whether to run the kernels of `fast/` on about `size` entries of a model of this family ("cp" or "tucker").

    Where a released number depends on the kernel, `size` must be public: the number of cells of the shape, the declared
    count, or the number of observations where coordinates are public. It must never be a private count. (The kernels
    of one query also give the same integers, so that the choice shows in the running time alone.)
    """
    return family == "cp" and size >= FEWEST_FAST
