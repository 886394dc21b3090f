"""Run folders: plan, events, checkpoints, images, report and live page of a reconstruction."""
