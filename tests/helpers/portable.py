"""What the tests of pickling send to other processes: kernels that are found by their names, and work for workers."""

import numpy as np
from tests.unit.schedule.plans import product

import tilewright as tw


@tw.function
def clamp(x, low):
    if x < low:
        x = low
    return x


@tw.kernel
def double(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        y[i] = clamp(2 * x[i], 0)


@tw.kernel
def racy(y, x):
    tile = tw.shared(x.dtype, 64)
    tile[tw.thread_idx.x] = x[tw.thread_idx.x]
    y[tw.thread_idx.x] = tile[(tw.thread_idx.x + 1) % 64]


@tw.autotune(configs=[tw.Config(factor=2), tw.Config(factor=3)], key=[], store=None)
@tw.kernel
def tuned(y, x, factor: tw.constexpr):
    y[tw.thread_idx.x] = factor * x[tw.thread_idx.x]


class Family:
    """A kernel that is a method, under a private name too."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Family) and self.factor == other.factor

    def __hash__(self):
        return hash(self.factor)

    @tw.kernel
    def scale(self, y, x):
        y[tw.thread_idx.x] = self.factor * x[tw.thread_idx.x]

    @tw.kernel
    def __hidden(self, y, x):
        y[tw.thread_idx.x] = self.factor * x[tw.thread_idx.x]

    @property
    def hidden(self):
        return self.__hidden


def configured(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]


configured = tw.kernel(configured).configure(min_blocks=2)


def blocks(y, x):
    return -(-x.size // 32)


def local_kernel():
    @tw.kernel
    def local(y, x):
        y[tw.thread_idx.x] = x[tw.thread_idx.x]

    return local


def plan_of_a_product(size=16):
    return product(size, size, 8)


def find_a_race(_=None):
    racy[1, 64](np.zeros(64), np.ones(64))


def find_several(_=None):
    with tw.simulate(raise_errors=False) as run:
        racy[1, 64](np.zeros(64), np.ones(64))
        double[1, 64](np.zeros(16), np.ones(32))
    return run


def refused(_=None):
    double[1, 64](np.zeros(16, "datetime64[s]"), np.ones(32))


def run_kernel(launch, values):
    """Run a kernel that came here with its grid and block."""
    result = np.zeros_like(values)
    launch(result, values)
    return result


def call(function, *arrays):
    """Run what takes arrays in place, and return the first."""
    function(*arrays)
    return arrays[0]


def hash_of(things):
    """Say of each thing whether an equal one, made here, finds it in a dict."""
    return [thing in {made(): None} for thing, made in things]


def tiled_copy():
    return tw.make_tiled_copy(tw.atoms.UniversalCopy(64), tw.Layout((32, 8)), tw.Layout((2, 1)))


def tiled_mma():
    return tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.Layout((2, 2, 1)))
