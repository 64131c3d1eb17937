"""The simulated processes: each drives a real core, effect by effect, as its shell would."""
