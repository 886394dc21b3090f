"""The instruments: one file each, which declares what a scan of it holds, simulates one and builds its model."""
