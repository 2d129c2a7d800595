"""Functions run by several processes that form a group over gloo, as ranks do that have a GPU each."""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

SECONDS = 300  # that a collective waits on a loaded machine; a test that fails ends earlier, since its process ends


def _rank(rank: int, ranks: int, folder: str, function: Callable[[Path], None]) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=SECONDS),
        )
        function(Path(folder))
        dist.destroy_process_group()
    except BaseException:
        # A process that waits to say good-bye to its group would hide why.
        Path(folder, f"error{rank}").write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)


def _context(function: Callable[[Path], None]) -> Any:
    """Return what starts processes: where the system can, copies of one that has imported all that they need."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tilewright.torch", "tilewright.backends.sim", function.__module__])
    return context


def run(function: Callable[[Path], None], ranks: int) -> None:
    """Call a function of a module in several processes, and raise what the first of them raised.

    Each gets the same folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = _context(function)
        processes = [context.Process(target=_rank, args=(rank, ranks, folder, function)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(2 * SECONDS)
            if process.is_alive():
                process.kill()
        errors = sorted(Path(folder).glob("error*"), key=lambda file: file.stat().st_mtime)
        assert not errors, errors[0].read_text(encoding="utf-8")
        codes = [process.exitcode for process in processes]
        assert not any(codes), f"exit codes of the ranks: {codes}"
