"""How kernels are compiled, and that what is kept on disk is never older than the source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tensorveil
from tensorveil.kernels.reference import blocks, descent

PREDICTION = """
import numpy as np
from tensorveil.models.tucker import TuckerModel
print(float(TuckerModel(np.ones((1, 1)), [np.full((2, 1), 2.0), np.full((2, 1), 3.0)]).predict([[0, 0]])[0]))
"""
RIDGE_ROW = """
import numpy as np
from tensorveil.models.tucker import TuckerModel
from tensorveil.solvers.block_updates import Entries, solve_tucker_rows
model = TuckerModel(np.ones((1, 1)), [np.ones((1, 1))] * 2)
values, parameters = np.array([2.0]), model.parameters.copy()
solve_tucker_rows(Entries.of(np.zeros((1, 2), np.uint32), values, (1, 1)), values, model, parameters, 0, 1.0)
print(float(parameters[0]))
"""


@pytest.mark.parametrize("kernel", [descent.predict_cp, descent.sgd_pass, blocks.cp_features, blocks.tucker_features])
def test_kernels_follow_ieee_arithmetic_to_the_letter(kernel):
    # fastmath would remove the checks for NaN that detect divergence
    assert not kernel.targetoptions.get("fastmath", False)
    assert not kernel.targetoptions.get("parallel", False)
    assert kernel.targetoptions["error_model"] == "numpy"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, callee, old, new, results",
    [
        (PREDICTION, "reference/blocks.py", "xhat = work[begin]", "xhat = 100.0 * work[begin]", (6.0, 600.0)),
        # the caller is a kernel of another folder, fast/tucker.py
        (RIDGE_ROW, "reference/least_squares.py", "= np.sqrt(total)", "= 10.0 * np.sqrt(total)", (1.0, 0.01)),
    ],
)
def test_a_changed_kernel_is_compiled_anew_with_all_that_call_it(tmp_path, program, callee, old, new, results):
    package = tmp_path / "src" / "tensorveil"
    shutil.copytree(Path(tensorveil.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def result() -> float:
        command = [sys.executable, "-c", program]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert result() == pytest.approx(results[0])
    source = package / "kernels" / callee
    changed = source.read_text().replace(old, new)
    assert changed != source.read_text()
    source.write_text(changed)
    assert result() == pytest.approx(results[1])
