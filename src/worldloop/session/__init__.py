"""Players and their games: slots, leases, tickets, pacing, controls. No models, no HTTP."""
