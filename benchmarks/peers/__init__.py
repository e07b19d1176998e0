"""Methods of others, written from their papers, to compare with: one file per method, with one function `complete`.

    complete(coordinates, values, shape, asked, seed=0, **settings) -> predictions, one per row of `asked`

Parameters
----------
coordinates : whole numbers, one row per observed cell and one column per mode; every cell at most once
values : numbers, one per observed cell
shape : sizes of the modes
asked : coordinates of the cells to predict
seed : of random starts and draws; methods without any ignore it
settings : the method's own. Defaults are those of its paper, or are chosen by the error on held-out observed cells;
    none depends on the data set. Constants of the solvers that papers leave open were compared on train halves
    (Birmingham's car parks; MovieLens 100K and FilmTrust for private ALS). Facts about the data, such as which modes
    are time, are settings too.

None of these is private, except those that take `bounds`, `epsilon` and `delta`: their noise comes from NumPy's
generator with a seed, so that they are errors to compare with, not releases.

Methods that keep the whole tensor in memory refuse one of more than `LARGEST_DENSE` cells.
"""
