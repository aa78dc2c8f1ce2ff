"""Ragged products, as of a mixture of experts: XLA's own beside the pass `ragged`."""
