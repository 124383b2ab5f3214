# SPDX-License-Identifier: Apache-2.0
import collections

_global_optimizer_post_hooks = collections.OrderedDict()


def register_optimizer_step_post_hook(hook):
    _global_optimizer_post_hooks[len(_global_optimizer_post_hooks)] = hook
    return hook


class Optimizer:
    """A step calls the global hooks with the optimizer and the arguments it was called with."""

    def step(self, *args):
        result = self._step(*args)
        for hook in list(_global_optimizer_post_hooks.values()):
            hook(self, args, {})
        return result


class SGD(Optimizer):
    def __init__(self):
        self.value = 1.0

    def _step(self):
        self.value *= 0.5
        return self.value
