"""`hloom report` shows a dump as an HTML page, as text, and as plots."""
