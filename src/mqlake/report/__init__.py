"""One page for people, drawn from plain values: no network, and no package but the standard library."""
