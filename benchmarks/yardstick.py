"""Builds yardstick.c, if there is a C compiler, and calls it on a workload."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload

FLAGS = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-pthread"]
SPARE = 16
real = ctypes.c_double


def compiler() -> str | None:
    """The C compiler, or None."""
    return shutil.which("gcc") or shutil.which("cc")


class Yardstick:
    """One workload in the yardstick's own layout."""

    def __init__(self, data: Workload, dtype: Any, folder: Path) -> None:
        self.data, self.dtype = data, np.dtype(dtype)
        name = "float" if self.dtype == np.float32 else "double"
        library = folder / f"yardstick_{data.rank}_{name}.so"
        if not library.exists():
            source = Path(__file__).with_name("yardstick.c")
            options = [f"-DRANK={data.rank}", f"-DREAL={name}", str(source), "-o", str(library), "-lm"]
            subprocess.run([str(compiler()), *FLAGS, *options], check=True)
        self.calls = ctypes.CDLL(str(library))
        self.calls.sgd_passes.restype = real
        lanes = 32 // self.dtype.itemsize
        stride = -(-data.rank // lanes) * lanes
        self.rows = [_aligned(size, stride, self.dtype) for size in data.shape]
        self.restart()

    def restart(self, level: float = 0.15, spread: float = 0.1) -> None:
        """Start values around a level."""
        generator = np.random.default_rng(0)
        for rows in self.rows:
            rows[:, : self.data.rank] = level + spread * generator.standard_normal((len(rows), self.data.rank))

    def prepare_descent(self, tiles: tuple[int, int, int], scale: float = 1.0, shift: float = 0.0) -> None:
        """Observations in blocks and tiles, shuffled inside."""
        data, key = self.data, np.zeros(len(self.data), dtype=np.int64)
        halves = [-(-size // 2) for size in data.shape]
        for mode in range(3):
            key = 2 * key + (data.coordinates[:, mode] >= halves[mode])
        for mode in range(3):
            inside = data.coordinates[:, mode] % np.uint32(halves[mode])
            key = tiles[mode] * key + inside.astype(np.int64) * tiles[mode] // halves[mode]
        order = np.argsort(key + 0.999 * np.random.default_rng(0).random(len(key)))
        kind = [("index", np.uint32, 3), ("value", np.float32)]
        self.observations = np.zeros(len(data) + SPARE, dtype=kind)
        self.observations["index"][: len(data)] = data.coordinates[order]
        self.observations["value"][: len(data)] = scale * data.values[order] + shift
        counts = np.bincount(key // int(np.prod(tiles)), minlength=8)
        self.begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def descend(self, threads: int, passes: int = 1, eta: float = 1e-4, penalty: float = 0.01) -> float:
        """Seconds of a pass."""
        start = time.perf_counter()
        rows = [_pointer(part) for part in self.rows]
        places = (_pointer(self.observations), _pointer(self.begins), *rows)
        self.calls.sgd_passes(*places, real(eta), real(penalty), ctypes.c_int64(passes), threads)
        return (time.perf_counter() - start) / passes

    def prepare_sweeps(self) -> None:
        """Observations sorted by every mode."""
        self.modes = []
        data = self.data
        for mode in range(3):
            order = np.argsort(data.coordinates[:, mode], kind="stable")
            others = [number for number in range(3) if number != mode]
            indices = np.zeros((len(data) + SPARE, 2), dtype=np.uint32)
            indices[: len(data)] = data.coordinates[order][:, others]
            counts = np.bincount(data.coordinates[:, mode], minlength=data.shape[mode])
            begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            middle = int(np.searchsorted(begins, len(data) // 2))
            self.modes.append((indices, data.values[order].astype(self.dtype), begins, middle, others))

    def sweep(self, threads: int, ridge: float = 1.0) -> float:
        """Seconds of a sweep over all modes."""
        start = time.perf_counter()
        for mode, (indices, values, begins, middle, others) in enumerate(self.modes):
            self.calls.als_mode(
                _pointer(indices),
                _pointer(values),
                _pointer(begins),
                ctypes.c_int64(self.data.shape[mode]),
                ctypes.c_int64(middle),
                _pointer(self.rows[mode]),
                _pointer(self.rows[others[0]]),
                _pointer(self.rows[others[1]]),
                real(ridge),
                threads,
            )
        return time.perf_counter() - start

    def predict(self, where: Any) -> Any:
        """The model at these coordinates."""
        rows = [part[where[:, mode]].astype(np.float64) for mode, part in enumerate(self.rows)]
        return (rows[0] * rows[1] * rows[2]).sum(axis=1)


def _aligned(size: int, stride: int, dtype: Any) -> Any:
    wanted = size * stride * dtype.itemsize
    room = np.zeros(wanted + 64, dtype=np.uint8)
    begin = -room.ctypes.data % 64
    return room[begin : begin + wanted].view(dtype).reshape(size, stride)


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
