"""What is measured of programs compiled for TPUs."""
