# SPDX-License-Identifier: Apache-2.0
from torch.optim.optimizer import SGD, Optimizer  # noqa: F401
