"""Those who use a simulated cluster: producers, consumers, applications, and its operators."""
