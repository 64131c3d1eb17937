"""The users of a simulated cluster: producers, consumers, applications, and its operators."""
