"""Calls that cannot run: the whole text of each error, and nothing written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.helpers.refusals import floats, refused, unchanged

import tilewright as tw


@tw.kernel
def tile_copy(dst, src):
    block = (tw.block_idx.x, tw.block_idx.y)
    g_src = tw.local_tile(src, (32, 32), block)
    g_dst = tw.local_tile(dst, (32, 32), block)
    i, j = tw.thread_idx.x, tw.thread_idx.y
    g_dst[i, j] = g_src[i, j] + 1


@tw.kernel
def increase(dst, src):
    i = tw.thread_idx.x
    dst[i] = src[i] + 1


@tw.kernel
def vectors(dst, src):
    g_src, g_dst = tw.local_tile(src, (4,), (0,)), tw.local_tile(dst, (4,), (0,))
    tw.copy(tw.atoms.UniversalCopy(128), g_src, g_dst)


@tw.kernel
def large(x):
    a = tw.shared("float32", 50000)
    b = tw.shared("float32", 20000)
    a[0] = 1
    b[0] = 1
    x[0] = a[0] + b[0]


# --- arrays ---------------------------------------------------------------------------------------------


@refused(
    tw.LayoutError,
    """
    local_tile: the tiler (32,32) has 2 modes, and the tensor has 1
      src, global float32 (src_shape0):(1)
      test_launch.py:N, in tile_copy:
        g_src = tw.local_tile(src, (32, 32), block)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: give one tile extent for each mode of the tensor, or a tensor with one mode for each
    """,
)
def test_rank_too_small():
    dst = floats(64, 64)
    unchanged(dst, lambda: tile_copy[(2, 2), (32, 32)](dst, floats(64)))


@refused(
    tw.LayoutError,
    """
    coordinate (i,j) does not fit shape (32,32,src_shape2)
      tensor: src, global float32 (32,32,src_shape2):(src_stride0,src_stride1,1)
      test_launch.py:N, in tile_copy:
        g_dst[i, j] = g_src[i, j] + 1
                      ^^^^^^^^^^^
      help: give one index for each mode, or a single linear index
    """,
)
def test_rank_too_large():
    dst = floats(64, 64, 2)
    unchanged(dst, lambda: tile_copy[(2, 2), (32, 32)](dst, dst))


@refused(
    tw.LanguageError,
    """
    dst is int32, and a float32 is not converted to it implicitly
      test_launch.py:N, in increase:
        dst[i] = src[i] + 1
        ^^^^^^
      help: write value.to(tw.int32)
    """,
)
def test_element_type_that_does_not_convert():
    dst = np.zeros(4, np.int32)
    unchanged(dst, lambda: increase[1, 4](dst, floats(4)))


def test_the_help_names_a_type_that_users_have() -> None:
    with pytest.raises(tw.LanguageError, match=r"and an int32 is not converted") as caught:
        increase[1, 4](np.zeros(4, np.bool_), np.zeros(4, np.int32))
    assert caught.value.help == f"write value.to({tw.bool_!r})" == "write value.to(tw.bool_)"


@refused(
    tw.ArgumentError,
    """
    argument 'dst' cannot be used: complex64 is not an element type of Tilewright
    """,
)
def test_element_type_that_no_kernel_has():
    increase[1, 4](np.zeros(4, np.complex64), floats(4))


@refused(
    tw.ArgumentError,
    """
    dst.shape[1] is 100, and the tile of 32 does not divide it
      test_launch.py:N, in tile_copy:
        g_dst = tw.local_tile(dst, (32, 32), block)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: give the tile guard=True, pad the array, take a tile that divides it, or use if or pred=
    """,
)
def test_tile_that_does_not_divide():
    dst = floats(64, 100)
    unchanged(dst, lambda: tile_copy[(2, 3), (32, 32)](dst, floats(64, 128)))


@refused(
    tw.ArgumentError,
    """
    src.shape[0] is 65, and the tile of 32 does not divide it
      test_launch.py:N, in tile_copy:
        g_src = tw.local_tile(src, (32, 32), block)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: give the tile guard=True, pad the array, take a tile that divides it, or use if or pred=
    """,
)
def test_tile_that_does_not_divide_another_array():
    dst = floats(64, 128)
    unchanged(dst, lambda: tile_copy[(2, 3), (32, 32)](dst, floats(65, 128)))


@refused(
    tw.LanguageError,
    """
    the extent of mode 1 of dst is 100, and the tile of 32 does not divide it
      test_launch.py:N, in tile_copy:
        g_dst = tw.local_tile(dst, (32, 32), block)
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: give the tile guard=True, pad the array, take a tile that divides it, or use if or pred=
    """,
)
def test_tile_that_does_not_divide_a_static_array():
    dst = floats(64, 100)
    unchanged(dst, lambda: tile_copy[(2, 3), (32, 32)](tw.static(dst), floats(64, 128)))


@refused(
    tw.ArgumentError,
    """
    tw.copy: src.shape[1] is 5, and dst.shape[1] differs
      test_launch.py:N, in whole:
        tw.copy(src, dst)
        ^^^^^^^^^^^^^^^^^
      help: pass arrays of one shape
    """,
)
def test_copy_of_whole_arrays_of_different_extents():
    @tw.kernel
    def whole(dst, src):
        tw.copy(src, dst)

    dst = floats(4, 4)
    whole[1, 1](dst, np.ones((4, 4), np.float32))
    assert dst.all()
    unchanged(dst, lambda: whole[1, 1](dst, floats(4, 5)))


def test_tile_that_does_not_divide_is_fine_where_a_branch_guards_it():
    @tw.kernel
    def guarded(dst, src):
        block = (tw.block_idx.x,)
        g_src, g_dst = tw.local_tile(src, (32,), block), tw.local_tile(dst, (32,), block)
        i = tw.thread_idx.x
        if 32 * tw.block_idx.x + i < src.size:
            g_dst[i] = g_src[i]

    src, dst = np.arange(100, dtype=np.float32), floats(100)
    guarded[4, 32](dst, src)
    assert np.array_equal(dst, src)


@refused(
    tw.LanguageError,
    """
    tw.copy: UniversalCopy(128) needs 4 adjacent float32, aligned to 16 bytes
      from src, global float32 (4):(src_stride0)
      to dst, global float32 (4):(1)
      their known alignment allows 32 bits at most
      test_launch.py:N, in vectors:
        tw.copy(tw.atoms.UniversalCopy(128), g_src, g_dst)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: pass a contiguous, aligned array, use a narrower atom, or a layout whose strides are multiples of the width
    """,
)
def test_strided_array_where_vectors_are_asked_for():
    dst = floats(4)
    unchanged(dst, lambda: vectors[1, 1](dst, floats(8)[::2]))


@refused(
    tw.LanguageError,
    """
    tw.copy: UniversalCopy(128) needs 4 adjacent float32, aligned to 16 bytes
      from src, global float32 (4):(1)
      to dst, global float32 (4):(1)
      their known alignment allows 32 bits at most
      test_launch.py:N, in vectors:
        tw.copy(tw.atoms.UniversalCopy(128), g_src, g_dst)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: pass a contiguous, aligned array, use a narrower atom, or a layout whose strides are multiples of the width
    """,
)
def test_misaligned_array_where_vectors_are_asked_for():
    vectors[1, 1](floats(4), np.zeros(32, np.float32)[1:])


@refused(
    tw.ArgumentError,
    """
    argument 'dst' is written by the kernel, and the array is read-only
      help: pass a writable array (a copy, or after array.setflags(write=True))
    """,
)
def test_read_only_output():
    dst = floats(4)
    dst.setflags(write=False)
    unchanged(dst, lambda: increase[1, 4](dst, floats(4)))


@refused(
    tw.ArgumentError,
    """
    argument 'dst' is written by the kernel, and its elements overlap: mode 0 has stride 0
      help: pass an array of its own memory, for example a copy
    """,
)
def test_output_that_overlaps_with_itself():
    base = floats(1)
    dst = np.lib.stride_tricks.as_strided(base, (4,), (0,))
    unchanged(base, lambda: increase[1, 4](dst, floats(4)))


@refused(
    tw.ArgumentError,
    """
    the function of the grid does not take the arguments of the kernel: blocks() takes 1 positional argument but 2 were given
      help: it gets all of them by position, defaults too: lambda y, *_: tw.ceil_div(y.shape[0], 256)
    """,
)
def test_a_grid_of_other_arguments():
    def blocks(dst):
        return 1

    blocks.__qualname__ = "blocks"
    dst = floats(4)
    unchanged(dst, lambda: increase[blocks, 4](dst, floats(4)))


def test_a_grid_s_own_type_error_is_the_user_s():
    with pytest.raises(TypeError, match="NoneType"):
        increase[lambda dst, src: None + 1, 4](floats(4), floats(4))


def test_inputs_may_be_read_only_and_overlap_with_themselves():
    src = np.broadcast_to(np.float32(3), (4,))
    dst = floats(4)
    increase[1, 4](dst, src)
    assert dst.tolist() == [4] * 4


@refused(
    tw.ArgumentError,
    """
    argument 'src' has shape (0,), and the extents of a static layout are at least 1
      help: pass it without tw.static, or do not launch for an empty array
    """,
)
def test_static_array_without_elements():
    increase[1, 1](floats(4), tw.static(floats(0)))


# --- other arguments ------------------------------------------------------------------------------------


@refused(
    tw.ArgumentError,
    """
    kernel 'increase': missing a required argument: 'src'
    """,
)
def test_missing_argument():
    increase[1, 4](floats(4))


@refused(
    tw.ArgumentError,
    """
    kernel 'increase': too many positional arguments
    """,
)
def test_too_many_arguments():
    increase[1, 4](floats(4), floats(4), 3)


@refused(
    tw.ArgumentError,
    """
    kernel 'increase': missing a required argument: 'src'
    """,
)
def test_unknown_keyword():
    increase[1, 4](floats(4), source=floats(4))


@refused(
    tw.ArgumentError,
    """
    argument 'src' is a set; a kernel takes arrays and numbers, and lists, tuples, dicts, NamedTuples and dataclasses \
of them
      help: for a compile-time argument write src: tw.constexpr
    """,
)
def test_set_in_place_of_an_array():
    increase[1, 4](floats(4), {1.0, 2.0})


@refused(
    tw.ArgumentError,
    """
    argument "src['x'][1]" cannot be used: complex64 is not an element type of Tilewright
    """,
)
def test_leaf_of_an_element_type_that_no_kernel_has():
    increase[1, 4](floats(4), {"x": [floats(4), np.zeros(4, np.complex64)]})


@refused(
    tw.ArgumentError,
    """
    argument 'src[0]' is a set; a structure holds arrays, numbers, other structures and compile-time constants, \
which are hashable
      help: give a list, tuple, dict, NamedTuple or dataclass, or a constant that can be hashed
    """,
)
def test_leaf_that_cannot_be_a_constant():
    increase[1, 4](floats(4), [{1.0}])


@refused(
    tw.ArgumentError,
    """
    argument 'sizes' is a compile-time constant and must be hashable, but it is a list
      help: give a tuple in place of a list, or a frozen dataclass
    """,
)
def test_compile_time_argument_that_is_not_hashable():
    @tw.kernel
    def kernel(x, sizes: tw.constexpr):
        x[0] = sizes[0]

    kernel[1, 1](floats(1), [1])


@refused(
    tw.ArgumentError,
    """
    argument 'self' is a compile-time constant and must be hashable, but it is a Config
      help: give a tuple in place of a list, or a frozen dataclass
    """,
)
def test_object_of_a_method_that_is_not_hashable():
    @dataclasses.dataclass
    class Config:
        tile: int

        @tw.kernel
        def kernel(self, x):
            x[0] = self.tile

    Config(3).kernel[1, 1](floats(1))


@refused(
    tw.ArgumentError,
    """
    argument 'n' is 1180591620717411303424, which does not fit into 64 bits
    """,
)
def test_integer_of_more_than_64_bits():
    @tw.kernel
    def kernel(x, n):
        x[0] = n

    kernel[1, 1](floats(1), 2**70)


# --- grid and block -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block", "text"),
    [
        ((1, -2), 4, "grid (1, -2) has -2 in y; it takes 0 to 65535"),
        (1.5, 4, "grid 1.5 is neither an int nor a tuple of ints"),
        ((1, 1, 1, 1), 4, "grid (1, 1, 1, 1) has 4 modes; it takes 1 to 3"),
        (lambda dst, src: None, 4, "grid None is neither an int nor a tuple of ints"),
        (lambda dst, src: -src.size, 4, "grid -4 has -4 in x; it takes 0 to 2147483647"),
        (1, 0, "block 0 has 0 in x; it takes 1 to 1024"),
        (1, (32, 64), "block (32, 64) has 2048 threads; a block has at most 1024"),
        (1, (1, 1, 65), "block (1, 1, 65) has 65 in z; it takes 1 to 64"),
    ],
)
def test_grids_and_blocks_that_no_device_runs(grid, block, text):
    dst = floats(4)
    with pytest.raises(tw.ArgumentError) as caught:
        increase[grid, block](dst, floats(4))
    assert str(caught.value) == text
    assert not dst.any()


@refused(
    tw.ArgumentError,
    """
    kernel 'increase' is launched as kernel[grid, block](...), got kernel[4]
    """,
)
def test_launch_without_a_block():
    increase[4](floats(4), floats(4))


@refused(
    tw.ArgumentError,
    """
    kernel 'increase' was called without a grid and a block
      help: write increase[grid, block](...)
    """,
)
def test_call_without_grid_and_block():
    increase(floats(4), floats(4))


@refused(
    tw.ArgumentError,
    """
    configure takes stream, min_blocks, arch, fastmath, cooperative, cluster and dependent_launch, got warps
    """,
)
def test_unknown_option():
    increase.configure(warps=4)


@refused(
    tw.LanguageError,
    """
    kernel 'large' takes 280064 bytes of shared memory; a block of sm_90a has 232448
      a: 200000 bytes at test_launch.py:N
      b: 80000 bytes at test_launch.py:N
      test_launch.py:N, in large:
        b = tw.shared("float32", 20000)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: make the tiles smaller, or keep fewer stages
    """,
)
def test_more_shared_memory_than_a_block_has():
    large[1, 1](floats(1))


@refused(
    tw.LanguageError,
    """
    tw.copy: sm_75 has no cp.async; it needs sm_80 or later
      from x, global float32 (4):(1)
      to smem, shared float32 4:1
      test_launch.py:N, in kernel:
        tw.copy(tw.atoms.CpAsync(128), tw.local_tile(x, (4,), (0,)), smem)
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: copy through registers: tw.atoms.UniversalCopy(128)
    """,
)
def test_instruction_that_the_target_lacks():
    @tw.kernel
    def kernel(x):
        smem = tw.shared("float32", 4)
        tw.copy(tw.atoms.CpAsync(128), tw.local_tile(x, (4,), (0,)), smem)

    kernel.source(tw.spec("float32", 1), arch="sm_75")


@refused(
    tw.ArgumentError,
    """
    tw.spec: shape (4, 4) and stride (1,) differ in length
    """,
)
def test_description_of_an_array_that_cannot_be():
    tw.spec("float32", (4, 4), (1,))


# --- the compiler ---------------------------------------------------------------------------------------


@needs_nvrtc
def test_failed_compilation_shows_the_python_line():
    lowered = increase.lower(tw.spec("float32", 1), tw.spec("float32", 1), block=32)
    broken = lowered.cuda.text.replace("dst[", "dst_[")
    lowered.__dict__["cuda"] = dataclasses.replace(lowered.cuda, text=broken)
    with pytest.raises(tw.CompileError) as caught:
        _ = lowered.module
    text = str(caught.value)
    assert 'identifier "dst_" is undefined' in text
    assert "test_launch.py:" in text
    assert "dst[i] = src[i] + 1" in text
