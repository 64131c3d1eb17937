"""The controller: cluster metadata in Raft."""
