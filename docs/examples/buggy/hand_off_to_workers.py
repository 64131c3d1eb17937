"""Make a thumbnail of every photo, with four workers.

Symptom: some photos have no thumbnail, and the group has no lag.
Bug: a photo counts as finished when it is handed to the workers, so its position is committed before it is done.
Report: "Need option to allow committing the offset of kafka messages after processing",
https://github.com/odpi/egeria/issues/863
"""

from functools import partial

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import NUMBERS, compare, place_orders

WORKERS = 4
thumbnails: set[bytes] = set()
"""The thumbnails in the file store, by photo."""


async def make_thumbnail(photo: tidelog.Record) -> None:
    await trio.sleep(1)
    thumbnails.add(photo.value)


async def worker(photos: trio.MemoryReceiveChannel) -> None:
    async for photo in photos:
        await make_thumbnail(photo)


async def buggy(address: str) -> None:
    async with tidelog.connect(address) as log:
        hand_off, arrivals = trio.open_memory_channel(10)
        async with log.consume("photos", group="thumbnails") as photos, trio.open_nursery() as nursery:
            for _ in range(WORKERS):
                nursery.start_soon(worker, arrivals)
            async for photo in photos:
                await hand_off.send(photo)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("photos", group="thumbnails") as photos,
    ):
        while True:
            hand_off, arrivals = trio.open_memory_channel(10)
            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(worker, arrivals)
                async with hand_off:
                    for photo in await photos.next_records():
                        await hand_off.send(photo)
            # all workers are done: the next request for records says that these are finished


def check(world: World, program) -> None:
    thumbnails.clear()
    world.topic("photos", partitions=2)
    world.program(partial(place_orders, topic="photos"), name="photographers")
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("photos with a thumbnail", thumbnails, NUMBERS))
    world.run()
