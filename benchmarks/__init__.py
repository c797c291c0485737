"""One command per published table."""
