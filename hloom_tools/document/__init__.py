"""One document, sections of facts, tables and notes, for a terminal, a page and JSON."""
