from __future__ import annotations

import subprocess
import sys

ORDER = """
import torch
from torch._subclasses import FakeTensorMode
from workloads.sandbox.server import warm_up_tracing

order, enter, backward = [], FakeTensorMode.__enter__, torch.Tensor.backward
FakeTensorMode.__enter__ = lambda self: order.append("fake") or enter(self)
torch.Tensor.backward = lambda self, *args, **keywords: order.append("backward") or backward(self, *args, **keywords)
warm_up_tracing()
print(order[0], "fake" in order)
"""


def test_gradients_are_computed_before_the_first_fake_tensor() -> None:
    """Otherwise a torch that is built for CUDA starts threads for devices that are not there, and no fork can trace."""
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["backward", "True"]
