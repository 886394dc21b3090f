"""Training: patches, the loop, the U-Net; `training/` of a checkout has that of TNRD and ridge filters."""
