"""Training of the denoisers that ship with plugstream, and of one's own: patches, the loop, and a recipe for each."""
