"""Runs dumped modules again, under any pipeline, and compares what they give."""
