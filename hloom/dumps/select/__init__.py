"""Selects the steps and modules that are dumped, and the folder."""
