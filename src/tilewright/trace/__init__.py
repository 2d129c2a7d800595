"""What traces: stand-ins for the values of a kernel, whose operations build its IR while its Python runs."""
