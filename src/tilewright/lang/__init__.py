"""How a kernel's Python becomes IR: reading it, tracing it, and what its values are."""
