"""Loop nests: declare one, transform it, and lower it to the IR of kernels."""
