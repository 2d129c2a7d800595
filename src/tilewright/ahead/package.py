"""`Package`: kernels as files, with what launches them from C, C++, Python and PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any  # Any: arguments of kernels

from tilewright.ahead.c_text import code_text, header_text, source_text
from tilewright.ahead.functions import ExportedFunction, Launchable, check_name
from tilewright.ahead.python_text import file_of, loader_text, torch_text
from tilewright.arch import Arch
from tilewright.arguments import instance
from tilewright.errors import ArgumentError
from tilewright.runtime.folders import write_whole

ARCHS = ("sm_80", "sm_90a")


class Package:
    """Kernels that programs launch without this library: `add` compiles them, `write` writes the files.

    >>> import tempfile, tilewright as tw
    >>> @tw.kernel
    ... def double(y, x):
    ...     i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    ...     if i < x.shape[0]:
    ...         y[i] = 2 * x[i]
    >>> package = tw.Package("vectors", archs=["sm_90a"])
    >>> vector = tw.spec(tw.float32, (1 << 20,))
    >>> added = package.add(double[lambda y, x: tw.ceil_div(x.shape[0], 256), 256], vector, vector)
    >>> added.name, [argument.name for argument in added.arguments]
    ('double', ['y', 'x'])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(file.name for file in package.write(folder))
    ['vectors.c', 'vectors.double.sm_90a.cubin', 'vectors.h', 'vectors.py', 'vectors_code.c', 'vectors_torch.py']

    `archs` are the targets that each kernel is compiled for. Code for "sm_80" runs on GPUs of compute capability 8.0 to
    8.9, code for "sm_90a" on 9.0 only; a launch takes the one that fits best. (`tilewright.schedule.Package` is another
    class: it packs plans, in Accera's formats.)
    """

    def __init__(self, name: str, *, archs: Sequence[str] = ARCHS) -> None:
        self.name: str = check_name("package", name)
        if not isinstance(archs, (list, tuple)) or not archs or not all(isinstance(arch, str) for arch in archs):
            raise ArgumentError(f"archs is a list of targets such as {list(ARCHS)}, got {archs!r}")
        try:
            self.archs: tuple[str, ...] = tuple(dict.fromkeys(Arch.parse(arch).name for arch in archs))
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        self._functions: dict[str, ExportedFunction] = {}

    @property
    def functions(self) -> tuple[ExportedFunction, ...]:
        """The functions that were added, in order."""
        return tuple(self._functions.values())

    def add(self, launcher: Launchable, *args: Any, name: str | None = None) -> ExportedFunction:
        """Compile `kernel[grid, block]` for arguments, and return the function of the package.

        The arguments are those of a launch, or `tw.spec(dtype, shape)` in place of arrays. As in a launch, the kernel
        is compiled for their types, ranks, unit strides, and the powers of two (up to 16 bytes) that divide pointers,
        extents and strides; everything else is passed at each launch, which rejects arrays that do not fit. Values of
        `tw.constexpr` parameters are compiled in. The grid is one to three numbers, or a function of the arguments that
        computes it with + - * // % and `tw.ceil_div`.

        Raises `ArgumentError` for a name that C, Python or the package already uses, and for kernels that only this
        library can launch: those that need all blocks at once, access arrays by address, copy pixels, or make tensor
        maps; `CompileError` if the compiler rejects the kernel.
        """
        if not all(hasattr(launcher, part) for part in ("kernel", "grid", "block")):
            raise ArgumentError(
                f"a package takes a kernel with its grid and block, got {launcher!r}",
                help="package.add(kernel[grid, block], *arguments)",
            )
        name = check_name("function", launcher.kernel.__name__ if name is None else name)
        if name.casefold() in {known.casefold() for known in self._functions}:
            raise ArgumentError(f"the package has a function {name} already", help="give another one: name=")
        self._functions[name] = ExportedFunction.of(launcher, args, name, self.archs)
        return self._functions[name]

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
        """Write the files of the package into a folder, which is created if missing, and return their paths.

        - `<name>.h`, `<name>.c` and `<name>_code.c`: C99; compile the two sources with a program, C or C++;
        - `<name>.py`: a Python module that needs Python and the driver only, and the cubins that it loads;
        - `<name>_torch.py`: registers `torch.ops.<name>.<function>`, from the module in the same folder.

        Each file is written atomically. Raises `ArgumentError` for an empty package, and for files that exist, unless
        `overwrite`.
        """
        instance("Package.write", "folder", folder, (str, os.PathLike), "a path")
        if not self._functions:
            raise ArgumentError(f"package {self.name} has no functions", help="package.add(kernel[grid, block], *args)")
        contents: dict[str, Iterable[bytes]] = {
            file_of(self.name, function, variant): [variant.lowered.module.cubin]
            for function in self.functions
            for variant in function.variants
        }
        contents[f"{self.name}_code.c"] = (text.encode() for text in code_text(self.name, self.functions))
        contents[f"{self.name}.h"] = [header_text(self.name, self.functions).encode()]
        contents[f"{self.name}.c"] = [source_text(self.name, self.functions).encode()]
        contents[f"{self.name}.py"] = [loader_text(self.name, self.functions).encode()]
        contents[f"{self.name}_torch.py"] = [torch_text(self.name, self.functions).encode()]
        target = Path(folder)
        existing = [file for file in contents if (target / file).exists()]
        if existing and not overwrite:
            raise ArgumentError(f"{target} has {', '.join(existing)} already", help="overwrite=True replaces them")
        target.mkdir(parents=True, exist_ok=True)
        for file, parts in contents.items():
            write_whole(target / file, parts)
        return tuple(target / file for file in contents)

    def __repr__(self) -> str:
        return f"<package {self.name}: {', '.join(self._functions) or 'empty'}>"
