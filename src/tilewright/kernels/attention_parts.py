"""Keys in parts: where few tiles of tokens leave multiprocessors idle, several blocks share the keys of one.

A part has a result of its own, and lse_p = log(sum(exp(scores))) of its keys. Both are those of all keys by

    out = sum_p exp(lse_p - lse) out_p,    lse = log(sum_p exp(lse_p)).

Source: FlashDecoding (Dao, Haziza, Massa and Sizov 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from tilewright.arch import Arch
from tilewright.kernels._attention_kernels import add_parts
from tilewright.kernels.operands import Operand, launcher
from tilewright.runtime.views import View

MOST_PARTS = 128
_MOST_BYTES = 1 << 26  # of the parts' results: about what L2 keeps
_MOST_WAVES = 4  # of tiles
_BEGINNING = 2  # of a part, in the time of a tile of keys
_ADDING = 4  # up the parts, in the same
_LEAST_GAIN = 1.1
_THREADS = 512


@lru_cache(maxsize=4096)
def count_parts(tiles: int, steps: int, slots: int, numbers: int) -> int:
    """Return how many parts the keys of each of `tiles` are computed in; one if nothing is gained.

    `steps` are the tiles of keys, `slots` how many blocks run at once, and `numbers` those of one part's results.

    >>> count_parts(256, 64, 132, 1 << 20), count_parts(8, 1024, 132, 1 << 12), count_parts(8, 2, 132, 1 << 12)
    (1, 16, 1)
    """

    def time(parts: int) -> int:
        waves = -(-tiles * parts // slots)
        return waves * (-(-steps // parts) + _BEGINNING) + (_ADDING if parts > 1 else 0)

    if tiles == 0 or tiles > _MOST_WAVES * slots:
        return 1
    most = min(MOST_PARTS, steps, _MOST_BYTES // (4 * max(numbers, 1)))
    best = min(range(1, max(most, 1) + 1), key=time)
    return best if time(1) >= _LEAST_GAIN * time(best) else 1


def launch_parts(
    launch: Callable[[View, View | None], None],
    out: View,
    lse: View | None,
    parts: int,
    made: Callable[[tuple[int, ...]], Operand],
    arch: Arch,
) -> None:
    """Launch what computes out and lse: at once, or a batch for each part and batch, and then what adds these up.

    `made` returns an array of a shape for the parts. Where the target can, the second launch begins beside the first.
    """
    if parts == 1:
        launch(out, lse)
        return
    shape = (parts * out.shape[0], *out.shape[1:])
    sums, numbers = (x.view(x.shape, x.info.strides) for x in map(made, (shape, shape[:-1])))
    launch(sums, numbers)
    is_early = not arch.is_amd and arch.number >= 90
    columns = -(-out.shape[3] // 32) * 32
    groups = max(1, _THREADS // columns)
    kernel = add_parts.configure(dependent_launch=True) if is_early else add_parts
    rows = math.prod(out.shape[:3])
    launcher(kernel, rows, columns * groups)(out, lse, sums, numbers, is_early, columns, groups)
