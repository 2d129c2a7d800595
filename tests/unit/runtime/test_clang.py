"""clang as the compiler of AMD's targets: machine code, what it takes, errors at Python lines, and the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, CompileError, DeviceError
from tilewright.runtime import clang
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.clang import compile_hip, find_clang, parse_resources
from tilewright.runtime.compiler_log import AmdResources, Resources
from tilewright.runtime.entries import cache_key
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.source import SourceLocation

needs_clang = pytest.mark.skipif(find_clang() is None, reason="needs clang")

SCALE = """\
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64))) void scale(float* a, int n) {
    __attribute__((shared)) float s[320];
    const unsigned int t = __builtin_amdgcn_workitem_id_x();
    s[t] = a[t];
    __builtin_amdgcn_s_barrier();
    a[t] = s[n - t] * 2.0f;
}
"""
SPILLS = """\
extern "C" __attribute__((global)) __attribute__((amdgpu_num_vgpr(32))) void spills(float* a, int n) {
    float v[100];
    const unsigned int t = __builtin_amdgcn_workitem_id_x();
    for (int i = 0; i < 100; ++i) v[i] = a[i * 32 + t];
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
    __builtin_amdgcn_s_barrier();
    for (int i = 0; i < 100; ++i) a[i * n + 3 + t] = v[99 - i];
}
"""
ACCUMULATES = """\
typedef float Four __attribute__((ext_vector_type(4)));
extern "C" __attribute__((global)) void accumulates(Four* d, const float* a) {
    Four c = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) c = __builtin_amdgcn_mfma_f32_16x16x4f32(a[i], a[i + 4], c, 0, 0, 0);
    d[__builtin_amdgcn_workitem_id_x()] = c;
}
"""
_AMDGPU = 224  # ELF's number of the machine
_RELOCATABLE = 1  # ELF's type of an object that no runtime loads, ET_REL


@needs_clang
@pytest.mark.parametrize("arch", ["gfx908", "gfx90a"])
def test_machine_code_and_what_it_takes(arch: str) -> None:
    module = compile_hip(SCALE, name="scale", arch=arch)
    assert module.cubin[:4] == b"\x7fELF" and int.from_bytes(module.cubin[18:20], "little") == _AMDGPU
    is_linked = int.from_bytes(module.cubin[16:18], "little") != _RELOCATABLE
    assert is_linked == (clang.find_linker() is not None)
    assert (module.name, module.arch) == ("scale", arch)
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}' in module.assembly and "ds_write_b32" in module.assembly
    found = module.resources
    assert isinstance(found, AmdResources)
    assert 0 < found.registers <= 16 and found.registers >= found.vector_registers > 0
    assert 0 < found.scalar_registers <= 102
    assert found.static_shared_bytes == 1280
    assert found.constant_bytes >= 12 and found.code_bytes > 0 and found.waves_per_simd > 0
    assert not found.spills and found.local_bytes == found.stack_bytes == 0


@needs_clang
def test_spills_are_seen() -> None:
    found = compile_hip(SPILLS, name="spills", arch="gfx908").resources
    assert found.spills and found.local_bytes > 0


@needs_clang
def test_accumulation_registers_are_told_apart() -> None:
    """gfx90a keeps both kinds in one file, so that they add up; gfx908 has a file of each."""
    older, newer = (compile_hip(ACCUMULATES, name="accumulates", arch=a).resources for a in ("gfx908", "gfx90a"))
    assert isinstance(older, AmdResources) and isinstance(newer, AmdResources)
    assert older.accumulation_registers == 4
    assert older.registers == max(older.vector_registers, older.accumulation_registers)
    assert newer.registers >= newer.vector_registers + newer.accumulation_registers


@needs_clang
def test_the_same_text_gives_the_same_bytes() -> None:
    first, second = (compile_hip(SCALE, name="scale", arch="gfx90a") for _ in range(2))
    assert first == second


@needs_clang
def test_multiply_and_add_stay_apart() -> None:
    source = 'extern "C" __attribute__((global)) void k(float* a) { a[0] = a[1] * a[2] + a[3]; }'
    assert "v_fma" not in compile_hip(source, name="k", arch="gfx908").assembly


@needs_clang
def test_integers_wrap() -> None:
    """Without -fwrapv clang takes i + 1 > i for true."""
    source = 'extern "C" __attribute__((global)) void k(int* a, int i) { a[0] = i + 1 > i; }'
    assert "v_cmp" in (text := compile_hip(source, name="k", arch="gfx908").assembly) or "s_cmp" in text


@needs_clang
def test_errors_come_at_the_python_line(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text("first\ny = x\n")
    line_map = {2: SourceLocation(str(file), 2, "kernel")}
    source = 'extern "C" __attribute__((global)) void k(float* a) {\n    a[0] = x;\n    b = 1;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_hip(source, name="k", arch="gfx908", line_map=line_map)
    assert (
        str(caught.value)
        == """\
clang refused the HIP source of kernel 'k' for gfx908
  k.hip:2: use of undeclared identifier 'x'
  k.hip:3: use of undeclared identifier 'b'
  user.py:2, in kernel:
    y = x
    ^^^^^
  help: if your kernel holds no C++ text of its own, this is a fault of Tilewright: please report it"""
    )


@needs_clang
def test_errors_of_line_directives_name_the_file() -> None:
    source = 'extern "C" __attribute__((global)) void k(float* a) {\n#line 7 "user.py"\n    a[0] = x;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_hip(source, name="k", arch="gfx908")
    assert caught.value.location is not None and caught.value.location.line == 7


def test_without_clang_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clang.VARIABLE, "no-such-clang")
    with pytest.raises(CompileError) as caught:
        compile_hip(SCALE, name="scale", arch="gfx908")
    assert (
        str(caught.value)
        == """\
clang, which compiles HIP C++ for gfx908, is not installed
  TILEWRIGHT_CLANG names 'no-such-clang', which is not a program
  help: apt install clang-14, or set TILEWRIGHT_CLANG to a clang 14 or later with the target amdgcn"""
    )
    monkeypatch.delenv(clang.VARIABLE)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileError, match="looked for clang-14"):
        compile_hip(SCALE, name="scale", arch="gfx908")


def test_the_first_release_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("clang", "clang-17", "clang-15"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv(clang.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_clang() == tmp_path / "clang-15"
    monkeypatch.setenv(clang.VARIABLE, str(tmp_path / "clang"))
    assert find_clang() == tmp_path / "clang"
    assert clang.find_linker() is None
    (tmp_path / "ld.lld").write_text("#!/bin/sh\n")
    (tmp_path / "ld.lld").chmod(0o755)
    before = clang.compiler_identity()
    assert clang.find_linker() == tmp_path / "ld.lld" and str(tmp_path / "ld.lld") in before
    (tmp_path / "clang").write_text("#!/bin/sh\n# another release\n")
    assert clang.compiler_identity() != before


def test_newer_targets_take_newer_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """clang-14 does not know gfx942; a clang without a number in its name is asked for its release."""
    monkeypatch.delenv(clang.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang-14", "clang-16"):
        _write_program(tmp_path / name, f"clang version {name[-2:]}.0.6")
    assert find_clang() == find_clang("gfx90a") == tmp_path / "clang-14" and find_clang("gfx942") is None
    with pytest.raises(CompileError) as caught:
        compile_hip(SCALE, name="scale", arch="gfx942")
    assert str(caught.value) == (
        "clang, which compiles HIP C++ for gfx942, is not installed\n  looked for clang-17 to clang-29, clang\n"
        "  help: apt install clang-19, or set TILEWRIGHT_CLANG to a clang 17 or later with the target amdgcn"
    )
    _write_program(tmp_path / "clang", "Debian clang version 16.0.6")
    assert find_clang("gfx942") is None
    _write_program(tmp_path / "clang", "Debian clang version 18.1.8 (11)")
    assert find_clang("gfx942") == tmp_path / "clang"
    _write_program(tmp_path / "clang-19", "clang version 19.1.7")
    assert find_clang("gfx942") == tmp_path / "clang-19" and find_clang() == tmp_path / "clang-14"


def _write_program(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


@pytest.mark.skipif(find_clang("gfx942") is None, reason="needs clang 17 or later")
def test_machine_code_for_gfx942() -> None:
    module = compile_hip(SCALE, name="scale", arch="gfx942")
    assert '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"' in module.assembly
    assert module.resources.vector_registers > 0 and module.resources.static_shared_bytes == 4 * 320


def test_another_target_of_clang_is_no_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "clang"
    fake.write_text("#!/bin/sh\necho \"error: unable to create target: 'amdgcn'\" >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv(clang.VARIABLE, str(fake))
    with pytest.raises(CompileError, match="this clang does not compile for gfx90a"):
        compile_hip(SCALE, name="scale", arch="gfx90a")


NEWER = """\
; NumVgprs: 24
; NumAgprs: 16
; TotalNumVgprs: 40
; Occupancy: 8
; codeLenInByte = 320
amdhsa.kernels:
  - .agpr_count:     16
    .args:
    .group_segment_fixed_size: 512
    .private_segment_fixed_size: 64
    .sgpr_count:     18
    .sgpr_spill_count: 1
    .vgpr_count:     40
    .vgpr_spill_count: 3
"""


def test_notes_of_the_assembly() -> None:
    assert parse_resources(NEWER) == AmdResources(
        registers=40, stack_bytes=64, static_shared_bytes=512, local_bytes=64, vector_registers=24,
        accumulation_registers=16, scalar_registers=18, vector_spills=3, scalar_spills=1, waves_per_simd=8,
        code_bytes=320,
    )  # fmt: skip


# --- the cache -----------------------------------------------------------------------------------------


def test_the_cache_keeps_an_amd_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = CompiledModule("k", "gfx908", b"\x7fELFcode", "", AmdResources(12, vector_registers=12), "v_nop\n")
    calls = []
    monkeypatch.setattr(clang, "compiler_identity", lambda arch=None: "some clang")
    monkeypatch.setattr(clang, "compile_hip", lambda source, **options: calls.append(source) or module)
    for _ in range(2):
        assert DiskCache(tmp_path).compile("text", name="k", arch="gfx908") == module
    assert calls == ["text"]
    (entry,) = DiskCache(tmp_path).entries()
    assert (entry.name, entry.arch) == ("k", "gfx908")
    first = cache_key("text", "k", "gfx908", ())
    monkeypatch.setattr(clang, "compiler_identity", lambda arch=None: "another clang")
    keys = {first, cache_key("text", "k", "gfx908", ()), cache_key("text", "k", "gfx90a", ())}
    keys |= {cache_key("other", "k", "gfx908", ()), cache_key("text", "k", "gfx908", ("-O1",))}
    assert len(keys) == 5


# --- kernels -------------------------------------------------------------------------------------------


@tw.kernel
def double(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        y[i] = 2 * x[i]


ARGUMENTS = (tw.spec(tw.float32, 1), tw.spec(tw.float32, 1))


def test_a_kernel_has_source_for_amd() -> None:
    text = double[1, 256].source(*ARGUMENTS, arch="gfx90a")
    assert "__builtin_amdgcn_workitem_id_x" in text and "y[i] = 2.0f * x[i];" in text


@needs_clang
def test_a_kernel_has_assembly_and_resources_for_amd() -> None:
    assert "s_endpgm" in double[1, 256].sass(*ARGUMENTS, arch="gfx908")
    found = double[1, 256].resources(*ARGUMENTS, arch="gfx90a")
    assert isinstance(found, AmdResources) and found.registers > 0
    assert found == double[1, 256].resources(*ARGUMENTS, arch="gfx90a")
    assert not isinstance(Resources(), AmdResources)


def test_there_is_no_ptx_for_amd() -> None:
    with pytest.raises(ArgumentError) as caught:
        double[1, 256].ptx(*ARGUMENTS, arch="gfx908")
    assert str(caught.value) == (
        "there is no PTX for gfx908, an AMD target\n  help: kernel.sass(..., arch='gfx908') gives its assembly"
    )


def test_there_is_no_cuda_text_for_amd() -> None:
    lowered = double[1, 256].lower(*ARGUMENTS, arch="gfx908")
    with pytest.raises(ArgumentError, match="no CUDA C"):
        lowered.cuda
    assert lowered.source.text == double[1, 256].source(*ARGUMENTS, arch="gfx908")


def test_a_launch_on_a_gpu_is_refused() -> None:
    from tilewright.specialise import OnDevice

    lowered = double[1, 256].lower(*ARGUMENTS, arch="gfx908")
    with pytest.raises(DeviceError) as caught:
        OnDevice(lowered, ["y", "x"], [0, 3], 0)
    assert (
        str(caught.value)
        == """\
kernel 'double' is compiled for gfx908, and the arrays live on an NVIDIA GPU
  help: AMD's targets are compiled and simulated, not launched: pass NumPy arrays, or set TILEWRIGHT_BACKEND=sim"""
    )


def test_a_clang_that_cannot_be_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clang").write_bytes(b"\x7fELF of no machine")
    (tmp_path / "clang").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_CLANG", raising=False)
    assert find_clang("gfx942") is None
