"""Training methods: what happens in one iteration."""
