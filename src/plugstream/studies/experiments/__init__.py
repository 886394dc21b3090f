"""The tables and figures of the paper, computed anew beside the printed values, and one table of what came after."""
