"""Pure state machines: what happens next, without Ray, SQL, HTTP or a clock."""
