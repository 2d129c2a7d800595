"""Disassemble machine code to SASS text, with NVIDIA's nvdisasm or cuobjdump."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tilewright.errors import CompileError
from tilewright.runtime.libraries import INSTALL, find_program


def disassemble(cubin: bytes) -> str:
    """Return the SASS text of a cubin.

    `nvdisasm` is taken from its wheel or from PATH; `cuobjdump` from PATH stands in for it. Raises `CompileError` where
    there is none, or no temporary folder to hand it the machine code in.
    """
    command = _command()
    try:
        # Both programs read files only. Windows refuses to open a file twice, hence the folder.
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(cubin)
            result = subprocess.run([*command, os.fspath(path)], capture_output=True, encoding="utf-8", check=False)
    except OSError as error:
        raise CompileError(
            f"{Path(command[0]).name} cannot be run: {error}",
            help="it reads the temporary folder: set TMPDIR to one that can be written and has space",
        ) from error
    if result.returncode != 0:
        raise CompileError(
            f"{Path(command[0]).name} failed with exit status {result.returncode}", details=[result.stderr.strip()]
        )
    return result.stdout


def _command() -> list[str]:
    for name, options in (("nvdisasm", ["--print-code"]), ("cuobjdump", ["--dump-sass"])):
        path = find_program(name)
        if path is not None:
            return [os.fspath(path), *options]
    raise CompileError(
        "no disassembler is installed: neither nvdisasm nor cuobjdump was found",
        help=INSTALL,
    )
