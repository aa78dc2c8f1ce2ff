"""`hloom report`: a dump as one page to look at, as text, and as plots."""
