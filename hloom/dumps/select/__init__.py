"""Which steps and modules are dumped, and where to."""
