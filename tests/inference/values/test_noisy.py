"""What the fit of a dense box is multiplied by."""

from tensorveil.inference.values.noisy import rescaling


def test_rescaling_of_the_dense_fit():
    assert rescaling(None, 100) == (1.0, 1.0)
    assert rescaling(100, 100) == (1.0, 1.0)
    assert rescaling(80, 100) == (1.25, 1.25)
    assert rescaling(10, 100) == (10.0, 2.0)
