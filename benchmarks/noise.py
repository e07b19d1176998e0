"""Speed of private noise against numpy's float samplers: python benchmarks/noise.py [count]."""

import sys
import time
from collections.abc import Callable

import numpy as np

from tensorveil.privacy.noise.source import NoiseSource


def best(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of a few runs, the first (compilation) not counted."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10**7
    numpy, source, zeros = np.random.Generator(np.random.PCG64(0)), NoiseSource(), np.zeros(count, np.int64)
    laplace = best(lambda: numpy.laplace(size=count))
    normal = best(lambda: numpy.normal(size=count))
    print(f"{count:,} values; numpy laplace {laplace:.3f} s, normal {normal:.3f} s")
    for scale in (1, 100, 2**28, 2**36):
        ours = best(lambda scale=scale: source.laplace(zeros, grid=1.0, sensitivity=scale, epsilon=1.0))
        print(f"discrete Laplace, scale {scale:>12,} steps  {ours:.3f} s  {ours / laplace:.2f} x numpy")
    for scale in (2**28, 2**29 - 1, 2**36):
        ours = best(lambda scale=scale: source.gaussian(zeros, grid=1.0, sensitivity=1.0, noise_std=scale))
        print(f"Gaussian on the grid, std {scale:>10,} steps  {ours:.3f} s  {ours / normal:.2f} x numpy")


if __name__ == "__main__":
    main()
