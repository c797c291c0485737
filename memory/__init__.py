"""The domain: graphs, boundaries, consolidation, retrieval. Decides; never does I/O."""
