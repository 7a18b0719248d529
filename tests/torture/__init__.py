"""Long tests of load, faults and bad input. Each case measures goals that the README states."""
