"""Ray: thin actors over pipeline classes, and their supervision."""
