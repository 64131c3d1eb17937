"""The simulated processes of the message level: each drives a real core, effect by effect, as its shell would."""
