"""The fixture of the conformance set: every kernel runs on the simulator and, where there is one, on the GPU."""

from __future__ import annotations

import pytest
from tests.conformance.harness import Backend, Gpu, Simulator


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Where a kernel runs, and how arrays get there and back."""
    if request.param == "sim":
        return Simulator()
    pytest.importorskip("torch")
    return Gpu()
