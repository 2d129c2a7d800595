"""Which compilers are installed: a test that needs one skips where it is not."""

from __future__ import annotations

import contextlib

import pytest

from tilewright.errors import CompileError
from tilewright.runtime import nvrtc


def has_nvrtc() -> bool:
    """Say whether NVRTC is installed. It is loaded then, before a test puts a stand-in in the place of libraries."""
    with contextlib.suppress(CompileError):
        return nvrtc.nvrtc_version() is not None
    return False


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
