"""Pages that show runs, made from their folders: a report in one file, and a page that follows a run."""
