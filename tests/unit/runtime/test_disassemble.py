from __future__ import annotations

import pytest

from tilewright.errors import CompileError
from tilewright.runtime import disassemble as module
from tilewright.runtime import libraries
from tilewright.runtime.disassemble import disassemble
from tilewright.runtime.nvrtc import compile_cuda, nvrtc_version


def test_sass_of_a_kernel() -> None:
    try:
        nvrtc_version()
    except CompileError:
        pytest.skip("needs NVRTC")
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    cubin = compile_cuda('extern "C" __global__ void k(float* a) { a[0] = 3.0f; }', name="k", arch="sm_80").cubin
    text = disassemble(cubin)
    assert ".text.k" in text
    assert "EXIT" in text
    with pytest.raises(CompileError, match=r"nvdisasm.* failed with exit status"):
        disassemble(b"no cubin")


def test_without_a_disassembler_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_program", lambda name: None)
    with pytest.raises(CompileError, match="no disassembler is installed") as caught:
        disassemble(b"")
    assert caught.value.help == 'pip install "tilewright[cuda]"'


def test_a_program_on_the_path_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "wheel_files", lambda folder, pattern: [])
    monkeypatch.setattr(libraries.shutil, "which", lambda name: f"/opt/bin/{name}" if name == "cuobjdump" else None)
    assert module._command() == ["/opt/bin/cuobjdump", "--dump-sass"]
