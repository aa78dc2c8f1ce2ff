"""Dumps for the tests of what writes and reads them."""
