"""The usual ways to form an image, to begin with and to compare with: filtered back-projection and SIRT."""
