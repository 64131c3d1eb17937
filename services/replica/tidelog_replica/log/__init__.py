"""The segmented log of one partition, over the disk seam."""
