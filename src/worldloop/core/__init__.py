"""What every layer may use: errors, value types, settings, clocks, logging. Imports no other layer."""
