"""The import hook applies both adapters when verl's real modules are imported, and takes them back exactly."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import sources

import verl_compat

PROGRAM = textwrap.dedent(
    """
    import sys, types, pathlib
    import verl_compat

    root = pathlib.Path(sys.argv[1])
    for name in ("verl", "verl.utils", "verl.utils.modelopt", "verl.utils.qat"):  # their __init__ needs ray and more
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        package.__file__ = package.__path__[0] + "/__init__.py"
        sys.modules[name] = package
    device = types.ModuleType("verl.utils.device")
    device.get_device_name = lambda: "cpu"
    sys.modules["verl.utils.device"] = device
    verl_compat.activate()
    import verl.utils.modelopt.vllm_modelopt_patch as modelopt
    import verl.utils.qat.vllm_patch as qat

    ours = "verl_compat.shims.marlin_verl"
    assert modelopt.apply_modelopt_nvfp4_patches.__module__ == ours
    assert qat.apply_qat_patches.__module__ == ours
    assert "vllm.model_executor" not in sys.modules  # nothing of vLLM is imported before verl asks
    verl_compat.revert()
    assert modelopt.apply_modelopt_nvfp4_patches.__module__ == modelopt.__name__
    assert qat.apply_qat_patches.__module__ == qat.__name__
    """
)


def test_adapters_apply_on_import_and_revert() -> None:
    verl, vllm = sources.tree("verl", "0.9.1"), sources.tree("vllm", "0.24.0")
    ours = Path(next(iter(verl_compat.__path__))).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ours, verl, vllm)))}
    environment.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", VERL_COMPAT="auto")
    command = [sys.executable, "-c", PROGRAM, str(verl)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
