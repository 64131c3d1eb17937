"""What tests share: networks, fakes and builders. README.md says which to take for what."""
