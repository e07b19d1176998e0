"""How kernels are compiled, and that what is kept on disk is never older than the source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tensorveil
from tensorveil.kernels.reference import blocks, cp, tucker

PROGRAM = """
import numpy as np
from tensorveil.models.cp import CPModel
print(float(CPModel([np.full((2, 1), 2.0), np.full((2, 1), 3.0)]).predict([[0, 0]])[0]))
"""


@pytest.mark.parametrize("kernel", [blocks.predict, blocks.sgd_pass, cp.features, tucker.features])
def test_kernels_follow_ieee_arithmetic_to_the_letter(kernel):
    # fastmath would remove the checks for NaN that detect divergence
    assert not kernel.targetoptions.get("fastmath", False)
    assert not kernel.targetoptions.get("parallel", False)
    assert kernel.targetoptions["error_model"] == "numpy"


@pytest.mark.slow
def test_a_changed_kernel_is_compiled_anew_with_all_that_call_it(tmp_path):
    package = tmp_path / "src" / "tensorveil"
    shutil.copytree(Path(tensorveil.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def prediction() -> float:
        command = [sys.executable, "-c", PROGRAM]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert prediction() == 6.0
    source = package / "kernels" / "cp.py"
    changed = source.read_text().replace("xhat += left", "xhat += 100.0 * left")
    assert changed != source.read_text()
    source.write_text(changed)
    assert prediction() == 600.0
