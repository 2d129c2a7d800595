"""The scheduling layer: declare a loop nest, transform it, say how it runs on a GPU, and get a kernel."""
