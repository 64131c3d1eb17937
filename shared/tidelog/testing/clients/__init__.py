"""The users of a simulated cluster: producers, consumers, applications, and its operators.

They belong to the message level and talk to the leaders without a gateway. ``client.Client`` is what all of them
share; what they send and receive goes into the history that ``tidelog.verify`` judges.
"""
