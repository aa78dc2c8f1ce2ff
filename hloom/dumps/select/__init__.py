"""Choice of the steps and modules that are dumped, and of the folder."""
