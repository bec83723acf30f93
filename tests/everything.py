"""Imports what nmtkit's commands import, without a computation: threads that one would start are lost in a fork.

From then on the process does not measure its rate of matrix products, for half a second in each training, and prints no
lines of progress, which on a slow machine would stand where a test expects none.
"""

import importlib
import math
import pkgutil
import sys

import nmtkit

for module in pkgutil.walk_packages(nmtkit.__path__, "nmtkit."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in (
    "safetensors.torch", "rich.table", "rich.progress", "sacrebleu", "sacremoses", "sentencepiece", "ctranslate2",
    "torch._dynamo",  # by the first optimiser, for a second
):  # fmt: skip
    importlib.import_module(name)
sys.modules["nmtkit.console"].SECONDS_BETWEEN_LINES = math.inf  # type: ignore[attr-defined]
for name in ("nmtkit.training.session", "nmtkit.training.prediction"):
    sys.modules[name].matmul_flops_per_second = lambda device, precision: 1e9  # type: ignore[attr-defined]
