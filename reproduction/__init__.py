"""The tables and figures of the paper, reproduced beside the printed values, and one table of its successors."""
