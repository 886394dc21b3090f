"""Progress for a person: lines redrawn on a terminal, plain lines, JSON, or an element of a notebook."""
