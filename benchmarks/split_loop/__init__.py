"""What a split scan takes beside a whole one: memory, work, and time to compile."""
