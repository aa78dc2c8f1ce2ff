"""What hloom does to one program on meshes of automatic and of explicit axes."""
