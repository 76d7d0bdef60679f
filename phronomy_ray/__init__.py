"""phronomy-ray."""
