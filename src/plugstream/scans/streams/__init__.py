"""What detectors emit by themselves: streams of frames, each source one module, taken by `plugstream follow`."""
