"""What touches the outside, one file each; each implements a Protocol of memory/ports.py."""
