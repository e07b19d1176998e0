"""Files of arrays: .tns, .npz and .mat in every form, never unpickled, never absurdly large."""

import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse

import tensorveil as tv
from tensorveil.data.readers import arrays as array_files
from tensorveil.data.readers import sources
from tensorveil.data.readers.files import coordinates_of, read, read_table
from tensorveil.errors import InputError, SizeError
from written_rows import MODES


@pytest.mark.parametrize(
    "content",
    [
        "1 1 2 1.5\n2 3 1 -2\n",
        "# comment\n\n1 1 2 1.5\n2 3 1 -2",
        "1 1 2 1.5\r\n# middle\r\n2 3 1 -2\r\n",
        "1\t1  2 1.5 \n  2 3 1 -2e0\n",
        "\ufeff1 1 2 1.5\n2 3 1 -2\n",
    ],
)
def test_tns_counts_from_one(write, content):
    observations = read(write(content, "data.tns"))
    assert observations.coordinates.tolist() == [[0, 0, 1], [1, 2, 0]]
    assert observations.values.tolist() == [1.5, -2]
    assert observations.shape == (2, 3, 2)
    assert observations.inferred_modes == ("mode_0", "mode_1", "mode_2")
    public = read(write(content, "data.tns"), ["a", "b", "c"], "v", shape=(2, 4, 9))
    assert (public.shape, public.inferred_modes, public.mode_names) == ((2, 4, 9), (), ("a", "b", "c"))
    assert public.labels[2].tolist() == list(range(1, 10))
    table = read_table(write(content, "data.tns"))
    known = coordinates_of(table, ["mode_0", "mode_1", "mode_2"], observations.labels)
    assert known.tolist() == observations.coordinates.tolist()


DENSE = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan]])


def _save_npz(path, **arrays):
    np.savez_compressed(path, **arrays)


def test_npz_and_mat_in_every_form(tmp_path):
    known = tv.Observations.from_dense(DENSE)
    where, values = np.argwhere(~np.isnan(DENSE)), DENSE[~np.isnan(DENSE)]
    np.savez(tmp_path / "dense.npz", tensor=DENSE)
    np.savez(tmp_path / "two.npz", tensor=DENSE, other=np.ones(3))
    np.savez(tmp_path / "entries.npz", coordinates=where, values=values, shape=(2, 3))
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.coo_array((values, tuple(where.T)), shape=(2, 3)))
    scipy.io.savemat(tmp_path / "dense.mat", {"tensor": DENSE, "rank": 3.0, "name": "x"})
    scipy.io.savemat(tmp_path / "small.mat", {"tensor": DENSE}, do_compression=True)
    for name in ("dense.npz", "two.npz", "entries.npz", "sparse.npz", "dense.mat", "small.mat"):
        value = "tensor" if name == "two.npz" else None
        found = read(tmp_path / name, value=value)
        assert found == known, name
        assert found.inferred_modes == (), name
        named = read(tmp_path / name, ["a", "b"], value, labels={"a": ["x", "y"]})
        assert (named.mode_names, named.labels[0].tolist()) == (("a", "b"), ["x", "y"])
    np.savez(tmp_path / "shapeless.npz", coordinates=where, values=values)
    assert read(tmp_path / "shapeless.npz").inferred_modes == ("mode_0", "mode_1")
    with pytest.raises(InputError, match=r"value must name one of the arrays \['other', 'tensor'\]"):
        read(tmp_path / "two.npz")
    with pytest.raises(InputError, match="the size of 'mode_0' must be one number"):
        read(tmp_path / "entries.npz", shape=(3, 3))


def test_arrays_are_never_unpickled_and_never_absurd(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    path = tmp_path / "data.npz"
    np.savez(path, tensor=np.array([[Bomb(), 1]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="plain arrays"):
        read(path)
    assert not (tmp_path / "exploded").exists()
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**12}, 2), }}".ljust(117).encode()
        + b"\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tensor.npy", header + bytes(16))
    with pytest.raises(InputError, match="plain arrays"):
        read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tensor.npy", bytes(1000))
    declared = bytearray(path.read_bytes())
    at = declared.rindex(b"PK\x01\x02") + 24
    declared[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(bytes(declared))
    with pytest.raises(InputError):
        read(path)
    np.savez_compressed(path, tensor=np.zeros((10_001, 10_000), np.int8))
    with pytest.raises(SizeError, match="at most 100,000,000 cells"):
        read(path)
    scipy.io.savemat(tmp_path / "big.mat", {"tensor": np.zeros((10_001, 10_000), np.int8)}, do_compression=True)
    with pytest.raises(SizeError, match="at most 100,000,000 cells"):
        read(tmp_path / "big.mat")


def test_a_declared_size_beyond_all_measure_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "data.npz", tensor=np.zeros((200, 200)))
    assert len(read(tmp_path / "data.npz")) == 40_000
    with monkeypatch.context() as patch:
        patch.setattr(array_files, "MOST_BYTES", 1000)
        with pytest.raises(SizeError, match="at most 1,000 bytes"):
            read(tmp_path / "data.npz")
    monkeypatch.setattr(array_files, "SUSPECT_BYTES", 1000)
    with pytest.raises(SizeError, match="at most 200 times its compressed size"):
        read(tmp_path / "data.npz")
    zeros = np.zeros(10**5)
    table = pa.table({"user": zeros.astype(int), "film": np.arange(10**5) // 999, "stars": zeros})
    pq.write_table(table, tmp_path / "p.parquet")
    assert (tmp_path / "p.parquet").stat().st_size < 10**4
    monkeypatch.setattr(sources, "SUSPECT_ROWS", 1000)
    monkeypatch.setattr(sources, "SUSPECT_RATIO", 10)
    with pytest.raises(SizeError, match="at most 10 rows per byte, got one that declares 100,000"):
        read(tmp_path / "p.parquet", MODES, "stars")


@pytest.mark.parametrize("kind", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("shape", [(1, 2), (3, 4), (2, 3, 4), (2, 1, 3, 2), (3, 2, 1, 2, 2)])
@pytest.mark.parametrize("compression", [False, True])
def test_matlab_arrays_are_those_that_scipy_wrote(tmp_path, kind, shape, compression):
    array = np.random.default_rng(1).integers(0, 100, shape).astype(kind)
    others = {"name": "text", "cells": np.array([1, "a"], dtype=object), "complex": np.array([1j, 2]), "one": 1.0}
    scipy.io.savemat(tmp_path / "a.mat", {**others, "long_name_of_an_array": array}, do_compression=compression)
    assert np.array_equal(read(tmp_path / "a.mat").to_dense(), array)


def test_new_matlab_files_are_refused_by_their_version(write):
    with pytest.raises(InputError, match=r"version 7.2 or less, got 7.3; save with '-v7'"):
        read(write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + bytes(600), "data.mat"))
