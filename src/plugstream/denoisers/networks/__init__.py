"""Networks as denoisers: a light one of ours, and the published layouts."""
