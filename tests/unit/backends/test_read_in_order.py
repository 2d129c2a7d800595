"""Reads of what a kernel does not write stay behind the words from outside of the grid that it is there."""

from __future__ import annotations

import re

import pytest

import tilewright as tw


@tw.kernel
def take(out, data, told, how: tw.constexpr, scope: tw.constexpr):
    """Wait for a flag in one of several ways, and copy what it tells of."""
    thread = tw.thread_idx.x
    if thread == 0:
        if how == "acquire":
            while tw.load(told, 0, sem="acquire", scope=scope) == 0:
                pass
        elif how == "fence":
            while tw.load(told, 0, sem="relaxed", scope=scope) == 0:
                pass
            tw.threadfence(scope)
        elif how == "atomic":
            while tw.atomic_add(told, 0, 0, sem="acquire", scope=scope) == 0:
                pass
        elif how == "relaxed":
            while tw.load(told, 0, sem="relaxed", scope=scope) == 0:
                pass
        else:  # what a release alone takes
            tw.threadfence(scope)
            tw.store(told, 0, 1, scope=scope)
    tw.sync_threads()
    out[thread] = data[thread]


ARRAYS = [tw.spec(tw.int32, (32,))] * 3
IN_ORDER = [("acquire", "sys"), ("acquire", "gpu"), ("fence", "sys"), ("fence", "gpu"), ("atomic", "sys")]
# An atomic operation of the GPU's scope is how the blocks of one grid agree; what they read alone nobody writes.
FREE = [("atomic", "gpu"), ("relaxed", "sys"), ("release", "sys"), ("acquire", "cta")]


@pytest.mark.parametrize(("how", "scope"), IN_ORDER)
@pytest.mark.spread(6)
def test_what_others_write_is_read_behind_their_word(how: str, scope: str) -> None:
    source = take[1, 32].source(*ARRAYS, how, scope, arch="sm_90a")
    assert re.search(r"const int\* data,", source), source
    code = take[1, 32].sass(*ARRAYS, how, scope, arch="sm_90a")
    flag = min(code.index(word) for word in ("STRONG", "ATOM") if word in code)
    assert flag < code.index("LDG.E R"), code


@pytest.mark.parametrize(("how", "scope"), FREE)
def test_what_nobody_writes_is_promised_to_the_compiler(how: str, scope: str) -> None:
    assert "const int* __restrict__ data" in take[1, 32].source(*ARRAYS, how, scope, arch="sm_90a")
