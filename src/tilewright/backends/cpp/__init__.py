"""Prints a kernel's IR as C++ for a device: all that the vendors' dialects share.

From the top down, as the imports run:

    generate     a kernel as a text, and the tables of the handlers that all dialects share
    control      handlers of loops and branches; memory: of buffers, loads, stores and atomic operations
    arithmetic   handlers of scalar arithmetic; conversions: of changes of type
    printer      the state of printing one kernel, and the operations that all handlers are made of
    dialect      what each vendor's C++ writes its own way
    variables    which values share one C++ variable; names: how they are called
    prelude      the device functions and types above a kernel; writer: the lines of the text, comments and strings
    inlining     which values are written inside the expression that uses them; expression: C++ expressions and literals
"""
