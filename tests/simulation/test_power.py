"""A short form of ``python -m simulation.power``."""

from __future__ import annotations

from simulation.power import lose


def test_after_losses_of_power_with_writes_in_any_order_every_partition_is_led_and_nothing_is_called_damaged():
    said = lose(24, 7)
    assert said["power losses"] == 24 and not said["log_damaged"]
    assert said["log_doubtful"], "the losses tear nothing: they show nothing"


def test_a_batch_whose_epoch_cannot_be_confirmed_is_not_recovered():
    """The epoch file is torn, and a bit of the epoch in an unsynced batch has flipped. No CRC covers that field."""
    assert lose(50, 90504)["power losses"] == 50
