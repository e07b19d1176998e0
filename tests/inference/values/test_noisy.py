"""What the fit of a dense box is multiplied by, and where chains begin."""

import numpy as np

import tensorveil as tv
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import rescaling


def test_rescaling_of_the_dense_fit():
    assert rescaling(None, 100) == (1.0, 1.0)
    assert rescaling(100, 100) == (1.0, 1.0)
    assert rescaling(80, 100) == (1.25, 1.25)
    assert rescaling(10, 100) == (10.0, 2.0)


def test_chains_of_large_data_begin_where_they_find_the_factors():
    generator, shape = np.random.default_rng(0), (60, 50, 40)
    factors = [generator.standard_normal((size, 3)) for size in shape]
    truth = np.einsum("ir,jr,kr->ijk", *factors).ravel()
    truth /= truth.std()
    where = np.argwhere(np.ones(shape))
    seen = generator.random(len(where)) < 0.5
    values = np.clip(truth + generator.standard_normal(len(truth)), -12, 12)
    data = tv.Observations(where[seen], values[seen], shape)
    mechanism = tv.InputPerturbation(solver=Posterior(sweeps=60))
    release = tv.complete(data, tv.CP(3), tv.Bounds(-12, 12), "value", 3.0, mechanism=mechanism, seed=0)
    error = np.sqrt(np.mean((release.predict(where[~seen]) - truth[~seen]) ** 2))
    assert error < 0.3  # 0.65 from small random numbers
