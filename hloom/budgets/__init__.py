"""What each budget gives a program, before anything is compiled: `hloom.estimate`."""
