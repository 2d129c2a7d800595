from __future__ import annotations

import pytest

from tilewright.runtime.compiler_log import (
    CompilerMessage,
    Resources,
    parse_errors,
    parse_resources,
    places_of_ptx_line,
    ptx_line_of,
)

LOG = """k.cu(6): warning #177-D: variable "Used 99 registers" was declared but never referenced
    int unused = 3;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

ptxas warning : For profile sm_80 adjusting per thread register count of 16 to lower bound of 24
ptxas info    : Overriding maximum register limit 256 for 'k2' with  24 of maxrregcount option
ptxas info    : 4 bytes gmem, 64 bytes cmem[3], 8 bytes cmem[4]
ptxas info    : Compiling entry function 'k2' for 'sm_80'
ptxas info    : Function properties for k2
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compile time = 1.501 ms
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 80 registers, used 4 barriers, 40 bytes cumulative stack size, 1024 bytes smem, 372 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 8.179 ms
"""


def test_resources_of_one_kernel_among_others() -> None:
    assert parse_resources(LOG, "k") == Resources(
        registers=80,
        spill_stores=8,
        spill_loads=12,
        stack_bytes=40,
        static_shared_bytes=1024,
        constant_bytes=380,
        local_bytes=40,
        barriers=4,
    )
    assert parse_resources(LOG, "k").spills
    assert parse_resources(LOG, "k2") == Resources(registers=8, constant_bytes=360)


@pytest.mark.parametrize("log", ["", "ptxas info    : 0 bytes gmem\n", LOG.replace("'k'", "'other'")])
def test_a_log_without_the_kernel_has_no_resources(log: str) -> None:
    assert parse_resources(log, "k") == Resources()


def test_errors_are_told_from_warnings() -> None:
    log = """k.cu(1): error: a value of type "const char *" cannot be used
  int x = "s";
          ^

k.cu(3): warning #39-D: division by zero
   int z=1/0;
          ^

/home/me/user code.py(77): error: identifier "q" is undefined
   a[0]=q;
        ^

2 errors detected in the compilation of "k.cu".
"""
    first, second = parse_errors(log)
    assert (first.file, first.line) == ("k.cu", 1)
    assert first.text == (
        'k.cu(1): error: a value of type "const char *" cannot be used',
        '  int x = "s";',
        "          ^",
    )
    assert (second.file, second.line) == ("/home/me/user code.py", 77)
    assert len(second.text) == 3


def test_errors_of_ptxas() -> None:
    log = """ptxas application ptx input, line 26; error   : Unknown modifier '.instr'
ptxas info    : 0 bytes gmem
ptxas fatal   : Ptx assembly aborted due to errors
"""
    first, last = parse_errors(log)
    assert first.file is None
    assert ptx_line_of(first) == 26
    assert ptx_line_of(last) is None
    assert ptx_line_of(CompilerMessage("k.cu", 3, ("k.cu(3): error: line 4",))) is None


PLAIN = """.visible .entry k(
{
\tld.param.u32 \t%r1, [k_param_0];
\tbogus.x %r1;
\tadd.s32 \t%r2, %r1, 1;
\tbogus.x %r1;
\tret;
}
"""
LOCATED = """.visible .entry k(
{
\t.loc\t1 4 0
\tld.param.u32 \t%r1, [k_param_0];
\t.loc\t1 2 2, function_name $L__info_string0, inlined_at 1 5 1
\tbogus.x %r1;
\t.loc\t1 6 1
\tadd.s32 \t%r2, %r1, 1;
\t.loc\t2 77 1
\tbogus.x %r1;
\tret;
}
\t.file\t1 "/somewhere/k.cu"
\t.file\t2 "/home/me/user.py"
"""


@pytest.mark.parametrize(
    ("line", "places"),
    [
        (4, [("k.cu", 2), ("k.cu", 5)]),  # the helper's line, then the line of its call
        (5, [("k.cu", 6)]),
        (6, [("/home/me/user.py", 77)]),  # the second time the same text stands there
        (99, []),
    ],
)
def test_places_behind_ptx(line: int, places: list[tuple[str, int]]) -> None:
    assert places_of_ptx_line(PLAIN, LOCATED, line) == places
