"""Training of TNRD and of ridge filters, with its kernels for CUDA: of a checkout, and no part of the package."""
