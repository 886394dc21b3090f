"""Run folders: settings, event log, images and report of a reconstruction."""
