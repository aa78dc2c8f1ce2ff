"""Reading dumps: whole ones, and what is left of damaged ones."""
