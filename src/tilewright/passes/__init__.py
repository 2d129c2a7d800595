"""The passes over the IR: one a file, one verb a name. `pipeline` is the ordered list."""
