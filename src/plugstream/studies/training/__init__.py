"""Training of plugstream's own denoisers and of yours: patches, the loop, and a recipe for each."""
