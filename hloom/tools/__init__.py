"""The commands that a person starts; nothing else in hloom imports them."""
