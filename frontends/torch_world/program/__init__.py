"""From recordings of ranks to programs of rank classes."""
