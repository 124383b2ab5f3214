# SPDX-License-Identifier: Apache-2.0
"""Which training step the program is at, from its optimizers or from heapwire.step()."""

import weakref


class Counter:
    """Steps that are over, counted from 1.

    With several optimizers a step is over when the first of them has made it: the count is the maximum over optimizers, so that
    one a parameter, or generator and discriminator, count as one. An optimizer seen later joins at the step under way.
    """

    def __init__(self):
        self.reset()

    def reset(self):
        self.last = None  # no step is over yet
        self.explicit = False
        self._counts = weakref.WeakKeyDictionary()

    def optimizer_stepped(self, optimizer):
        """Whether a step is over with it."""
        if self.explicit:
            return False
        last = self.last or 0
        count = self._counts.get(optimizer)
        if count is None:
            count = max(last - 1, 0)
        count += 1
        self._counts[optimizer] = count
        if count <= last:
            return False
        self.last = count
        return True

    def stepped(self, n=None):
        self.explicit = True
        self.last = (self.last or 0) + 1 if n is None else int(n)


class Windows:
    """Every N steps: the first and the last step of the window that is over."""

    def __init__(self, steps):
        self.steps = steps
        self.reset()

    def reset(self):
        self._first = None
        self._last = None

    def over(self, step):
        if not self.steps:
            return None
        if self._last is None or step != self._last + 1:
            # The first step that is seen, or a jump: a checkpoint was loaded.
            self._first = step
        self._last = step
        if step - self._first + 1 < self.steps:
            return None
        first, self._first = self._first, step + 1
        return first, step
