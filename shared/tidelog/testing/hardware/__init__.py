"""What the simulated processes stand on: virtual time, disks in memory, and a network that breaks."""
