"""A model of the memory that XLA gives a module: kernels, their order, their buffers, the peak."""
