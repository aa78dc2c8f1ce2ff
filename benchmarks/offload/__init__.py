"""Residuals of scans on the host by `offload`: memory, and what their copies span, on an H100."""
