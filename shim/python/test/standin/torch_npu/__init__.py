# SPDX-License-Identifier: Apache-2.0
import os as _os

import torch

__version__ = _os.environ.get("STANDIN_NPU", "2.6") + ".0+standin"
release = tuple(int(n) for n in __version__.split("+")[0].split(".")[:2])

from torch_npu import _C  # noqa: E402,F401
from torch_npu import npu  # noqa: E402,F401

torch.npu = npu
