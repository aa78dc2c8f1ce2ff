"""What `overlap` makes of tensor-parallel blocks: XLA's schedule, memory, bytes between devices."""
