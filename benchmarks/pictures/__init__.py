"""The pictures of the documentation that a program takes."""
