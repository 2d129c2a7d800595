from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tilewright.errors import CompileError
from tilewright.runtime import nvrtc
from tilewright.runtime.nvrtc import compile_cuda, compile_ptx, compiler_identity, nvrtc_version, supported_arches
from tilewright.source import SourceLocation

SCALE = """
extern "C" __global__ void scale(float* a, int n) {
  __shared__ float s[64];
  int unused = 3;
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[63 - threadIdx.x] * 2.0f;
}
"""


@pytest.fixture(autouse=True, scope="module")
def _needs_nvrtc() -> None:
    try:
        nvrtc_version()
    except CompileError:
        pytest.skip("needs NVRTC")


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_compile_to_machine_code(arch: str) -> None:
    module = compile_cuda(SCALE, name="scale", arch=arch)
    assert module.cubin[:4] == b"\x7fELF"
    assert (module.name, module.arch) == ("scale", arch)
    assert 0 < module.resources.registers <= 255
    assert module.resources.static_shared_bytes % 1024 in (0, 256)  # some targets keep 1 KB for themselves
    assert module.resources.barriers == 1
    assert not module.resources.spills
    assert "unused" in module.log


def test_spills_are_seen() -> None:
    source = """extern "C" __global__ void k(float* a, int n) {
      float v[100];
      #pragma unroll
      for (int i = 0; i < 100; ++i) v[i] = a[i * 32 + threadIdx.x];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 100; ++i) a[i * n + 3] = v[99 - i];
    }"""
    module = compile_cuda(source, name="k", arch="sm_80", options=["--maxrregcount=32"])
    assert module.resources.spills
    assert module.resources.local_bytes > 0


def test_multiply_and_add_stay_apart() -> None:
    source = 'extern "C" __global__ void k(float* a) { a[0] = a[1] * a[2] + a[3]; }'
    assert "fma" not in compile_ptx(source, name="k", arch="sm_80")
    assert "fma" in compile_ptx(source, name="k", arch="sm_80", options=["-fmad=true"])


def test_ptx_names_its_target() -> None:
    ptx = compile_ptx(SCALE, name="scale", arch="sm_90a")
    assert ".target sm_90a" in ptx
    assert "\0" not in ptx


@pytest.fixture
def python_lines(tmp_path: Path) -> dict[int, SourceLocation]:
    file = tmp_path / "gemm.py"
    file.write_text("".join(f"line_{n} = tw.something({n})\n" for n in range(1, 101)))
    return {line: SourceLocation(str(file), 10 * line, "mainloop") for line in range(2, 5)}


def test_an_error_shows_the_python_lines(python_lines: dict[int, SourceLocation]) -> None:
    source = 'extern "C" __global__ void k(float* a) {\n  a[0] = p;\n  int unused = 1 / 0;\n  a[1] = q;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, name="k", arch="sm_80", line_map=python_lines)
    assert caught.value.location == python_lines[2]
    assert (
        str(caught.value)
        == """NVRTC refused the CUDA source of kernel 'k' for sm_80
  k.cu(2): error: identifier "p" is undefined
      a[0] = p;
             ^
    from gemm.py:20
  k.cu(4): error: identifier "q" is undefined
      a[1] = q;
             ^
    from gemm.py:40, in mainloop:
      line_40 = tw.something(40)
      ^^^^^^^^^^^^^^^^^^^^^^^^^^
  gemm.py:20, in mainloop:
    line_20 = tw.something(20)
    ^^^^^^^^^^^^^^^^^^^^^^^^^^
  help: if your kernel holds no CUDA text of its own, this is a fault of Tilewright: please report it"""
    )


def test_an_error_in_an_inlined_instruction_shows_the_line_of_the_call(
    python_lines: dict[int, SourceLocation],
) -> None:
    source = (
        '__device__ __forceinline__ void helper(int x) { asm volatile("bogus.x %0;" :: "r"(x)); }\n'
        'extern "C" __global__ void k(int n) {\n'
        "  int m = n + 1;\n"
        "  helper(m);\n"
        "}\n"
    )
    with pytest.raises(CompileError, match="bogus") as caught:
        compile_cuda(source, name="k", arch="sm_80", line_map=python_lines)
    assert caught.value.location == python_lines[4]


def test_a_line_directive_names_the_python_file(python_lines: dict[int, SourceLocation]) -> None:
    file = python_lines[2].file
    with pytest.raises(CompileError) as caught:
        compile_cuda(
            f'extern "C" __global__ void k(float* a) {{\n#line 30 "{file}"\n  a[0] = p;\n}}', name="k", arch=80
        )
    assert caught.value.location == SourceLocation(file, 30, "k")


def test_without_a_line_map_the_compiler_is_quoted() -> None:
    with pytest.raises(CompileError, match=r'k\.cu\(1\): error: identifier "p"') as caught:
        compile_cuda('extern "C" __global__ void k(float* a) { a[0] = p; }', name="k", arch="sm_80")
    assert caught.value.location is None


def test_an_option_that_nvrtc_does_not_know() -> None:
    with pytest.raises(CompileError, match="--nonsense"):
        compile_cuda(SCALE, name="scale", arch="sm_80", options=["--nonsense"])


def test_a_target_that_nvrtc_does_not_know() -> None:
    if 70 in supported_arches():
        pytest.skip("this NVRTC still compiles for sm_70")
    with pytest.raises(CompileError, match="has no target sm_70"):
        compile_cuda(SCALE, name="scale", arch="sm_70")
    with pytest.raises(CompileError, match="has no target compute_70"):
        compile_ptx(SCALE, name="scale", arch="sm_70")


def test_threads_compile_at_once() -> None:
    results: list[int] = []

    def work(n: int) -> None:
        module = compile_cuda(SCALE.replace("2.0f", f"{n}.0f"), name="scale", arch="sm_80")
        results.append(len(module.cubin))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4


def test_without_the_wheel_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(nvrtc, "library_path", lambda: None)
    monkeypatch.setattr(nvrtc, "_pathfinder_names", list)
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", refuse)
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(CompileError, match="NVRTC, the CUDA compiler, is not installed") as caught:
            compile_cuda(SCALE, name="scale", arch="sm_80")
    finally:
        nvrtc._library.cache_clear()
    assert caught.value.help == 'pip install "tilewright[cuda]"'


def test_builtins_beside_the_library_are_loaded_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVRTC 13.0 opens them by name, and its wheel has no path where they are looked for."""
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"):
        (tmp_path / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(nvrtc, "library_path", lambda: tmp_path / "libnvrtc.so.13")
    monkeypatch.setattr(nvrtc, "declared", lambda library, _: library)
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda name: loaded.append(Path(name).name))
    nvrtc._library.__wrapped__()
    assert loaded == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]


def test_the_identity_changes_with_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"one")
    monkeypatch.setattr(nvrtc, "library_path", lambda: library)
    before = compiler_identity()
    assert before == compiler_identity()
    library.write_bytes(b"another")
    assert compiler_identity() != before
    monkeypatch.setattr(nvrtc, "library_path", lambda: None)
    assert compiler_identity() == "nvrtc {}.{}".format(*nvrtc_version())


def test_a_build_has_one_identity_on_all_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy of the library in another folder, written at another time, is the same one; another build is not."""
    installed = nvrtc.library_path()
    if installed is None or nvrtc._build_of(installed, 0) is None:
        pytest.skip("this NVRTC names no build")
    (tmp_path / "elsewhere").mkdir()
    copied = tmp_path / "elsewhere" / installed.name
    shutil.copyfile(installed, copied)
    os.utime(copied, (1, 1))
    identity = compiler_identity()
    monkeypatch.setattr(nvrtc, "library_path", lambda: copied)
    assert compiler_identity() == identity
    data = bytearray(copied.read_bytes())
    build = bytes.fromhex(identity.split()[-1])
    place = data.index(build)
    data[place] ^= 1
    copied.write_bytes(data)
    assert compiler_identity() != identity


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01" + b"\xff" * 100]
)
def test_files_without_a_build_count_by_their_times(
    data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(data)
    monkeypatch.setattr(nvrtc, "library_path", lambda: library)
    assert compiler_identity() == f"libnvrtc.so.13 {len(data)} {library.stat().st_mtime_ns}"


def test_registers_are_known_where_the_compiler_has_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2.0f; }'
    expected = compile_cuda(source, name="scale", arch="sm_90a")
    compile, used = nvrtc._Program.compile, []

    def from_cache(program: nvrtc._Program, options: Sequence[str]) -> bool:
        """Compile as NVRTC does where it takes the machine code from its cache: the log is empty."""
        used.append(options)
        is_good = compile(program, options)
        if "--no-cache" not in options:
            program.log = ""
        return is_good

    monkeypatch.setattr(nvrtc._Program, "compile", from_cache)
    if nvrtc_version() >= (13, 0):
        again = compile_cuda(source, name="scale", arch="sm_90a")
        assert (again.cubin, again.resources) == (expected.cubin, expected.resources)
        assert expected.resources.registers > 0 and len(used) == 2
