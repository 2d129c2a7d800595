"""The list of passes, in order. Both backends run what comes out of it."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.core import Kernel
from tilewright.ir.verify import verify
from tilewright.passes.contract_multiply_add import contract_multiply_add
from tilewright.passes.count_remainders import count_remainders
from tilewright.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.passes.fold_constants import fold_constants
from tilewright.passes.forward_unchanged_values import forward_unchanged_values
from tilewright.passes.hoist_invariants import hoist_invariants
from tilewright.passes.keep_product_loops import keep_product_loops
from tilewright.passes.order_sums import order_sums
from tilewright.passes.pair_conversions import pair_conversions
from tilewright.passes.place_shared_memory import place_shared_memory
from tilewright.passes.unroll_register_loops import unroll_register_loops

PASSES: tuple[Callable[[Kernel], None], ...] = (
    forward_unchanged_values,  # first, so that folding sees through loops
    fold_constants,
    forward_unchanged_values,  # what folding has made equal
    count_remainders,  # before dead code, which the divisions then are
    eliminate_dead_code,  # before uses are counted
    order_sums,  # before hoisting, which takes out whole sums
    hoist_invariants,  # before common expressions, so that two loops share what leaves them
    eliminate_common_subexpressions,
    contract_multiply_add,  # after them, because a product with two uses stays
    pair_conversions,
    unroll_register_loops,
    keep_product_loops,  # after it: a loop over registers is unrolled
    place_shared_memory,  # last: the accesses are final
)


def run_passes(kernel: Kernel, *, verify_each: bool = False) -> None:
    """Lower a traced kernel in place to what the backends run.

    `verify_each` checks the IR before the first pass and after each, which costs more than the passes.
    """
    if verify_each:
        verify(kernel)
    for run in PASSES:
        run(kernel)
        if verify_each:
            verify(kernel)
