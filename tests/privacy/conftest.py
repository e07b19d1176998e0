"""What is tested here happens before the posterior of sums, which is post-processing: a few draws of it will do."""

import pytest

from tensorveil.inference.sums import latent


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(latent, "DRAWS", 4)
    monkeypatch.setattr(latent, "WARM_UP", 2)
