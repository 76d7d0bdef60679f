"""The kernel: pure state machines. State and event in, new state, commit and effects out."""
