"""The outbox: durable events are delivered to webhooks and functions, at least once and in order, by one deliverer at a time."""
