"""Prints a kernel's IR as C++ for a device: all that the vendors' dialects share."""
