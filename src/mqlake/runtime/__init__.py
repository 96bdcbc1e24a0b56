"""What every thread of a store uses: locks with a fixed order, supervised workers, the guard against forks."""
