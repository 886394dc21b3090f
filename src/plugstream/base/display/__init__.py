"""What a person sees of work that goes on: redrawn lines of a terminal, plain lines, JSON, a notebook."""
