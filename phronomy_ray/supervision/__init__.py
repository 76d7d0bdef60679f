"""Who looks after agents that nobody calls: what to wake, whom to give up, and when."""
