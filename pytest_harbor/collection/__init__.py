"""Everything that is pytest: collection, items, fixtures, reports."""
