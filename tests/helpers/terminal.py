"""A terminal of a given width, for what commands print on one."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys

import pytest

needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")


def printed(width: int, *command: str) -> list[str]:
    """Return the lines that a command prints on a terminal, without colours."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment["TERM"] = "xterm-256color"
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # as Linux says that nobody holds the other end any more
            break
        if not part:
            break
        found += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, found.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode()).replace("\r\n", "\n")
    return text.rstrip("\n").split("\n")
