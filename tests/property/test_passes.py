"""No pass changes what a kernel does: random kernels run before and after each."""

from __future__ import annotations

import copy
import warnings

from hypothesis import HealthCheck, given
from tests.helpers.interpreter import Failure, Run, run
from tests.helpers.kernels import Case, kernels
from tests.helpers.slow import examples

from tilewright.errors import TilewrightWarning
from tilewright.ir.core import Kernel
from tilewright.ir.printer import to_text
from tilewright.ir.verify import verify
from tilewright.passes.pipeline import PASSES, run_passes

some = examples(8, 80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def outcome(case: Case, kernel: Kernel) -> Run | str:
    try:
        return run(kernel, case.inputs, case.memory)
    except Failure as failure:
        return str(failure)


@some
@given(kernels())
def test_each_pass_alone_keeps_the_meaning(case: Case) -> None:
    verify(case.kernel)
    expected = outcome(case, case.kernel)
    for change in dict.fromkeys(PASSES):
        kernel = copy.deepcopy(case.kernel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TilewrightWarning)
            change(kernel)
        verify(kernel)
        assert outcome(case, kernel) == expected, change.__name__


@some
@given(kernels())
def test_the_pipeline_keeps_the_meaning_and_settles(case: Case) -> None:
    expected = outcome(case, case.kernel)
    kernel, again = case.kernel, copy.deepcopy(case.kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        run_passes(kernel, verify_each=True)
        run_passes(again)
    assert outcome(case, kernel) == expected
    assert to_text(kernel) == to_text(again), "the same kernel gives the same result"
