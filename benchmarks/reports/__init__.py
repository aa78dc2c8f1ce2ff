"""Programs after public reports of steps that take too much memory, as they are and with hloom."""
